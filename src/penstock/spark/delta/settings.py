"""What a session's settings mean for refreshes from changes.

A person may run Spark with settings of their own, by `PENSTOCK_SPARK_CONF` or on their own server.
The contents must be those of the query under these settings, in either mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_ANSI: Final = "spark.sql.ansi.enabled"
_READ_AS: Final = {
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.groupByAliases": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.lateralColumnAlias.enableImplicitResolution": "true",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.ctePrecedencePolicy": "corrected",
    "spark.sql.legacy.parser.havingWithoutGroupByAsWhere": "false",
    "spark.sql.legacy.setopsPrecedence.enabled": "false",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
}
"""How the compiler reads SQL, as Spark does by default."""


class Settings(NamedTuple):
    """Those of one session."""

    is_ansi: bool
    """Whether an overflow is an error. Otherwise sums cannot be kept: the query's may be NULL."""
    misread: str
    """Which setting makes Spark read SQL in another way than the compiler; empty if none does."""


def settings_of(spark: SparkSession) -> Settings:
    """The settings of a session, which is asked once: it belongs to one worker, which sets none."""
    known: Settings | None = getattr(spark, "_penstock_settings", None)
    if known is None:
        odd = {name: value for name in _READ_AS if (value := _value(spark, name)) is not None}
        odd = {name: value for name, value in odd.items() if value.lower() != _READ_AS[name]}
        said = "; ".join(f"{name} is {value}" for name, value in odd.items())
        misread = f"the compiler reads SQL as Spark does by default, but {said}" if odd else ""
        known = Settings((_value(spark, _ANSI) or "true").lower() == "true", misread)
        spark._penstock_settings = known
    return known


def _value(spark: SparkSession, name: str) -> str | None:
    """A setting, or its default; None if this Spark does not know it."""
    from pyspark.errors import PySparkException

    try:
        value: str | None = spark.conf.get(name)
    except PySparkException as error:
        if error.getCondition() != "SQL_CONF_NOT_FOUND":
            raise
        return None
    return value
