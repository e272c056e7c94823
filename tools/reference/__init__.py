"""The generated reference: docs/reference/*.md, written from the code.

The pages of packages and errors come from the source text, not from imported modules, so an
optional dependency need not be installed to document what uses it. Commands, routes, settings and
metrics are asked for what they say of themselves.
"""
