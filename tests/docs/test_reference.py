from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from bench.report import Report, Row
from penstock import errors
from penstock.config import Settings
from penstock.server.api.app import ROUTES
from tools.reference.pages import DIRECTORY, pages
from tools.reference.readme import line, table, with_numbers
from tools.reference.routes import BEYOND_QUERY, PROTOCOL
from tools.reference.trials import PAGE, with_trials

ROOT = Path(__file__).resolve().parents[2]
WANTED = pages(ROOT)


@pytest.mark.parametrize("name", WANTED)
def test_a_page_is_in_step_with_the_code(name):
    path = ROOT / DIRECTORY / name
    if not path.exists() or path.read_text() != WANTED[name]:
        pytest.fail(f"{path.relative_to(ROOT)} is out of step with the code; run: make docs", False)


def test_the_numbers_of_the_readme_are_those_that_were_kept():
    readme = (ROOT / "README.md").read_text()
    assert with_numbers(readme, ROOT / "bench" / "results") == readme, "run: make docs"


def test_the_record_of_trials_is_what_was_kept():
    page = (ROOT / PAGE).read_text()
    assert with_trials(page, ROOT / "bench" / "trials") == page, "run: make docs"


def test_a_benchmark_of_which_no_result_is_kept_is_left_out_of_the_readme(tmp_path):
    report = Report("wal")
    for name in ("64 writers over 64 partitions, synced", "a lone write"):
        report.row(name, 2.0, "µs", ratio=1.5, against="bare")
    report.write(tmp_path, {})
    *_, first, second = table(tmp_path).splitlines()
    assert first.startswith("| wal: 64 writers")
    assert second == "| wal: a lone write | 2 µs | 1.5× of bare |"


def test_a_row_that_a_benchmark_no_longer_has_is_told(tmp_path):
    Report("recovery", rows=[Row("something else", 1.0, "ms")]).write(tmp_path, {})
    with pytest.raises(ValueError, match="expected a row 'recover' in recovery"):
        table(tmp_path)


def test_a_row_without_a_ratio_shows_its_goal():
    shown = line("delivery", Row("100 watchers", 0.5, "ms", goal="under 1 ms", met=True))
    assert shown == "| delivery: 100 watchers | 0.5 ms | goal: under 1 ms |"


def test_a_goal_that_is_missed_says_so():
    late = line("delivery", Row("1000 watchers", 12, "ms", goal="under 10 ms", met=False))
    assert late == "| delivery: 1000 watchers | 12 ms | goal: under 10 ms, **missed** |"
    peer = Row("against Redis", 1, "records/s", ratio=0.6, against="Redis", goal="ahead", met=False)
    assert line("write", peer).endswith("| 0.6× of Redis, **behind** |")


def test_no_page_is_left_of_something_that_is_gone():
    there = {path.name for path in (ROOT / DIRECTORY).glob("*.md")}
    assert there <= set(WANTED), "run: make docs"


def test_every_name_of_the_front_door_is_on_its_page():
    page = WANTED["python.md"]
    for name in set(penstock.__all__) - {"__version__", "errors"}:
        assert f"### `{name}`" in page
    for name in errors.__all__:
        assert f"`{name}`" in page


def test_an_error_is_listed_with_its_code_below_its_parent():
    page = WANTED["errors.md"]
    assert "`Busy` | `busy`" in page
    assert page.index("`PenstockError`") < page.index("`Rejected`")


def test_an_error_of_the_protocol_has_its_status():
    assert (
        "| `topic_not_found` | 404 | definite | There is no topic with that name. |"
        in WANTED["errors.md"]
    )
    assert "| `internal` | 500 | unknown |" in WANTED["errors.md"]


def test_an_error_with_two_parents_stands_once_below_its_group():
    lines = [line for line in WANTED["errors.md"].splitlines() if "`RouterCycle`" in line]
    places = [line.rpartition("`penstock.")[2] for line in lines]
    assert places == ["protocol.errors` |"]


def test_every_route_is_listed_once_and_additions_are_marked():
    page = WANTED["routes.md"]
    for route in ROUTES.routes:
        told = [line for line in page.splitlines() if route.summary in line]
        mine = [line for line in told if f"`{route.method} {route.path}`" in line]
        assert len(mine) == 1
        assert ("**+**" in mine[0]) == (route.method not in PROTOCOL.get(route.path, "").split())
    assert "| `POST /v0/write` **+** |" in page


def test_every_route_of_the_protocol_is_there():
    routes = {(route.method, route.path): route for route in ROUTES.routes}
    for path, methods in PROTOCOL.items():
        assert all((method, path) in routes for method in methods.split()), path
    for method, path, name in BEYOND_QUERY:
        assert name in [param.name for param in routes[method, path].query]


def test_every_setting_has_its_variable_and_its_flag():
    page = WANTED["settings.md"]
    for name in Settings.__dataclass_fields__:
        assert f"| `{name}` | `PENSTOCK_{name.upper()}` |" in page
    assert "| `data_dir` | `PENSTOCK_DATA_DIR` | `--data-dir` | `topics-data` |" in page
    assert "| `max_body_bytes` | `PENSTOCK_MAX_BODY_BYTES` |  | `64 MiB` |" in page


def test_a_metric_is_listed_with_its_kind_and_labels():
    page = WANTED["metrics.md"]
    assert "| `topics_topic_head_seq` | gauge | `topic` |  | Last seq of a topic. |" in page
    assert "| `topics_wal_fsync_latency_us` | histogram | `le` |" in page


def test_every_command_shows_its_help():
    page = WANTED["cli.md"]
    assert "Usage: penstock [OPTIONS] COMMAND" in page
    for name in ("serve", "topic follow", "backup", "restore", "inspect", "demo"):
        assert f"## `penstock {name}`" in page
