"""Jobs of a queue as JSON, for the answer to a claim and for the events of a worker."""

from __future__ import annotations

from penstock.server.api.answers import encode
from penstock.topics.core.leases import lease_token
from penstock.topics.engine.queues import Job


def job_json(job: Job) -> bytes:
    """A job as a worker gets it: its lease and the record, with payloads as written."""
    return b"{%b}" % _members(job)


def job_event(topic: str, job: Job) -> bytes:
    """The data of a job event."""
    return b'{"topic":"%b",%b}' % (topic.encode(), _members(job))


def _members(job: Job) -> bytes:
    lease, slot = job
    record = slot.record
    tag = b"" if record.tag is None else b',"$tag":%b' % encode(record.tag)
    meta = b"" if record.meta is None else b',"meta":%b' % bytes(record.meta)
    return b'"$seq":%d,"lease_id":"%b","deadline":%d,"$ts":%d%b,"deliveries":%d,"data":%b%b' % (
        slot.seq,
        lease_token(lease.fence).encode(),
        lease.deadline_ms,
        slot.ts_ms,
        tag,
        lease.deliveries,
        bytes(record.data),
        meta,
    )
