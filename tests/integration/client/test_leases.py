"""Workers with short leases against a real server: no job runs twice unless its lease was lost."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.client import AsyncClient, AsyncJob, Client, ClientSettings, Job
from penstock.client.errors import LeaseLost
from penstock.flow.backoff import Backoff
from tests.conformance.servers import ServerProcess
from tests.waiting import until, wait_until

LIMIT_S = 60.0
LEASE_MS = 2_000
"""Half of it is time enough on a busy machine."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = ServerProcess(tmp_path, PORT=port)  # the same when it is started again
    try:
        yield process.start()
    finally:
        process.close()


def settings_of(server: ServerProcess) -> ClientSettings:
    address = server.address
    reconnect = Backoff(base_ms=10, cap_ms=100, jitter=0.5, window_ms=LIMIT_S * 1_000)
    return ClientSettings(f"http://{address.host}:{address.port}", reconnect=reconnect)


def is_past(job: Job | AsyncJob) -> bool:
    """Whether the lease would be long over, had it not been extended."""
    return time.time() * 1_000 > job.deadline_ms + LEASE_MS


def work_long_on(job: Job | AsyncJob) -> None:
    """Longer than a lease; nothing else runs in this thread meanwhile."""
    wait_until(lambda: is_past(job), "the end of the lease")


def filled(client: Client, *jobs: str, **options: object) -> None:
    client.put_topic("q", type="queue", **{"lease_ms": LEASE_MS, **options})
    client.write("q", jobs)


def test_a_slow_worker_with_jobs_in_advance_runs_each_once(server):
    with Client(settings_of(server)) as client:
        filled(client, *"abcdef")
        done = []
        with client.work("q", "me", count=4) as work:
            for job in work:
                with job:
                    if job.data in "ad":
                        work_long_on(job)
                    done.append((job.data, job.deliveries))
                if job.data == "f":
                    break
        assert done == [(name, 1) for name in "abcdef"]
        assert client.get_topic("q").count == 0


def test_a_slow_async_worker_with_jobs_in_advance_runs_each_once(server):
    async def run() -> None:
        async with AsyncClient(settings_of(server)) as client:
            await client.put_topic("q", type="queue", lease_ms=LEASE_MS)
            await client.write("q", list("abcdef"))
            done = []
            async with client.work("q", "me", count=4) as work:
                async for job in work:
                    async with job:
                        if job.data in "ad":
                            await until(partial(is_past, job), "the end of the lease")
                        done.append((job.data, job.deliveries))
                    if job.data == "f":
                        break
            assert done == [(name, 1) for name in "abcdef"]
            assert (await client.get_topic("q")).count == 0

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


def test_a_handler_that_blocks_the_loop_past_the_lease_is_told_and_no_old_job_is_handed_out(server):
    """Nothing can be extended while the loop stands still, so these leases are truly lost."""

    async def done_late(job: AsyncJob) -> None:
        async with job:
            work_long_on(job)

    async def run() -> None:
        async with AsyncClient(settings_of(server)) as client:
            await client.put_topic("q", type="queue", lease_ms=LEASE_MS)
            await client.write("q", list("abc"))
            runs = []
            async with client.work("q", "me", count=3) as work:
                first = await anext(work)
                runs.append(first.data)
                with pytest.raises(LeaseLost) as lost:
                    await done_late(first)
                assert lost.value.detail == {"topic": "q", "seq": 1}
                async for job in work:
                    async with job:
                        assert job.deliveries > 1, "the first lease of each was over"
                        runs.append(job.data)
                    if len(runs) == 4:
                        break
            assert sorted(runs) == ["a", "a", "b", "c"]

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


def test_without_extension_an_old_job_is_not_handed_out_and_a_lost_lease_is_told(server):
    with Client(settings_of(server)) as client:
        filled(client, "a", "b")
        with client.work("q", "me", count=2, extend_leases=False) as work:
            first = next(work)
            with pytest.raises(LeaseLost, match="the lease of job 1 of 'q' was lost"), first:
                work_long_on(first)
            is_done = False
            while not is_done:  # a busy machine may lose one more lease
                second = work.next_job(LIMIT_S)
                assert second.deliveries > 1, "its first lease was over"
                is_done = second.ack()


def test_without_extension_a_program_can_extend_a_lease_itself(server):
    with Client(settings_of(server)) as client:
        filled(client, "a")
        with client.work("q", "me", extend_leases=False) as work, next(work) as job:
            assert job.extend(60_000)
            work_long_on(job)


def test_an_error_in_a_job_is_raised_as_it_is_also_when_the_lease_was_lost(server):
    with Client(settings_of(server)) as client:
        filled(client, "a")
        with client.work("q", "me", extend_leases=False) as work:
            job = next(work)
            work_long_on(job)
            with pytest.raises(ZeroDivisionError), job:
                raise ZeroDivisionError


@pytest.mark.parametrize("durable", [False, True], ids=["forgotten", "durable"])
def test_a_lease_outlives_a_killed_server_only_if_leases_are_durable(server, durable):
    with Client(settings_of(server)) as client:
        filled(client, "a", lease_ms=30_000, leases_durable=durable, durability="fsync")
        with client.work("q", "me") as work:
            job = next(work)
            server.kill()
            server.start()
            if durable:
                with job:
                    pass
                return
            with pytest.raises(LeaseLost), job:
                wait_until(lambda: job.lease_lost)
            again = work.next_job(LIMIT_S)
            assert (again.data, again.ack()) == ("a", True)


def test_closing_a_stream_gives_its_jobs_to_the_next_worker_at_once(server):
    with Client(settings_of(server)) as client:
        filled(client, "a", "b", lease_ms=3_600_000)
        with client.work("q", "me", count=2) as work:
            held = next(work)
        assert next(work, None) is None
        with client.work("q", "you", count=2) as work:
            assert sorted(work.next_job(LIMIT_S).data for _ in range(2)) == ["a", "b"]
            assert not held.ack()


def test_a_job_that_the_program_lets_go_of_comes_back_when_its_lease_is_over(server):
    with Client(settings_of(server)) as client:
        filled(client, "a")
        with client.work("q", "me") as work:
            next(work)
            gc.collect()
            again = work.next_job(LIMIT_S)
            assert again.data == "a"
            assert again.deliveries > 1


def test_a_stream_that_the_program_lets_go_of_ends(server):
    with Client(settings_of(server)) as client:
        filled(client, "a", lease_ms=3_600_000)

        def waiting() -> bool:
            gc.collect()
            return client.get_topic("q").queue.ready == 1

        job = next(client.work("q", "me"))
        wait_until(lambda: not waiting())
        del job
        wait_until(waiting)


def test_several_threads_take_jobs_from_one_stream(server):
    with Client(settings_of(server)) as client:
        filled(client, *(str(number) for number in range(40)))
        done: list[str] = []

        def run() -> None:
            for job in work:
                with job:
                    done.append(job.data)

        with client.work("q", "me", count=8) as work:
            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            wait_until(lambda: len(done) >= 40 and client.get_topic("q").count == 0)
            work.close()
            for thread in threads:
                thread.join(LIMIT_S)
                assert not thread.is_alive()
        assert sorted(done, key=int) == [str(number) for number in range(40)]
