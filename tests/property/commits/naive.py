"""Commits decided the slow way: every accepted one is kept, with every document as it was.

The model has its own notion of what a write changes: the places a patch names, and besides that
the value that a reader would find, before and after. It shares no code with what it checks.
"""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any, NamedTuple

MISSING = "<missing>"
Doc = Any
Json = dict[str, Any]
KEYS = ("a", "b", "c")
ENTITIES = ("e", "f", "g")
SESSIONS = ("s", "t", "u")


class Step(NamedTuple):
    """A write of an accepted commit: the entity before and after it."""

    seq: int
    session: str
    local_seq: int
    write: Json
    before: Doc
    after: Doc


class Naive:
    """Everything that was accepted, in order."""

    def __init__(self) -> None:
        self.head = 0
        self.steps: list[Step] = []
        self.docs: dict[str, Doc] = {}
        self.answers: dict[tuple[str, int], tuple[int, str]] = {}
        self.receipts: set[str] = set()

    def copy(self) -> Naive:
        other = Naive()
        other.head, other.steps, other.docs = self.head, [*self.steps], dict(self.docs)
        other.answers, other.receipts = dict(self.answers), set(self.receipts)
        return other

    def verdict(self, commit: Json) -> str:
        """What must become of a commit: accepted, replayed, or why it is refused."""
        key = (commit["session"], commit["local_seq"])
        if key in self.answers:
            same = self.answers[key][1] == canonical(commit)
            return "replayed" if same else "protocol"
        if any(read["seq"] > self.head for read in commit.get("reads", ())):
            return "invalid"
        for wanted in commit.get("preconditions", ()):
            if wanted.get("receipt_absent") in self.receipts:
                return "receipt-exists"
            origin = wanted.get("origin_committed")
            if origin and (origin["session"], origin["local_seq"]) not in self.answers:
                return "origin-committed"
        for read in commit.get("reads", ()):
            if self.is_stale(commit, read["entity"], read["seq"], read):
                return "conflict"
        for pending in commit.get("pending_reads", ()):
            answer = self.answers.get((commit["session"], pending["local_seq"]))
            if answer is None or self.is_stale(commit, pending["entity"], answer[0], {}):
                return "conflict"
        return "accepted"

    def take(self, commit: Json) -> int:
        """Accept a commit."""
        self.head += 1
        for write in commit["writes"]:
            before = self.docs.get(write["entity"], MISSING)
            after = applied(before, write)
            self.docs[write["entity"]] = after
            key = (commit["session"], commit["local_seq"])
            self.steps.append(Step(self.head, *key, write, before, after))
        self.answers[commit["session"], commit["local_seq"]] = (self.head, canonical(commit))
        if commit.get("event_id"):
            self.receipts.add(commit["event_id"])
        return self.head

    def is_stale(self, commit: Json, entity: str, basis: int, read: Json) -> bool:
        """Whether a later write overlaps what was read, by name or by value.

        Own commits that the reader looked through do not count; nor does what one of them hid by
        writing the whole document.
        """
        named = {
            each["local_seq"]
            for each in commit.get("pending_reads", ())
            if each["entity"] == entity
        }
        path = read.get("path", "").split("/")[1:]
        stale = False
        for step in self.steps:
            if step.write["entity"] != entity or step.seq <= basis:
                continue
            if step.session == commit["session"] and step.local_seq in named:
                stale = stale and "patch" in step.write
                continue
            shallow = bool(read.get("shallow"))
            stale = (
                stale
                or named_overlap(step.write, path, shallow)
                or look(step.before, path, shallow) != look(step.after, path, shallow)
            )
        return stale


def applied(doc: Doc, write: Json) -> Doc:
    """RFC 7396, written down from its own text."""
    if write.get("delete"):
        return MISSING
    if "set" in write:
        return deepcopy(write["set"])
    return patched(None if doc == MISSING else deepcopy(doc), write["patch"])


def patched(target: Doc, patch: Doc) -> Doc:
    if type(patch) is not dict:
        return deepcopy(patch)
    if type(target) is not dict:
        target = {}
    for name in patch:
        if patch[name] is None:
            if name in target:
                del target[name]
        else:
            target[name] = patched(target.get(name), patch[name])
    return target


def named_overlap(write: Json, path: list[str], shallow: bool) -> bool:
    """By the words of the rule: a whole document always, a patch at, above or below the path."""
    if "patch" not in write:
        return True
    for leaf in leaves(write["patch"], []):
        above = path[: len(leaf)] == leaf
        below = leaf[: len(path)] == path
        if above or (below and not shallow):
            return True
    return False


