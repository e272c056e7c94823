"""The command line of Spark's JVM: class path, flags and every setting Penstock chooses.

Pure: given what is there, what to run. Settings that matter and why are in
docs/internals/spark.md.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.lake.storage import HADOOP_CLASSES
from penstock.spark.options import SparkOptions, is_local

POOLS: Final = """<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode><weight>1</weight><minShare>0</minShare>
  </pool>
</allocations>
"""
"""Clients of Spark Connect all land in this pool; without FAIR the longest query holds the rest."""

LOGGING: Final = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = error
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.connect.name = org.apache.spark.sql.connect.utils.ErrorUtils
logger.connect.level = off
"""

_OPENED: Final = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref",
    "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar",
)  # fmt: skip

_PLAIN_FILES: Final = {
    "spark.hadoop.fs.file.impl": "penstock.fs.PlainLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "penstock.fs.PlainLocalFs",
}
_WITHOUT_JAR: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}

SESSION_CONF: Final[Mapping[str, str]] = {
    # The lake's types and texts: no hidden zone, no calendar of before 1582, no INT96.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timeType.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "true",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    # A file that is missing or damaged is an error, never fewer rows.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Small jobs.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.streaming.pollingDelay": "2ms",
}
"""What every session needs, on a Spark of ours and on a remote one."""


@dataclass(frozen=True, slots=True)
class JvmFiles:
    """The files around one JVM."""

    work_dir: Path
    jars_dir: Path
    jar: Path | None = None
    archive: Path | None = None
    archive_to_write: Path | None = None

    @property
    def pools(self) -> Path:
        """The scheduler's allocation file."""
        return self.work_dir / "pools.xml"

    @property
    def logging(self) -> Path:
        """Log4j's settings."""
        return self.work_dir / "log4j2.properties"

    @property
    def log(self) -> Path:
        """What the JVM says."""
        return self.work_dir / "spark.log"

    @property
    def greeting(self) -> Path:
        """Where the JVM writes the port and secret of its gateway."""
        return self.work_dir / "gateway"


def jvm_command(
    java: Path, place: JvmFiles, *, master: str, memory_mb: int, conf: Mapping[str, str]
) -> list[str]:
    """What to run: Java itself, without the launcher script and its JVM.

    Flags of the JVM in `spark.driver.extraJavaOptions` are ours to hand over, as the script does.
    """
    settings = server_conf(place, master) | dict(conf)
    flags = [f"{key}={value}" for key, value in sorted(settings.items())]
    more = shlex.split(settings.get("spark.driver.extraJavaOptions", ""))
    return [
        str(java), "-cp", class_path(place), f"-Xmx{memory_mb}m", *jvm_flags(place), *more,
        "org.apache.spark.deploy.SparkSubmit",
        *(part for flag in flags for part in ("--conf", flag)),
        "pyspark-shell",
    ]  # fmt: skip


def class_path(place: JvmFiles) -> str:
    """Spark's jars in one order, ours last: an archive fits only a class path that begins alike."""
    jars = sorted(str(path) for path in place.jars_dir.glob("*.jar"))
    return ":".join([*jars, str(place.jar)] if place.jar else jars)


def jvm_flags(place: JvmFiles) -> Sequence[str]:
    """Flags of the JVM itself."""
    flags = [
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "--sun-misc-unsafe-memory-access=allow",
        "--enable-native-access=ALL-UNNAMED",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Djava.awt.headless=true",
        "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={place.logging}",
        f"-Djava.io.tmpdir={place.work_dir}",
        "-XX:-UsePerfData",
    ]
    if place.archive_to_write is not None:
        flags.append(f"-XX:ArchiveClassesAtExit={place.archive_to_write}")
    elif place.archive is not None:
        flags += [f"-XX:SharedArchiveFile={place.archive}", "-Xshare:auto", "-Xlog:cds=off"]
    return flags


def server_conf(place: JvmFiles, master: str) -> dict[str, str]:
    """Every setting of the JVM, before a person's own."""
    return {
        **SESSION_CONF,
        **(_local_conf(place) if is_local(master) else {}),
        "spark.master": master,
        "spark.app.name": "penstock",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark keeps what it would show of the last thousand jobs also where it shows nothing.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.sql.ui.explainMode": "simple",
        "spark.local.dir": str(place.work_dir),
        "spark.sql.warehouse.dir": str(place.work_dir / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        # A query is a few classes that Spark compiles; it keeps those of the last hundred only, so
        # that with more tables than that every refresh would compile its own again.
        "spark.sql.codegen.cache.maxEntries": "2000",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": str(place.pools),
        "spark.python.unix.domain.socket.enabled": str(_has_room_for_sockets(place)).lower(),
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        **{f"spark.hadoop.fs.{scheme}.impl": name for scheme, name in HADOOP_CLASSES.items()},
        # A plan of a batch holds its messages, and a session would keep the last sixteen.
        "spark.connect.session.planCache.maxSize": "2",
        "spark.connect.progress.reportInterval": "500ms",
        "spark.connect.execute.manager.detachedTimeout": "30s",
        "spark.connect.session.manager.defaultSessionTimeout": "7d",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    }


def _local_conf(place: JvmFiles) -> dict[str, str]:
    """Settings for tasks that run in this JVM too: our classes, and the loopback address."""
    return {
        **(_PLAIN_FILES if place.jar else _WITHOUT_JAR),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def cluster_conf(options: SparkOptions, address: str | None) -> dict[str, str]:
    """What options say of a master that is not this JVM; `address` is ours on the way to it.

    Executors there have Spark's classes and not ours, so nothing names ours.
    """
    if options.is_local:
        return {}
    found = {
        "spark.driver.host": options.driver_host or address,
        "spark.cores.max": options.cores,
    }
    return {key: str(value) for key, value in found.items() if value is not None}


def _has_room_for_sockets(place: JvmFiles) -> bool:
    """Whether the sockets that Spark puts there get names no longer than a socket's may be."""
    return len(os.fsencode(place.work_dir)) + _SOCKET_NAME_BYTES <= _SOCKET_PATH_BYTES_MAX


_SOCKET_NAME_BYTES: Final = 48
_SOCKET_PATH_BYTES_MAX: Final = 103
