"""What the Spark side refuses, on the kernel's groups of errors."""

from __future__ import annotations

from penstock.kernel.errors import Rejected, Unavailable


class SparkMissing(Unavailable):
    """Spark cannot be used here: a package or Java is not installed."""

    code = "spark_missing"


class SparkNotStarted(Unavailable):
    """Spark's JVM ended or said nothing; the text ends with the last thing it wrote."""

    code = "spark_not_started"


class UnsharedType(Rejected):
    """A column's type is known to only one of Spark and the lake."""

    code = "unshared_type"


class FilesNotShared(Rejected):
    """Executors of a Spark have other files at the lake's paths than this machine."""

    code = "files_not_shared"