def leaves(patch: Doc, here: list[str]) -> list[list[str]]:
    if type(patch) is not dict or not patch:
        return [here]
    return [leaf for name in patch for leaf in leaves(patch[name], [*here, name])]


def look(doc: Doc, path: list[str], shallow: bool) -> str:
    """What a reader finds at a path, as text; a shallow one sees only what kind of thing it is."""
    for part in path:
        if type(doc) is dict and part in doc:
            doc = doc[part]
        elif type(doc) is list and part.isdigit() and int(part) < len(doc):
            doc = doc[int(part)]
        else:
            return MISSING
    if doc == MISSING:
        return MISSING
    if shallow and isinstance(doc, dict | list):
        return type(doc).__name__
    return json.dumps(doc, sort_keys=True)


def canonical(commit: Json) -> str:
    return json.dumps(commit, sort_keys=True)


class Scribe:
    """Makes up commits of a few sessions, most of them sensible, some of them not."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.numbers = dict.fromkeys(SESSIONS, 0)
        self.sent: list[Json] = []
        self.events = 0

    def next(self, model: Naive) -> Json:
        """The next commit, given how things stand."""
        random = self.random
        if self.sent and random.random() < 0.08:
            return self.again()
        session = random.choice(SESSIONS)
        self.numbers[session] += 1
        commit: Json = {
            "session": session,
            "local_seq": self.numbers[session],
            "writes": [self.write() for _ in range(random.choice((1, 1, 1, 2, 3)))],
        }
        if random.random() < 0.85:
            commit["reads"] = [self.read(model) for _ in range(random.choice((1, 1, 2)))]
        own = [number for name, number in model.answers if name == session]
        if own and random.random() < 0.25:
            commit["pending_reads"] = [
                {"local_seq": number, "entity": random.choice(ENTITIES)}
                for number in random.sample(own, min(len(own), random.choice((1, 1, 2))))
            ]
        if random.random() < 0.2:
            commit["preconditions"] = [self.precondition(model)]
        if random.random() < 0.2:
            self.events += 1
            number = random.randrange(self.events) if random.random() < 0.3 else self.events
            commit["event_id"] = f"event-{number}"
        self.sent.append(commit)
        return commit

    def again(self) -> Json:
        """A commit of before, now and then with another payload."""
        commit: Json = deepcopy(self.random.choice(self.sent))
        if self.random.random() < 0.3:
            commit["writes"][0] = {"entity": "e", "set": "another"}
        return commit

    def read(self, model: Naive) -> Json:
        random = self.random
        lag = random.choice((0, 0, 0, 1, 2, 4, 9))
        seq = max(model.head - lag, 0) if random.random() > 0.02 else model.head + 1
        read: Json = {"entity": random.choice(ENTITIES), "seq": seq}
        depth = random.choice((0, 1, 1, 2, 3))
        if depth:
            read["path"] = "".join(f"/{random.choice((*KEYS, '0'))}" for _ in range(depth))
        if random.random() < 0.3:
            read["shallow"] = True
        return read

    def write(self) -> Json:
        random = self.random
        entity = random.choice(ENTITIES)
        kind = random.random()
        if kind < 0.08:
            return {"entity": entity, "delete": True}
        if kind < 0.25:
            return {"entity": entity, "set": self.value(3)}
        return {"entity": entity, "patch": self.patch(3)}

    def patch(self, depth: int) -> Doc:
        random = self.random
        if random.random() < 0.03:
            return self.value(1)
        names = random.sample(KEYS, random.choice((0, 1, 1, 1, 2)))
        return {
            name: None
            if random.random() < 0.15
            else self.patch(depth - 1)
            if depth > 1 and random.random() < 0.5
            else self.value(depth - 1)
            for name in names
        }

    def value(self, depth: int) -> Doc:
        random = self.random
        if depth <= 0 or random.random() < 0.3:
            return random.choice((0, 1, "x", True, None, 2.5))
        if random.random() < 0.2:
            return [self.value(depth - 1) for _ in range(random.randrange(3))]
        return {name: self.value(depth - 1) for name in random.sample(KEYS, random.randrange(4))}

    def precondition(self, model: Naive) -> Json:
        random = self.random
        if random.random() < 0.6:
            return {"receipt_absent": f"event-{random.randrange(self.events + 2)}"}
        if model.answers and random.random() < 0.7:
            session, number = random.choice(list(model.answers))
        else:
            session, number = random.choice(SESSIONS), random.randrange(1, 90)
        return {"origin_committed": {"session": session, "local_seq": number}}
