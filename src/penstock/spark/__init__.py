"""Spark, embedded or remote: its session, and the lake's tables read and written with it.

The only package that imports pyspark, and only when a session is opened.
"""

from __future__ import annotations
