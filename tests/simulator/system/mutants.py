"""One mistake each in what drives a core. Every one must be found by a pinned seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.log.store import SetHardState, Sync
from penstock.raft.group import Group, OnDone, _Proposal
from penstock.raft.ready import NotLeader, Ready
from penstock.topics.core.partition import Partition

Patch = tuple[type, str, Callable[..., Any]]

_do, _operations = Group._do, Group._operations


def _answers_before_the_sync(group: Group, ready: Ready) -> None:
    ready.now = [*ready.now, *ready.after]
    ready.after = ()
    _do(group, ready)


def _forgets_the_hard_state(group: Group, ready: Ready) -> Sequence[Any]:
    found = [each for each in _operations(group, ready) if type(each) is not SetHardState]
    return found or [Sync(group.partition)]


def _says_that_lost_proposals_are_not_there(group: Group) -> None:
    lost = list(group._proposed)
    group._proposed.clear()
    for each in lost:
        each.done(NotLeader("leadership lost", leader=0))


def _acknowledges_what_it_proposed(group: Group, payload: bytes, done: OnDone, **_: Any) -> int:
    index = group.core.propose(payload)
    group._proposed.append(_Proposal(index, group.core.term, lambda _error: None))
    done(None)
    group._settle()
    return index


def _keeps_what_was_staged(_partition: Partition, _staged: object = None) -> None:
    pass


def _confirms_refused_writes(group: Group, _error: Exception) -> None:
    group._confirm(1)


MUTANTS: dict[str, Patch] = {
    "answers before the sync": (Group, "_do", _answers_before_the_sync),
    "forgets the hard state": (Group, "_operations", _forgets_the_hard_state),
    "calls lost proposals refused": (
        Group, "_lose_proposals", _says_that_lost_proposals_are_not_there,
    ),
    "acknowledges what it proposed": (Group, "propose", _acknowledges_what_it_proposed),
    "keeps what was staged": (Partition, "abandon", _keeps_what_was_staged),
    "confirms refused writes": (Group, "_not_written", _confirms_refused_writes),
}  # fmt: skip
