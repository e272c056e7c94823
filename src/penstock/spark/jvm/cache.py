"""What is made once for a machine and speeds Spark up: a small jar and an archive of classes.

Both are optional. They lie in a cache directory under names that change with everything they
depend on, and appear there whole or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.jvm.java import Java

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.session import SparkSession

_LOG: Final = logging.getLogger(__name__)
_COMPILE_TIMEOUT_S: Final = 120
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_TRAINING: Final = 2
"""The version of the jobs in `train`: an archive made by other jobs is made anew."""
_QUERIES: Final = (
    "SELECT id % 10 AS k, count(*) AS n, sum(id) AS s FROM r GROUP BY id % 10",
    "SELECT a.id, b.id AS other FROM r a LEFT JOIN r b ON a.id = b.id + 1 WHERE a.id > 5",
    "SELECT DISTINCT id % 7 AS d FROM r ORDER BY d LIMIT 3",
)


def cache_dir(given: Path | None = None) -> Path:
    """The directory for what is made once, by default in the user's cache."""
    if given is not None:
        return given
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock" / "spark"


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Only one process makes a file; others wait, and find it made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sources() -> list[Path]:
    """The Java sources that come with this package."""
    return sorted(Path(str(files("penstock.spark.jvm").joinpath("sources"))).rglob("*.java"))


def filesystem_jar(cache: Path, java: Java, jars_dir: Path) -> Path | None:
    """The jar with a local file system that starts no processes: as shipped, or compiled here once.

    None where there is no compiler, or it fails: Spark then works as it comes, with more time for
    each small write.
    """
    name = jar_name(jars_dir)
    for jar in (Path(str(files("penstock.spark.jvm").joinpath(name))), cache / name):
        if jar.exists():
            return jar
    if java.compiler is None:
        _LOG.warning(
            "Spark writes small files more slowly here: this installation has no classes for its "
            "version, and %s has no compiler; install a JDK, or Penstock from its wheel", java.home,
        )  # fmt: skip
        return None
    try:
        return build_jar(java.compiler, jars_dir, cache)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        _LOG.warning("Spark writes small files more slowly here: building %s failed: %s", jar, said)
        return None


def build_jar(compiler: Path, jars_dir: Path, target: Path) -> Path:
    """Compile our Java sources for the Spark with these jars, into a jar in a directory."""
    jar = target / jar_name(jars_dir)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        _compile(compiler, _hadoop(jars_dir), Path(scratch))
        _pack(Path(scratch), jar)
    return jar


def jar_name(jars_dir: Path) -> str:
    """What the jar is called: other sources, or another Hadoop, make another name."""
    names = [path.name for path in _hadoop(jars_dir)]
    return f"penstock-fs-{_digest(*(path.read_bytes() for path in sources()), names)}.jar"


def _hadoop(jars_dir: Path) -> list[Path]:
    return sorted(jars_dir.glob("hadoop-client-*.jar"))


def archive_path(cache: Path, java: Java, class_path: Iterable[str]) -> Path:
    """Where the archive of classes for exactly this Java and these jars belongs."""
    facts = [f"training {_TRAINING}"]
    for entry in class_path:
        status = Path(entry).stat()
        facts.append(f"{entry} {status.st_size} {status.st_mtime_ns}")
    return cache / f"classes-{_digest(str(java.home), java.version, facts)}.jsa"


def train(url: str) -> None:
    """Run small jobs like those of refreshes and pipelines, so that the JVM loads their classes."""
    import pyarrow as pa

    from penstock.spark.link import connect

    with connect(url) as spark, tempfile.TemporaryDirectory() as scratch:
        rows = pa.table({"id": list(range(1_000)), "t": [str(n) for n in range(1_000)]})
        spark.createDataFrame(rows).createOrReplaceTempView("r")
        for number, query in enumerate(_QUERIES):
            frame = spark.sql(query)
            frame.toArrow()
            path = f"{scratch}/{number}"
            frame.write.parquet(path)
            spark.read.parquet(path).toArrow()
        _batch(spark)


def _compile(compiler: Path, hadoop: list[Path], target: Path) -> None:
    subprocess.run(
        [
            compiler, "--release", "17", "-nowarn", "-cp", ":".join(map(str, hadoop)),
            "-d", target, *sources(),
        ],
        check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _pack(classes: Path, jar: Path) -> None:
    """A jar is a zip; its name appears when it is complete."""
    draft = classes / "draft.jar"
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as opened:
        for path in sorted(classes.rglob("*.class")):
            entry = zipfile.ZipInfo(str(path.relative_to(classes)), _EPOCH)
            opened.writestr(entry, path.read_bytes())
    draft.replace(jar)


def _digest(*parts: bytes | str | list[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        text = "\n".join(part) if isinstance(part, list) else part
        digest.update(text if isinstance(text, bytes) else text.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _batch(spark: SparkSession) -> None:
    """A batch on its way through a pipeline: parsed in Python and in SQL, evaluated, reported."""
    import pyarrow as pa
    from pyspark.sql.connect import functions as F  # noqa: N812 - as everybody calls it
    from pyspark.sql.connect.observation import Observation

    from penstock.spark.lake.collect import arriving

    messages = pa.table(
        {
            "_seq": pa.array(range(100), pa.int64()),
            "received_at": pa.array(range(100), pa.timestamp("us", tz="UTC")),
            "payload": [f'{{"x": {n}, "at": "2024-01-01"}}' for n in range(100)],
        }
    )
    raw = spark.createDataFrame(messages).coalesce(1)
    ddl = "_seq BIGINT, received_at TIMESTAMP, payload STRING"
    parsed = raw.mapInArrow(_same, ddl).selectExpr(
        "*", "CAST(get_json_object(payload, '$.x') AS INT) AS x",
        "from_json(payload, 'at DATE').at AS at",
        "try_to_binary(payload, 'base64') AS bytes", "CAST(NULL AS STRING) AS _reason",
    )  # fmt: skip
    bad = F.expr("collect_list(IF(_reason IS NULL, NULL, struct(_seq, _reason)))").alias("rows")
    good = parsed.observe(Observation(), bad).where("_reason IS NULL").drop("_reason")
    prices = spark.createDataFrame(pa.table({"x": list(range(50)), "price": [1.5] * 50}))
    made = good.join(F.broadcast(prices), "x", "left").selectExpr("_seq", "x * price AS charge")
    for _ in arriving(
        made.mapInArrow(_same, "_seq BIGINT, charge DOUBLE"), bytes_max=None
    ).batches():
        pass


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
