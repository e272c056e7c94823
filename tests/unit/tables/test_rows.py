from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.tables import rows
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.core.history import ReasonCode, RefreshOutcome, RefreshRecord
from penstock.tables.core.jobs import JobStatus, RefreshJob
from penstock.tables.core.model import Mode, define
from penstock.tables.core.units import UnitKind

QUEUED = RefreshJob(1, 4, "group:a+b", UnitKind.ATOMIC_GROUP, ("a", "b"), "a", "c1", 100)


@pytest.fixture
def database():
    with closing(sqlite3.connect(":memory:")) as connection:
        for _ in range(2):  # again does no harm
            for statement in rows.CREATE:
                connection.execute(statement)
        yield connection


def jobs(database):
    return [rows.job_from_row(row) for row in database.execute(rows.SELECT_JOBS)]


def test_jobs_and_definitions_come_back_as_they_were(database):
    running = QUEUED.claimed("w1", 200)
    failed = running.failed(300, "no", retryable=False)
    for number, job in enumerate((QUEUED, running, failed)):
        database.execute(rows.INSERT_JOB, rows.job_row(replace(job, job_id=number)))
    assert [job.status for job in jobs(database)] == [
        JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.PERMANENT_FAILED,
    ]  # fmt: skip
    assert jobs(database)[2].retryable is False
    assert jobs(database)[2].members == ("a", "b")
    tables = [
        define("a", "SELECT * FROM raw, topics.Meters", schedule="@hourly", mode="full"),
        define("b", "SELECT * FROM a", schedule="1h30m", consistency="none", description="x"),
        define("c", "SELECT * FROM a", mode="immediate", status="paused"),
        define("d", "SELECT * FROM a", schedule="on demand"),
    ]
    for table in tables:
        database.execute(rows.INSERT_TABLE, rows.table_row(table))
    found = [rows.table_from_row(row) for row in database.execute(rows.SELECT_TABLES)]
    assert found == tables


def test_a_job_is_claimed_once_and_a_closed_one_stays_closed(database):
    database.execute(rows.INSERT_JOB, rows.job_row(QUEUED))
    assert database.execute(rows.CLAIM_JOB, ("w1", 200, 1)).rowcount == 1
    assert database.execute(rows.CLAIM_JOB, ("w2", 201, 1)).rowcount == 0
    assert database.execute(rows.JOB_IS_RUNNING, (1, "w1")).fetchone() == (1,)
    assert database.execute(rows.JOB_IS_RUNNING, (1, "w2")).fetchone() == (0,)
    assert database.execute(rows.CLOSE_JOB, ("CANCELLED", 300, "late", 1, 1)).rowcount == 1
    assert database.execute(rows.CLOSE_JOB, ("SUCCEEDED", 400, None, None, 1)).rowcount == 0
    assert database.execute(rows.JOB_IS_RUNNING, (1, "w1")).fetchone() == (0,)


def test_pruning_forgets_only_what_ended_before(database):
    ended = QUEUED.claimed("w", 200).succeeded(300)
    database.execute(rows.INSERT_JOB, rows.job_row(ended))
    assert database.execute(rows.delete_all(rows.OLD_JOBS), (299,)).rowcount == 0
    assert database.execute(rows.delete_all(rows.OLD_JOBS), (300,)).rowcount == 1


def test_a_lease_is_taken_when_it_is_free_or_ours_or_over(database):
    def take(holder, expires_ms, now_ms):
        values = ("coordinator", holder, expires_ms, now_ms)
        return database.execute(rows.TAKE_LEASE, values).rowcount

    def fence():
        return database.execute("SELECT fence FROM penstock_leases").fetchone()[0]

    assert take("c1", 100, 0) == 1
    assert take("c2", 150, 50) == 0
    assert take("c1", 200, 50) == 1
    assert fence() == 1
    assert take("c2", 300, 200) == 1
    assert fence() == 2
    assert database.execute(rows.COORDINATOR_IS).fetchone() == ("c2",)


def test_a_lock_has_one_holder(database):
    assert database.execute(rows.TAKE_LOCK, ("a", "w1", 1)).rowcount == 1
    assert database.execute(rows.TAKE_LOCK, ("a", "w2", 2)).rowcount == 0
    assert database.execute(rows.RELEASE_LOCKS, ("w1",)).rowcount == 1
    assert database.execute(rows.TAKE_LOCK, ("a", "w2", 3)).rowcount == 1


def test_frontiers_and_history_are_stored(database):
    frontier = Frontier({"raw": LakePosition(3), "b": LakePosition(-1)})
    for snapshot in (4, 5):
        values = ("a", frontier.to_json(), snapshot, snapshot, 100, 1)
        database.execute(rows.STORE_FRONTIER, values)
    ((text, snapshot),) = database.execute("SELECT frontier, snapshot FROM penstock_frontiers")
    made = Frontier({"raw": LakePosition(3), "b": LakePosition(5)})
    assert (Frontier.from_json(text), snapshot) == (made, 5)
    record = RefreshRecord(
        "a", "table:a", 1, RefreshOutcome.SUCCEEDED, Mode.AUTO, Mode.FULL, ReasonCode.FIRST_LOAD,
        1, 2,
        frontier=frontier, timings_ms=(("plan", 1.5),), stale=("table:x",),
    )  # fmt: skip
    database.execute(rows.INSERT_HISTORY, rows.history_row(record, 5, 5))
    (found,) = database.execute(rows.SELECT_HISTORY)
    assert rows.record_from_row(found) == replace(record, frontier=made, snapshot=5)


def test_the_job_table_has_every_column_and_index_of_the_design(database):
    columns = [row[1] for row in database.execute("PRAGMA table_info(penstock_scheduler_jobs)")]
    assert tuple(columns) == rows.JOB_COLUMNS
    indexes = {row[1] for row in database.execute("PRAGMA index_list(penstock_scheduler_jobs)")}
    assert {f"penstock_scheduler_jobs_{n}" for n in ("polling", "unit", "finished")} <= indexes


def test_no_other_module_of_tables_has_sql():
    home = Path(rows.__file__).parent
    sql = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM)\b[^\n]*\b(penstock|ducklake)_")
    found = [
        str(path.relative_to(home))
        for path in home.rglob("*.py")
        if path.name not in ("rows.py", "rows.py") and sql.search(path.read_text())
    ]
    assert found == []
