"""A queue of a real server, as the client, the command and the page of the dashboard tell it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner

from penstock.cli import main
from penstock.client import Client
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api


def test_a_queue_is_told_alike_everywhere_and_its_letters_survive_a_crash(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path)
    try:
        api = Api(process.start().address)
        api.make("jobs", type="queue", dead_letter="failed", max_deliveries=1)
        api.write("jobs", *range(5))
        with Client(api.address.url) as client:
            held = client.claim("jobs", "n", count=2, lease_ms=60_000)
            client.nack("jobs", "n", held.claimed[1:], reason="it is broken")
            words = ["queue", "nack", "jobs", "1", "--node", "n", "--reason", "so I say"]
            nacked = CliRunner().invoke(main, [*words, "--url", api.address.url, "--json"])
            assert json.loads(nacked.output)["nacked"] == 1
            assert [job.seq for job in client.claim("jobs", "m", lease_ms=60_000).claimed] == [3]
            found = client.get_queue("jobs")
        assert (found.ready, found.leased, found.dead) == (2, 1, 2)
        assert [(lease.node, lease.seq) for lease in found.leases] == [("m", 3)]
        why = [(letter.src_seq, letter.reason) for letter in found.letters]
        assert why == [(2, "it is broken"), (1, "so I say")]
        page = api.get("/queues/jobs", {"Accept": "application/json"}).json["sections"]["queue"]
        assert page["letters"] == api.get("/v0/queues/jobs").json["letters"]
        assert (page["ready"], page["leased"], page["dead"]) == (2, 1, 2)
        place = ["queue", "show", "jobs", "--url", api.address.url, "--json"]
        shown = CliRunner().invoke(main, place)
        assert shown.exit_code == 0, shown.output
        assert json.loads(shown.output)["dead"] == 2
        told = CliRunner(env={"FORCE_COLOR": "1"}).invoke(main, place[:-1]).output
        for part in ("2 ready, 1 leased, 0 delayed, 2 dead", "first lease ends", "dead letter"):
            assert part in re.sub(r"\x1b\[[0-9;]*m", "", told)
        word = place[3:]
        moved = CliRunner().invoke(main, ["queue", "redrive", "jobs", "--seq", "1", *word])
        assert json.loads(moved.output)["moved"] == 1
        gone = CliRunner().invoke(main, ["queue", "discard", "jobs", "--seq", "1", "--yes", *word])
        said = json.loads(gone.output)
        assert (said["discarded"], said["skipped"], said["more"]) == (0, [1], False)
        for words in (["redrive", "jobs"], ["redrive", "jobs", "--all", "--seq", "1"]):
            refused = CliRunner().invoke(main, ["queue", *words, *word])
            assert (refused.exit_code, "say which dead letters" in refused.output) == (2, True)
        process.kill()
        with Client(process.start().address.url) as client:
            again = client.get_queue("jobs")
        assert again.letters == found.letters[:1]
        assert (again.ready, again.leased, again.dead) == (4, 0, 1)  # leases need not survive
    finally:
        process.close()
