"""A small registry: a metric is declared once and appears in Prometheus text, JSON and docs.

Metrics are read on demand; counting costs nothing here.

>>> METRICS = Metrics()
>>> _ = METRICS.counter("log_syncs_total", "Syncs.", lambda log: log["syncs"], key="syncs")
>>> _ = METRICS.gauge("log_ready", "1 once it is read.", lambda log: log["ready"], key="log.ready")
>>> print(*METRICS.lines({"syncs": 3, "ready": True}), sep="\\n")
# HELP log_syncs_total Syncs.
# TYPE log_syncs_total counter
log_syncs_total 3
# HELP log_ready 1 once it is read.
# TYPE log_ready gauge
log_ready 1
>>> METRICS.values({"syncs": 3, "ready": True})
{'syncs': 3, 'log': {'ready': True}}
>>> lag = Metrics().gauges("lag", "Lag.", dict, label="partition,member", key="lag")
>>> list(lag.lines({("0", "b"): 7}))[-1], list(lag.values({("0", "b"): 7}))
('lag{partition="0",member="b"} 7', [('lag_0_b', 7)])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

S = TypeVar("S")

CONTENT_TYPE: Final = b"text/plain; version=0.0.4"
BOUND: Final = "le"
"""The label of a histogram's bounds."""


class Metric(NamedTuple):
    """A number with a name. `read` takes it from the object that is being measured."""

    name: str
    kind: str
    text: str
    read: Callable[[Any], Any]
    key: str = ""
    """Its key in JSON, with dots between levels; not in JSON if empty."""
    label: str = ""
    """The label by which `read` returns a mapping of numbers; one plain number if empty.

    Several labels have commas between them, and a key of the mapping then has a value for each.
    """
    bounds: tuple[float, ...] = ()
    """The bounds of a histogram; `read` returns its counts and sum."""

    def lines(self, source: Any) -> Iterator[str]:
        """The metric in Prometheus' text format; nothing if it has no value."""
        value = self.read(source)
        if value is None:
            return
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} {self.kind}"
        if self.bounds and self.label != BOUND:
            for name, (counts, total) in value.items():
                yield from self._buckets(counts, total, f"{self._labels(name)},")
        elif self.bounds:
            yield from self._buckets(*value)
        elif self.label:
            for name, each in value.items():
                yield f"{self.name}{{{self._labels(name)}}} {each}"
        else:
            yield f"{self.name} {int(value) if isinstance(value, bool) else value}"

    def _labels(self, key: str | tuple[str, ...]) -> str:
        values = (key,) if isinstance(key, str) else key
        labels = self.label.removesuffix(f",{BOUND}").split(",")
        pairs = zip(labels, values, strict=True)
        return ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs)

    def _buckets(self, counts: Sequence[int], total: float, labels: str = "") -> Iterator[str]:
        count, of = 0, f"{{{labels.removesuffix(',')}}}" if labels else ""
        for bound, each in zip((*self.bounds, "+Inf"), counts, strict=True):
            count += each
            yield f'{self.name}_bucket{{{labels}{BOUND}="{bound}"}} {count}'
        yield f"{self.name}_sum{of} {total}"
        yield f"{self.name}_count{of} {count}"

    def values(self, source: Any) -> Iterator[tuple[str, Any]]:
        """Its values in JSON, by key."""
        if not self.key:
            return
        value = self.read(source)
        if value is None:
            return
        if self.bounds:
            yield f"{self.key}_count", sum(value[0])
            yield f"{self.key}_micros_total", value[1]
        elif self.label:
            for name, each in value.items():
                yield f"{self.key}_{name if isinstance(name, str) else '_'.join(name)}", each
        else:
            yield self.key, value


class Metrics(Generic[S]):
    """The metrics of one program, in the order in which they were declared."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []

    def counter(
        self, name: str, text: str, read: Callable[[S], int | None], *, key: str = ""
    ) -> Metric:
        """Declare a number that only grows; None where it has no value."""
        return self._add(Metric(name, "counter", text, read, key))

    def gauge(
        self, name: str, text: str, read: Callable[[S], float | None], *, key: str = ""
    ) -> Metric:
        """Declare a number that goes up and down; None where it has no value."""
        return self._add(Metric(name, "gauge", text, read, key))

    def counters(
        self,
        name: str,
        text: str,
        read: Callable[[S], Mapping[Any, float] | None],
        *,
        label: str,
        key: str = "",
    ) -> Metric:
        """Declare a counter for every value of a label, or of several with commas between them."""
        return self._add(Metric(name, "counter", text, read, key, label))

    def gauges(
        self,
        name: str,
        text: str,
        read: Callable[[S], Mapping[Any, float] | None],
        *,
        label: str,
        key: str = "",
    ) -> Metric:
        """Declare a gauge for every value of a label, or of several with commas between them."""
        return self._add(Metric(name, "gauge", text, read, key, label))

    def histogram(
        self,
        name: str,
        text: str,
        read: Callable[[S], tuple[Sequence[int], float] | None],
        *,
        bounds: tuple[int, ...],
        key: str = "",
    ) -> Metric:
        """Declare a distribution: counts for each bound and one beyond, and the sum.

        With a key the sum is in µs, as its name in JSON says. None where it has no value.
        """
        return self._add(Metric(name, "histogram", text, read, key, BOUND, bounds))

    def histograms(
        self,
        name: str,
        text: str,
        read: Callable[[S], Mapping[Any, tuple[Sequence[int], float]]],
        *,
        label: str,
        bounds: tuple[float, ...],
    ) -> Metric:
        """Declare a distribution for every value of a label; it is not in JSON."""
        return self._add(Metric(name, "histogram", text, read, "", f"{label},{BOUND}", bounds))

    def lines(self, source: S) -> Iterator[str]:
        """All of them in Prometheus' text format, generated one by one."""
        for metric in self.metrics:
            yield from metric.lines(source)

    def values(self, source: S, names: Collection[str] = ()) -> dict[str, Any]:
        """Those that are in JSON, or some of them by their keys, as plain values."""
        found: dict[str, Any] = {}
        for metric in self.metrics:
            if names and metric.key not in names:
                continue
            *levels, last = metric.key.split(".")
            for key, value in metric.values(source):
                place = found
                for level in levels:
                    place = place.setdefault(level, {})
                place[last + key.removeprefix(metric.key)] = value  # a label's value may have dots
        return found

    def _add(self, metric: Metric) -> Metric:
        self.metrics.append(metric)
        return metric


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def as_text(lines: Iterable[str]) -> bytes:
    """Lines as the body of an answer of type `CONTENT_TYPE`."""
    return ("\n".join(lines) + "\n").encode()
