"""The generated reference: docs/reference/*.md, written from the code.

The pages come from the source text, not from imported modules, so an optional dependency need not
be installed to document what uses it. Only the commands are asked for their own help.
"""
