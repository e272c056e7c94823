"""What Penstock can be told: `settings` are the types, `loading` reads flags, environment, file."""

from penstock.config.loading import (
    FILE_NAME,
    FILE_TABLE,
    INGEST_TABLE,
    SPARK_TABLE,
    TABLES_TABLE,
    Described,
    child_environ,
    described,
    load,
    load_ingest,
    load_spark,
    load_tables,
    variable,
)
from penstock.config.settings import (
    DEFAULT_CATALOG,
    IngestSettings,
    Settings,
    TablesSettings,
    is_loopback,
)

__all__ = [
    "DEFAULT_CATALOG",
    "FILE_NAME",
    "FILE_TABLE",
    "INGEST_TABLE",
    "SPARK_TABLE",
    "TABLES_TABLE",
    "Described",
    "IngestSettings",
    "Settings",
    "TablesSettings",
    "child_environ",
    "described",
    "is_loopback",
    "load",
    "load_ingest",
    "load_spark",
    "load_tables",
    "variable",
]
