"""Topics with routers that are made and dropped all the time: no router outlives its topics."""

from __future__ import annotations

from random import Random

from tests.integration.server.crash.names import placed
from tests.integration.server.crash.wire import Wire


class Churn:
    """A client that makes routers on both partitions and drops topics under them."""

    def __init__(self, name: str, seed: int) -> None:
        self._random = Random(seed)
        self._source = placed(f"{name}-src", 1)
        self._dests = [placed(f"{name}-a", 0), placed(f"{name}-b", 1)]
        self._router = f"{name}>"
        self.answered = 0

    async def act(self, wire: Wire) -> None:
        roll = self._random.random()
        dest = self._random.choice(self._dests)
        if roll < 0.4:
            body = {"source": self._source, "dest": dest}
            (await wire.ask("PUT", f"/v0/routers/{self._router}{dest}", body)).ok()
        elif roll < 0.8:
            body = {"records": [{"data": roll}]}
            (await wire.ask("POST", f"/v0/topics/{self._source}", body)).ok()
        else:
            gone = self._random.choice([self._source, dest])
            (await wire.ask("DELETE", f"/v0/topics/{gone}")).ok()
        self.answered += 1

    async def check(self, wire: Wire) -> None:
        """Every router of the server leads from a topic to a topic."""
        told = (await wire.ask("GET", "/v0/routers?page_size=1000")).ok()
        for router in told["routers"]:
            for end in ("source", "dest"):
                status = (await wire.ask("GET", f"/v0/topics/{router[end]}")).status
                assert status == 200, f"{router} has no {end}"

    async def finish(self, wire: Wire) -> None:
        await self.check(wire)
