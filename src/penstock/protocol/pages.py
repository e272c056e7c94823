"""The pages of the dashboard as data: paths, titles, and the routes that a page's facts come from.

A page is a list of sections. A section is the answer of a `GET` route, without its `performance`
and `at`: the twin of a page is made of them, and so are the frames of its live stream.

>>> page, names = find_page("/entities/tariffs/meter-7")
>>> page.name, names
('entity', {'name': 'tariffs', 'id': 'meter-7'})
>>> find_page("/topics/") is None, page_of("topic").path_of({"name": "a:b"})
(True, '/topics/a:b')
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

HISTORY_MS: Final = 120_000
"""How much history the twin of a page has; a page asks for longer ranges itself."""
RESUME_MS: Final = 900_000
"""A stream that comes back within this time gets what it missed."""
CHARTED: Final = ("in", "pushed", "commit_p50_ms", "commit_p99_ms", "push_p99_ms", "pressure")
"""The series of the overview."""

ANSWER: Final = "answer"
HISTORY: Final = "history"
"""Columns over time: frames append to them."""
EVENTS: Final = "events"
"""What happened lately: told by `event`, never by frames."""
PEEK: Final = "peek"
"""The newest records of the topic: followed by `peek`."""
TABLES: Final = "tables"
"""The oldest stream tables of the graph."""
NAV: Final = "nav"
"""How many there are of each kind: put together from the routes that count them."""


class Section(NamedTuple):
    """A part of a page: the answer of a route.

    `{name}` and `{id}` in `route` are those in the page's path, `{space}` and other words are in
    its query: without them there is no such section. `passes` are keys of the page's query that
    the route takes as well.
    """

    name: str
    route: str
    query: str = ""
    kind: str = ANSWER
    passes: tuple[str, ...] = ()
    omits: tuple[str, ...] = ()
    """Members of the answer that this page does not show."""
    keeps: tuple[str, ...] = ()
    """The only members that it shows, if any are named."""
    every_s: int = 1
    """How often frames look at it; 0: only the state has it."""
    since: str = ""
    """A key of the route's query: the time since when, in ms."""


class Page(NamedTuple):
    """A page: its path, what it is called, what it is asked for, and its sections."""

    name: str
    path: str
    title: str
    question: str
    sections: tuple[Section, ...]
    query: tuple[str, ...] = ()
    """Keys of its query that choose what its sections show."""

    def path_of(self, names: Mapping[str, str]) -> str:
        """Its path with names filled in."""
        return filled(self.path, names)

    def title_of(self, names: Mapping[str, str]) -> str:
        """What it is called: by the innermost name, if it has one."""
        return names.get("id") or names.get("name") or self.title


class Source(NamedTuple):
    """Where a section of one page comes from: a path and a query of `/v0`."""

    section: Section
    path: str
    query: str


_VERDICT: Final = Section("verdict", "/v0/verdict")
_NAV: Final = Section("nav", "/v0/metrics", kind=NAV, every_s=5)
_HEAD: Final = (_VERDICT, _NAV)
"""What every page has."""
_SCHEDULER: Final = Section("scheduler", "/v0/scheduler")
_COUNTED: Final = (
    "topics", "routers", "records_live", "bytes_live", "queue_topics", "sse_connections",
)  # fmt: skip
_COUNTS: Final = Section("counts", "/v0/metrics", f"names={','.join(_COUNTED)}", keeps=_COUNTED)
_WAREHOUSE: Final = Section("warehouse", "/v0/warehouse")
_TOPIC: Final = Section("topic", "/v0/topics/{name}", "touch=false")
_TOPIC_HISTORY: Final = Section(
    "history", "/v0/topics/{name}/history", "step=1s", kind=HISTORY, since="since"
)
_WATCHERS: Final = Section("watchers", "/v0/topics/{name}/watchers", "limit=20")

