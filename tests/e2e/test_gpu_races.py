"""Binders of GPU cards that want the cards of one node at the same moment: processes, and a real API server.

In `test_gpu_chaos.py` a scheduler binds one pod after the other, so its binders seldom meet. Here the test asks them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from bus.connection import Bus
from bus.kinds import NODE_HOLDS
from tas.gpu.hold import Phase
from tests.integration.replicas import Replica, metric, replica, tas
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.gpu.test_gpu import judge, started_in_order
from tests.unit.tas.gpu import notation

from .api import Object
from .cluster import Cluster
from .processes import free_ports
from .test_gpu import entry
from .test_gpu_chaos import create_pod, pods_of

NODE = "gpu-race"
CARD = "N(0) i4 t4 mc1000"
HALF = "A{i1 t2}"
"""Of the card's four tiles: two pods fit."""

FIT, BINDERS = 2, 5
"""Each binder gets one pod in a round, so whoever overtakes it is another process."""

MOST_ROUNDS = 30
"""Until binders have met. In most rounds they do."""

MOST_TRIES = 20
"""Of those that others have overtaken; on a quiet machine one is enough."""

FULL = "no card has room"


@pytest.fixture
def node(cluster: Cluster) -> Iterator[str]:
    """A node with one card of four tiles."""
    described = notation.Node(CARD)
    cluster.create_nodes(NODE, labels=described.labels)
    amounts = dict(described.allocatable)
    cluster.api.patch(f"/api/v1/nodes/{NODE}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
    yield NODE
    cluster.delete_nodes(NODE)


@pytest.fixture
async def binders(cluster: Cluster, node: str, server: Server, tmp_path: Path) -> AsyncIterator[dict[str, Replica]]:
    """Processes by their URL."""
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    urls = [f"http://127.0.0.1:{port}/scheduler" for port in free_ports(BINDERS)]
    with_address = {url: url.removeprefix("http://").removesuffix("/scheduler") for url in urls}
    async with AsyncExitStack() as stack:
        command = tas("inventory", *kubeconfig, "--new-bus-wait", "1s", bus=server.url)
        inventory = stack.enter_context(replica("inventory", command, folder=tmp_path))
        found = {
            url: stack.enter_context(
                replica(f"gpu-{number}", tas("gpu", *kubeconfig, "--listen", address, bus=server.url), folder=tmp_path)
            )
            for number, (url, address) in enumerate(with_address.items())
        }
        for one in (inventory, *found.values()):
            await one.ready()
        yield found


async def bind(session: aiohttp.ClientSession, url: str, pod: Object) -> str:
    """The error by which a scheduler tries the pod again later; empty if it is bound."""
    metadata = pod["metadata"]
    body = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"], "Node": NODE}
    async with session.post(f"{url}/bind", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["Error"])


async def race(session: aiohttp.ClientSession, binders: list[str], pods: list[Object]) -> dict[str, str]:
    """Lets each binder bind one of the pods at the same moment; returns the last error of each pod by its uid.

    Whom the others have overtaken too often tries again, as a scheduler does: only who finds the card full is refused.
    """
    errors = dict.fromkeys((pod["metadata"]["uid"] for pod in pods), "not tried")
    for _ in range(MOST_TRIES):
        waiting = [pod for pod in pods if errors[uid := pod["metadata"]["uid"]] and FULL not in errors[uid]]
        found = await asyncio.gather(*(bind(session, url, pod) for url, pod in zip(binders, waiting, strict=False)))
        for pod, error in zip(waiting, found, strict=True):
            assert not error or FULL in error or "could not be written in" in error
            errors[pod["metadata"]["uid"]] = error
    return errors


async def held(bus: Bus) -> dict[str, Phase]:
    """Who has something of the card."""
    stored = (await answered(partial(NODE_HOLDS.get, bus, NODE))).readable()
    return {} if stored is None else {uid: each.phase for uid, each in stored.pods.items()}


async def test_BND_04_binders_that_meet_at_one_card_of_a_real_api_server_give_it_to_those_who_fit(
    cluster: Cluster, namespace: str, bus: Bus, binders: dict[str, Replica]
) -> None:
    overtaken = 0.0
    async with aiohttp.ClientSession() as session:
        for number in range(MOST_ROUNDS):
            for each in range(BINDERS):
                await asyncio.to_thread(create_pod, cluster, namespace, f"p{number}-{each}", HALF)
            pods = await asyncio.to_thread(pods_of, cluster, namespace)
            errors = await race(session, list(binders), pods)
            bound = {uid for uid, error in errors.items() if not error}
            assert len(bound) == FIT

            found = await asyncio.to_thread(pods_of, cluster, namespace)
            judge(found)
            started_in_order(found)
            assert {pod["metadata"]["uid"] for pod in found if "nodeName" in pod["spec"]} == bound
            assert await held(bus) == dict.fromkeys(bound, Phase.BOUND), "something is reserved for who was refused"
            overtaken = sum([await metric(one, "tas_gpu_bind_conflicts_total") for one in binders.values()])
            if overtaken > 0:
                break
            await asyncio.to_thread(cluster.delete_pods, namespace)
            await eventually(partial(_is_free, bus))
    assert overtaken > 0, "the binders have never met"

    # Who was refused waits for a scheduler, which binds it once there is room.
    managed = [{"name": f"gpu.intel.com/{each}", "ignoredByScheduler": False} for each in ("i915", "tiles")]
    names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in found}
    with cluster.scheduler(entry(next(iter(binders))) | {"managedResources": managed}):
        for uid in bound:
            await asyncio.to_thread(cluster.api.delete, f"/api/v1/namespaces/{namespace}/pods/{names[uid]}")
        refused = names.keys() - bound

        async def are_next() -> bool:
            phases = await held(bus)
            return len(phases) == FIT and phases.keys() <= refused and set(phases.values()) == {Phase.BOUND}

        await eventually(are_next, within=120.0)
        judge(await asyncio.to_thread(pods_of, cluster, namespace))


async def _is_free(bus: Bus) -> bool:
    return not await held(bus)
