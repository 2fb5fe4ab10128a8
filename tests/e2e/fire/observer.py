"""What somebody who watches the cluster sees meanwhile: answers of the extender, labels, memory."""

import asyncio
import os
import time
from collections import Counter
from contextlib import suppress

import aiohttp

from tests.e2e.product import lets_pass
from tests.forks import FREE_MEMORY
from tests.integration.replicas import Replica
from tests.kubernetes.admin import AdminError

from .figures import SERVER, Memory, running
from .stage import Stage
from .users import NAMESPACE, Users

PROBE_SECONDS = 0.2
PROBE_LIMIT_SECONDS = 2.0
"""That of the scheduler."""

PROBED_NODES = 20
POD = {"metadata": {"name": "probe", "namespace": NAMESPACE, "labels": {"telemetry-policy": "fire-0"}}}
SERVER_ERROR = 500


class Observer:
    """Observes until cancelled.

    Attributes:
        memory: The memory of the workers and of nats-server.
        freed: How often a worker was asked to return the memory that it does not use.
        statuses: How often the extenders answered with each status; 0: no answer.
        errors: Answers of 5xx at a moment when both extenders were ready before and after.
        wrong_labels: At each time the number of nodes whose labels were not yet as the policies say.
    """

    def __init__(self, stage: Stage, users: Users) -> None:
        self.memory = Memory()
        self.freed = 0
        self.statuses: Counter[int] = Counter()
        self.errors: list[str] = []
        self.wrong_labels: list[tuple[float, int]] = []
        self._stage = stage
        self._users = users
        self._extenders = [each for each in stage.replicas if each.name.startswith("extender")]

    async def probe(self) -> None:
        """Asks the port of both extenders, as a second scheduler would. Runs until cancelled."""
        url = f"http://127.0.0.1:{self._stage.port}/scheduler/filter"
        were_ready = False
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_LIMIT_SECONDS)) as session:
            while True:
                body = {"Pod": POD, "Nodes": None, "NodeNames": list(self._users.values)[:PROBED_NODES]}
                status, text = 0, ""
                with suppress(aiohttp.ClientError, TimeoutError):
                    # A new connection each time, since the system chooses the replica for each connection.
                    async with session.post(url, json=body, headers={"Connection": "close"}) as answer:
                        status, text = answer.status, await answer.text()
                are_ready = all([await _is_ready(session, each) for each in self._extenders])
                self.statuses[status] += 1
                if status >= SERVER_ERROR and were_ready and are_ready:
                    self.errors.append(f"{status}: {text[:200]}")
                were_ready = are_ready
                await asyncio.sleep(PROBE_SECONDS)

    async def count_wrong_labels(self) -> int:
        """Counts these nodes once. Raises AdminError, aiohttp.ClientError."""
        wrong = len(await self._users.with_wrong_labels())
        self.wrong_labels.append((time.time(), wrong))
        return wrong

    async def extenders_agree(self) -> bool:
        """Whether each extender passes for each policy the nodes that it must pass."""
        nodes = self._users.values.keys()
        for each in self._extenders:
            for policy in self._users.policies:
                found = await lets_pass(each, NAMESPACE, policy, nodes)
                if found != nodes - self._users.rejected(policy):
                    return False
        return True

    async def measure(self) -> None:
        """Measures memory and labels. Runs until cancelled."""
        server = self._stage.server
        while True:
            self._free_memory()
            with suppress(AdminError, aiohttp.ClientError):  # meanwhile the workers return their memory
                await self.count_wrong_labels()
            self.memory.measure([*running(self._stage.replicas), (SERVER, server.pid)])
            self.memory.measure_heap(server.pid, server.log)
            await asyncio.sleep(self._stage.size.measure_seconds)

    def _free_memory(self) -> None:
        """Asks the workers for the memory that they do not use.

        glibc keeps this, as bursts have fragmented it: of 130 MiB of `labels` 2 MiB after its start, and 13 MiB later.
        """
        for each in self._stage.replicas:
            with suppress(OSError):  # it has just ended
                if not each.ended and each.catches(FREE_MEMORY):
                    os.kill(each.pid, FREE_MEMORY)
                    self.freed += 1


async def _is_ready(session: aiohttp.ClientSession, replica: Replica) -> bool:
    url = replica.health_url()
    if url is not None:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(f"{url}/readyz") as answer:
                return answer.status == 200
    return False
