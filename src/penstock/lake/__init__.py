"""The DuckLake catalog: snapshots over many tables, their files and changes, and our own rows."""

from __future__ import annotations

from penstock.lake.columns import Column, arrow_schema, columns_of
from penstock.lake.merging import Compaction
from penstock.lake.model import (
    DataFile,
    DeleteFile,
    InlinedRows,
    NewFile,
    SchemaInfo,
    Snapshot,
    TableInfo,
    TableVersion,
    ViewInfo,
)
from penstock.lake.selection import FileRows
from penstock.lake.transaction import SNAPSHOT, Transaction

__all__ = [
    "SNAPSHOT",
    "Column",
    "Compaction",
    "DataFile",
    "DeleteFile",
    "FileRows",
    "InlinedRows",
    "NewFile",
    "SchemaInfo",
    "Snapshot",
    "TableInfo",
    "TableVersion",
    "Transaction",
    "ViewInfo",
    "arrow_schema",
    "columns_of",
]
