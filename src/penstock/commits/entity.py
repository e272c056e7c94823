"""One entity: its document, and enough of its history to tell whether a read is stale.

A set of the whole document hides everything before it. Of the patches since then, the last few are
kept with the paths they touched; older ones count as touching everything, which may refuse too much
and never misses a conflict.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from penstock.commits.model import ABSENT, ROOT, Path, any_meet, merge_patch, touched
from penstock.protocol.commits import CommitWrite
from penstock.protocol.errors import RecordTooLarge

TOUCHES_MAX: Final = 32
"""How many patches of an entity are kept individually."""
PATHS_MAX: Final = 64
"""A patch that touches more paths than this counts as touching the whole document."""

encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder().decode
_WHOLE: Final = (ROOT,)
_NOBODY: Final[Container[int]] = ()


class PatchPaths(Struct, frozen=True, array_like=True, gc=False):
    """A patch: its commit, and the paths it touched."""

    seq: int
    session: str
    local_seq: int
    paths: tuple[Path, ...]


class Entity(Struct, frozen=True, array_like=True, gc=False):
    """The state of an entity. No `document` if it was deleted, or never existed.

    `seq` is its last write. `reset_seq` is its last set or delete, with the commit that did it;
    `floor_seq` is the last of the patches since then that are no longer kept individually.
    """

    document: bytes | None
    seq: int
    reset_seq: int = 0
    reset_session: str = ""
    reset_local_seq: int = 0
    floor_seq: int = 0
    touches: tuple[PatchPaths, ...] = ()


NEVER: Final = Entity(None, 0)


def document_of(entity: Entity) -> Any:
    """The document, or `ABSENT`."""
    return ABSENT if entity.document is None else decode(entity.document)


def written(entity: Entity, write: CommitWrite, touch: PatchPaths, bytes_max: int) -> Entity:
    """The entity after a write; `touch` has its commit and seq, its paths are ignored."""
    if write.delete:
        return Entity(None, touch.seq, touch.seq, touch.session, touch.local_seq)
    if write.set is not UNSET:
        document = encode(write.set)
        _check_size(write.entity, document, bytes_max)
        return Entity(document, touch.seq, touch.seq, touch.session, touch.local_seq)
    before = document_of(entity)
    document = encode(merge_patch(before, write.patch))
    _check_size(write.entity, document, bytes_max)
    paths = _WHOLE if before is ABSENT else touched(before, write.patch)
    if len(paths) > PATHS_MAX:
        paths = _WHOLE
    touches = (*entity.touches, PatchPaths(touch.seq, touch.session, touch.local_seq, paths))
    floor_seq = entity.floor_seq
    if len(touches) > TOUCHES_MAX:
        floor_seq, touches = touches[0].seq, touches[1:]
    return Entity(
        document,
        touch.seq,
        entity.reset_seq,
        entity.reset_session,
        entity.reset_local_seq,
        floor_seq,
        touches,
    )


def is_stale(
    entity: Entity,
    basis: int,
    path: Path = ROOT,
    *,
    shallow: bool = False,
    session: str = "",
    seen: Container[int] = _NOBODY,
) -> bool:
    """Whether a path that was read as of a seq may have been written since.

    The writes of the session's own commits that were `seen` do not count.
    """
    if entity.seq <= basis:
        return False
    if entity.reset_seq > basis and not (
        entity.reset_session == session and entity.reset_local_seq in seen
    ):
        return True
    if entity.floor_seq > basis:
        return True
    return any(
        touch.seq > basis
        and not (touch.session == session and touch.local_seq in seen)
        and any_meet(path, touch.paths, shallow=shallow)
        for touch in entity.touches
    )


def _check_size(entity: str, document: bytes, bytes_max: int) -> None:
    if len(document) > bytes_max:
        raise RecordTooLarge(
            f"the document of entity {entity!r} would have {len(document)} bytes: at most "
            f"{bytes_max} are allowed",
            entity=entity,
            max=bytes_max,
        )
