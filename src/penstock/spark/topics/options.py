"""The options of the format `penstock`, as Spark hands them over: texts, in any case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal, cast

from penstock.kernel.errors import Rejected
from penstock.spark.topics.http import TopicAddress
from penstock.spark.topics.pages import Lost

DEFAULT_URL: Final = "http://127.0.0.1:4000"
_COMMON: Final = ("url", "topic", "api_key", "timeout_s")
_SOURCE: Final = (
    "from_seq", "upto_seq", "epoch", "lost", "partitions", "partition_rows_min", "max_rows",
    "max_bytes", "min_rows",
)  # fmt: skip
_SINK: Final = ("write_id", "create", "batch_rows", "checkpointlocation", "path")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read. `from_seq` is a seq to begin after, `earliest` or `latest`.

    `max_rows`, `max_bytes` or `min_rows` limit each batch of a stream; a batch read takes all.
    """

    address: TopicAddress
    from_seq: int | Literal["earliest", "latest"] = "earliest"
    upto_seq: int | None = None
    epoch: int | None = None
    lost: Lost = "fail"
    partitions: int = 2
    partition_rows_min: int = 50_000
    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None

    def as_options(self) -> dict[str, str]:
        """The same as texts, for a query's `options`."""
        address = self.address
        found = {"url": address.url, "topic": address.topic, "timeout_s": str(address.timeout_s)}
        if address.api_key is not None:
            found["api_key"] = address.api_key
        values = {name: getattr(self, name) for name in _SOURCE}
        return found | {name: str(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to write. `write_id` names a batch write, so that doing it again changes nothing."""

    address: TopicAddress
    write_id: str | None = None
    create: bool = False
    batch_rows: int = 1_000


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a source; an unknown one is refused with the nearest known."""
    texts = _known(given, (*_COMMON, *_SOURCE))
    lost = texts.get("lost", "fail").lower()
    if lost not in ("fail", "pass"):
        raise Rejected(f"lost must be 'fail' or 'pass', not {lost!r}")
    limits = [name for name in ("max_rows", "max_bytes", "min_rows") if name in texts]
    if len(limits) > 1:
        raise Rejected(f"a batch takes one limit: choose between {' and '.join(limits)}")
    return SourceOptions(
        _address(texts),
        from_seq=_from_seq(texts.get("from_seq", "earliest")),
        upto_seq=_number(texts, "upto_seq", 0),
        epoch=_number(texts, "epoch", 0),
        lost=cast(Lost, lost),
        partitions=_number(texts, "partitions", 1) or 2,
        partition_rows_min=_number(texts, "partition_rows_min", 1) or 50_000,
        max_rows=_number(texts, "max_rows", 1),
        max_bytes=_number(texts, "max_bytes", 1),
        min_rows=_number(texts, "min_rows", 1),
    )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a sink; an unknown one is refused with the nearest known."""
    texts = _known(given, (*_COMMON, *_SINK))
    create = texts.get("create", "false").lower()
    if create not in ("true", "false"):
        raise Rejected(f"create must be 'true' or 'false', not {create!r}")
    batch_rows = _number(texts, "batch_rows", 1) or 1_000
    return SinkOptions(_address(texts), texts.get("write_id"), create == "true", batch_rows)


def _known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    texts = {name.lower(): value for name, value in given.items()}
    for name in texts:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise Rejected(f"the format penstock has no option {name!r}{hint}")
    return texts


def _address(texts: Mapping[str, str]) -> TopicAddress:
    topic = texts.get("topic")
    if topic is None:
        raise Rejected("the option 'topic' is missing")
    timeout = texts.get("timeout_s", "30")
    try:
        timeout_s = float(timeout)
    except ValueError:
        raise Rejected(f"timeout_s must be a number, not {timeout!r}") from None
    return TopicAddress(texts.get("url", DEFAULT_URL), topic, texts.get("api_key"), timeout_s)


def _from_seq(text: str) -> int | Literal["earliest", "latest"]:
    word = text.lower()
    if word == "earliest" or word == "latest":
        return cast(Literal["earliest", "latest"], word)
    if not word.isdecimal():
        raise Rejected(f"from_seq must be a seq, 'earliest' or 'latest', not {text!r}")
    return int(word)


def _number(texts: Mapping[str, str], name: str, least: int) -> int | None:
    text = texts.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise Rejected(f"{name} must be a whole number of at least {least}, not {text!r}")
    return int(text)
