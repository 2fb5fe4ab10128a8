"""Faults, each real: what a cluster does to a controller on a bad day."""

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from math import ceil

import aiohttp

from tests.integration.replicas import Replica
from tests.integration.servers import eventually
from tests.kubernetes.admin import AdminError

from .stage import Stage
from .users import ABSENT, insist

FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"
REFUSED_GROUP = "system:serviceaccounts"
NO_SEAT = {
    "metadata": {"name": "fire-no-seat"},
    "spec": {
        "type": "Limited",
        "limited": {
            "nominalConcurrencyShares": 0,
            "lendablePercent": 0,
            "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"},
        },
    },
}
EVERYTHING = {
    "subjects": [{"kind": "Group", "group": {"name": REFUSED_GROUP}}],
    "resourceRules": [
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True, "namespaces": ["*"]}
    ],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
}
REFUSE = {
    "metadata": {"name": "fire-refuse"},
    "spec": {
        "priorityLevelConfiguration": {"name": "fire-no-seat"},
        "matchingPrecedence": 2,
        "rules": [EVERYTHING],
    },
}
AHEAD_SECONDS = 60.0


class Faults:
    """Causes one fault after another; each has ended when the next one begins.

    Attributes:
        noted: The time and the kind of each fault.
    """

    KINDS = frozenset({"kill", "pause", "restart", "410", "429", "adapter", "clock", "rolling"})

    def __init__(self, stage: Stage) -> None:
        self.noted: list[tuple[float, str]] = []
        self._stage = stage
        self._size = stage.size
        self._replicas = stage.replicas
        self._plane = stage.plane
        self._admin = stage.admin
        self._adapter = stage.adapter
        self._chance = random.Random("faults")
        self._victims = self._all_in_turn()
        self._kinds = (
            self._kill,
            self._pause,
            self._restart_api_server,
            self._expire_watches,
            self._refuse_requests,
            self._lose_adapter,
            self._set_clock_ahead,
        )

    async def go_on(self) -> None:
        """Every kind in each round; after a third of the rounds also the rolling restart."""
        for number in range(1, self._size.rounds + 1):
            for fault in self._chance.sample(self._kinds, k=len(self._kinds)):
                began = time.time()
                await fault()
                await asyncio.sleep(max(0, began + self._size.fault_seconds - time.time()))
            # Early, since only the memory of long-lived processes is compared.
            if number == ceil(self._size.rounds / 3):
                await self.rolling_restart()

    async def rolling_restart(self) -> None:
        """All workers at once: a replica ends in order and starts again; the other follows when it is ready."""
        self._note("rolling restart")

        async def restart(replicas: Sequence[Replica]) -> None:
            for each in replicas:
                each.send(signal.SIGTERM)
                await eventually(partial(_has_ended, each), every=0.05)
                each.start()
                await each.ready()

        by_worker = groupby(self._replicas, key=_worker)
        await asyncio.gather(*(restart(list(replicas)) for _, replicas in by_worker))

    async def _kill(self) -> None:
        victim = next(self._victims)
        self._note("kill", victim.name)
        victim.kill()
        await asyncio.sleep(self._chance.uniform(0, self._part(0.2)))
        victim.start()

    async def _pause(self) -> None:
        victim = next(self._victims)
        self._note("pause", victim.name)
        victim.pause()
        await asyncio.sleep(self._part(0.7))
        victim.resume()

    async def _restart_api_server(self) -> None:
        self._note("restart of the API server")
        self._plane.restart("kube-apiserver")
        await self._api_server_answers()

    async def _expire_watches(self) -> None:
        """`watch` sleeps while nodes change and the API server forgets the changes: its watches get 410."""
        watching = [each for each in self._replicas if _worker(each) == "watch"]
        self._note("410", *(each.name for each in watching))
        for each in watching:
            each.pause()
        await asyncio.sleep(self._part(0.3))
        self._plane.restart("kube-apiserver")
        # Until it has read the roles it answers 403, after which a watch would not continue from its version.
        await eventually(self._api_server_knows_roles, every=0.1)
        for each in watching:
            each.resume()

    async def _refuse_requests(self) -> None:
        """The API server answers 429 to each request of the workers' accounts."""
        self._note("429")
        await insist(lambda: self._admin.create(f"{FLOW}/prioritylevelconfigurations", NO_SEAT), settled=409)
        await insist(lambda: self._admin.create(f"{FLOW}/flowschemas", REFUSE), settled=409)
        await asyncio.sleep(self._part(0.6))
        await insist(lambda: self._admin.delete(f"{FLOW}/flowschemas/fire-refuse"), settled=ABSENT)

    async def _lose_adapter(self) -> None:
        self._note("adapter gone")
        self._adapter.down = True
        await asyncio.sleep(self._part(0.7))
        self._adapter.down = False

    async def _set_clock_ahead(self) -> None:
        """The clock of the adapter is a minute ahead for a while."""
        self._note("clock ahead")
        self._adapter.metrics.ahead = AHEAD_SECONDS
        await asyncio.sleep(self._part(0.7))
        self._adapter.metrics.ahead = 0.0

    async def _api_server_answers(self) -> None:
        await insist(lambda: self._admin.get("/api/v1/nodes?limit=1"))

    async def _api_server_knows_roles(self) -> bool:
        try:
            await self._stage.watcher.get("/api/v1/nodes?limit=1")
        except (AdminError, aiohttp.ClientError):
            return False
        return True

    def _part(self, share: float) -> float:
        return share * self._size.fault_seconds

    def _note(self, kind: str, *victims: str) -> None:
        self.noted.append((time.time(), " ".join((kind, *victims))))

    def _all_in_turn(self) -> Iterator[Replica]:
        """Replicas at random, each of them before any a second time."""
        while True:
            yield from self._chance.sample(self._replicas, k=len(self._replicas))


def _has_ended(replica: Replica) -> bool:
    return replica.ended


def _worker(replica: Replica) -> str:
    return replica.name.rpartition("-")[0]
