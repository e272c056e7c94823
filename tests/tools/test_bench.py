from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from bench.__main__ import benchmarks
from bench.machine import machine_facts
from bench.report import Report, number
from tools.reference.benchmarks import benchmarks_page


@pytest.fixture
def report() -> Report:
    report = Report("queue", "Hand-over of one item")
    report.row("ours", 1.234, "µs", ratio=2.0, against="peer", goal="within 3×", met=True)
    report.row("peer", 0.617, "µs")
    report.row("slow", 9, "µs", goal="at most 1 µs", met=False)
    return report


def test_a_report_comes_back_as_it_was_kept(tmp_path, report):
    path = report.write(tmp_path, machine_facts())
    assert Report.read(path) == report


def test_the_facts_of_the_machine_are_kept_with_the_rows(tmp_path, report):
    kept = json.loads(report.write(tmp_path, machine_facts()).read_text())
    assert {"cpu", "cores", "python", "date"} <= set(kept["machine"])


def test_the_table_tells_ratio_and_whether_the_goal_is_met(report):
    console = Console(file=io.StringIO(), width=120)
    report.show(console)
    shown = console.file.getvalue()
    assert "2×" in shown
    assert "met" in shown
    assert "missed" in shown


def test_the_page_of_measurements_is_made_from_what_was_kept(tmp_path, report):
    report.write(tmp_path, machine_facts())
    page = benchmarks_page(tmp_path)
    assert "| ours | 1.23 | µs | 2× | peer | within 3× | met |" in page
    assert "**missed**" in page


@pytest.mark.parametrize(
    ("value", "text"), [(0.12345, "0.123"), (12.345, "12.3"), (8, "8"), (1234567.8, "1,234,568")]
)
def test_numbers_show_three_digits_that_count(value, text):
    assert number(value) == text


def test_a_benchmark_is_found_by_its_file_name(tmp_path):
    for name in ("bench_channel.py", "bench_fairqueue.py", "report.py"):
        (tmp_path / name).touch()
    assert benchmarks(tmp_path) == ["channel", "fairqueue"]