PAGES: Final = (
    Page(
        "overview",
        "/",
        "Overview",
        "Is everything all right, and if not, where?",
        (
            *_HEAD,
            _SCHEDULER,
            Section("pipeline", "/v0/pipeline", omits=("decisions",)),
            Section(
                "history",
                "/v0/history",
                f"step=1s&series={','.join(CHARTED)}",
                kind=HISTORY,
                since="since",
            ),
            Section("waiting", "/v0/waiting", "limit=8"),
            Section("events", "/v0/events", "limit=20", kind=EVENTS),
            Section("tables", "/v0/graph", kind=TABLES),
            Section("lake", "/v0/lake", every_s=5),
            _COUNTS,
        ),
    ),
    Page(
        "topics",
        "/topics",
        "Topics",
        "What is busy, and what is behind?",
        (
            *_HEAD,
            Section(
                "topics",
                "/v0/topics",
                "page_size=50&sort=rate",
                passes=("prefix", "sort", "type", "cursor"),
            ),
            _COUNTS,
        ),
        ("prefix", "sort", "type", "cursor"),
    ),
    Page(
        "topic",
        "/topics/{name}",
        "Topic",
        "What comes in, what gets it, what holds a push up?",
        (
            *_HEAD,
            _TOPIC,
            Section(
                "push",
                "/v0/scheduler",
                "topic={name}",
                keeps=("topic", "pressure", "rung", "coalesce_ms", "refusing", "latency_us"),
            ),
            _WATCHERS,
            _TOPIC_HISTORY,
            Section("partition", "/v0/topics/{name}/partitions"),
            Section("peek", "/v0/topics/{name}", kind=PEEK),
        ),
        ("tag",),
    ),
    Page(
        "queue",
        "/queues/{name}",
        "Queue",
        "Do the workers keep up, and what failed?",
        (*_HEAD, Section("queue", "/v0/queues/{name}"), _TOPIC, _WATCHERS, _TOPIC_HISTORY),
    ),
    Page(
        "pipeline",
        "/pipeline",
        "Pipeline",
        "What holds it up, and for how long?",
        (
            *_HEAD,
            Section("pipeline", "/v0/pipeline"),
            Section("history", "/v0/pipeline/history", kind=HISTORY, since="since"),
        ),
    ),
    Page(
        "tables",
        "/tables",
        "Tables",
        "What is not fresh, and why?",
        (
            *_HEAD,
            Section("graph", "/v0/graph"),
            _WAREHOUSE,
            Section("jobs", "/v0/warehouse/jobs", "limit=200", since="since_ms"),
        ),
    ),
    Page(
        "table",
        "/tables/{name}",
        "Table",
        "How old is it, why, and what does a refresh cost?",
        (
            *_HEAD,
            Section("table", "/v0/tables/{name}"),
            Section("why", "/v0/tables/{name}/why"),
            Section("explain", "/v0/tables/{name}/explain", every_s=10),
            Section("refreshes", "/v0/tables/{name}/history", "limit=40"),
            _WAREHOUSE,
            Section("rows", "/v0/tables/{name}/rows", "limit=20", every_s=0),
        ),
    ),
    Page(
        "entities",
        "/entities",
        "Entities",
        "Which spaces are there, and what is in them?",
        (
            *_HEAD,
            Section("spaces", "/v0/spaces"),
            Section("entities", "/v0/spaces/{space}/entities", "limit=50", passes=("prefix",)),
        ),
        ("space", "prefix"),
    ),
    Page(
        "entity",
        "/entities/{name}/{id}",
        "Entity",
        "What is it now, what changed it, did my change land?",
        (
            *_HEAD,
            Section("entity", "/v0/spaces/{name}/entities/{id}"),
            Section("commits", "/v0/spaces/{name}/entities/{id}/history", "last=40"),
        ),
    ),
    Page(
        "lake",
        "/lake",
        "Lake",
        "What is in it?",
        (
            *_HEAD,
            Section("lake", "/v0/lake", every_s=5),
            Section("tables", "/v0/lake/tables", every_s=5),
            Section("snapshots", "/v0/lake/snapshots", "limit=20", every_s=5),
        ),
    ),
    Page(
        "cluster",
        "/cluster",
        "Cluster",
        "Which parts run where, since when, how far behind?",
        (
            *_HEAD,
            Section("parts", "/v0/parts"),
            _SCHEDULER,
            _WAREHOUSE,
            Section("nodes", "/v0/cluster"),
        ),
    ),
)
_BY_NAME: Final = {page.name: page for page in PAGES}
_BY_SHAPE: Final = {
    tuple("" if part.startswith("{") else part for part in page.path.split("/")[1:]): page
    for page in PAGES
}
"""Pages by the parts of their paths, names left empty."""


def page_of(name: str) -> Page | None:
    """A page by its name."""
    return _BY_NAME.get(name)


def find_page(path: str) -> tuple[Page, dict[str, str]] | None:
    """The page at a path, and the names in it; None if there is none."""
    root, *parts = path.split("/")
    if root or not parts:
        return None
    shape = (parts[0], *("" for _ in parts[1:]))
    page = _BY_SHAPE.get(shape)
    if page is None or (len(parts) > 1 and not all(parts)):
        return None
    keys = [part.strip("{}") for part in page.path.split("/")[2:]]
    return page, dict(zip(keys, map(unquote, parts[1:]), strict=True))


def sources(page: Page, names: Mapping[str, str], query: Mapping[str, str]) -> list[Source]:
    """Where the sections of a page come from."""
    known = {**query, **names}
    return [
        Source(section, filled(section.route, known), _query(section, known))
        for section in page.sections
        if all(known.get(word) for word in words_of(section.route))
    ]


def parse_address(address: str) -> tuple[Page, dict[str, str], dict[str, str]] | None:
    """The page at an address like `/topics?prefix=a`, its names, and what counts of its query."""
    path, _, query = address.partition("?")
    found = find_page(path)
    if found is None:
        return None
    page, names = found
    return page, names, chosen(page, query)


def chosen(page: Page, query: str) -> dict[str, str]:
    """The values of a query that choose what the sections of a page show."""
    values = dict(parse_qsl(query, errors="replace"))
    return {key: values[key] for key in page.query if key in values}


def address_of(page: Page, names: Mapping[str, str], query: Mapping[str, str]) -> str:
    """The address of a page: its path, and what counts of its query."""
    tail = urlencode({key: query[key] for key in page.query if query.get(key)})
    return page.path_of(names) + (f"?{tail}" if tail else "")


def live_path(page: Page, names: Mapping[str, str], query: Mapping[str, str]) -> str:
    """The address of the stream of a page."""
    return f"/v0/live?{urlencode({'on': address_of(page, names, query)})}"


def words_of(template: str) -> list[str]:
    """The words in braces of a path.

    >>> words_of("/v0/spaces/{name}/entities/{id}")
    ['name', 'id']
    """
    return [part.partition("}")[0] for part in template.split("{")[1:]]


def filled(template: str, values: Mapping[str, str]) -> str:
    """A path with its words replaced by values, quoted."""
    for word in words_of(template):
        template = template.replace(f"{{{word}}}", quote(values[word], safe=":"))
    return template


def _query(section: Section, known: Mapping[str, str]) -> str:
    passed = urlencode({key: known[key] for key in section.passes if known.get(key)})
    # What the page's query chooses stands first: of a key that is there twice, the first counts.
    return "&".join(filter(None, (passed, filled(section.query, known))))
