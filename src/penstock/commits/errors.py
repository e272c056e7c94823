"""What a commit is refused with, by what its sender should do next."""

from __future__ import annotations

from typing import Any, ClassVar

from penstock.kernel.errors import Conflict, Rejected


class InvalidCommit(Rejected):
    """A field of a commit is not what the protocol allows: nothing was applied."""

    code = "invalid_request"
    status: ClassVar[int] = 400


class CommitProtocol(Rejected):
    """A session does what no session may: another payload for a number it has used, or an old one.

    Nothing was applied. Sending it again changes nothing.
    """

    code = "protocol"
    status: ClassVar[int] = 400


class CommitConflict(Conflict):
    """Something that the commit has read was written since: look again, then commit again."""

    code = "conflict"
    status: ClassVar[int] = 409

    def __init__(self, entity: str, *, basis: int, current: int, kind: str = "read") -> None:
        super().__init__(
            f"expected entity {entity!r} as it was at seq {basis}, found it written at {current}"
            if kind == "read"
            else f"expected entity {entity!r} as the session's earlier commit left it, "
            f"found that one not accepted or another write at {current}",
            entity=entity,
            basis=basis,
            current=current,
            kind=kind,
        )


class PreconditionFailed(Rejected):
    """What the commit asked for is not so and never will be: it must not be tried again."""

    code = "precondition_failed"
    status: ClassVar[int] = 412

    def __init__(self, message: str, reason: str, **detail: Any) -> None:
        super().__init__(message, reason=reason, **detail)


class RefusedByRule(Rejected):
    """A rule of the server refuses the commit, whatever the state: fix it."""

    code = "refused"
    status: ClassVar[int] = 422


class DocumentTooLarge(Rejected):
    """A write would make a document larger than a record may be: nothing was applied."""

    code = "record_too_large"
    status: ClassVar[int] = 400
