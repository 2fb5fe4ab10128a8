"""The alerts about GPU cards, as `test_alerts_played.py`: each fault is brought about, and ended as its row says."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from bus.connection import Bus
from lab.sandbox.resources import NODES, PODS
from tas.gpu.names import EVICTION_LABEL
from tests.integration.cli.tas import FREE, HEALTH, Running, Tas, demo_policy, policy_folder
from tests.integration.servers import Server, eventually
from tests.integration.workers.gpu.gpu import NAMESPACE, Gpus, gpus
from tests.integration.workers.inventory.test_inventory import add_node, bind
from tests.sandbox import Call

from .alerts import check
from .test_alerts_played import FOREVER, Stage, User

NUMA = "gpu.intel.com/numa-gpu-map"
RULES = "    dontschedule: {rules: [{metricname: m, operator: Equals, target: 2}]}\n"
EMPTIED = "telemetry.aware.scheduling.health/gas-deschedule-pods-card0"


def lists_pods(call: Call) -> bool:
    return (call.verb, call.resource, call.user_agent) == ("list", "pods", "tas-on-nats/inventory")


def binds(call: Call) -> bool:
    return (call.verb, call.subresource) == ("create", "binding")


def reads_a_node(call: Call) -> bool:
    return (call.verb, call.resource, call.user_agent) == ("get", "nodes", "tas-on-nats/evictions")


def patches_a_pod(call: Call) -> bool:
    return (call.verb, call.resource) == ("patch", "pods")


@dataclass(frozen=True, kw_only=True)
class Cards:
    """The processes, and who asks `gpu` as the scheduler does."""

    stage: Stage
    world: Gpus
    gpu: Running
    inventory: Running
    evictions: Running
    session: aiohttp.ClientSession

    async def bind(self, name: str, holds: Callable[[str], bool]) -> None:
        """Has a pod bound that needs half a card, again and again as a scheduler does, until the error is as wanted.

        On a busy machine an attempt may fail because the bus did not answer in time.
        """
        pod = self.world.add_pod(name, "A{i1}")

        async def is_so() -> bool:
            return holds(await self._error(name, pod["metadata"]["uid"]))

        await eventually(is_so, every=0.1)

    async def _error(self, name: str, uid: str) -> str:
        url = (await self.gpu.logged("extender_listening"))["url"]
        body = {"PodName": name, "PodNamespace": NAMESPACE, "PodUID": uid, "Node": "a"}
        async with self.session.post(f"{url}/bind", json=body) as answer:
            assert answer.status == 200
            return str((await answer.json())["Error"])

    def label_node(self, label: str, value: str | None) -> None:
        self.world.sandbox.cluster.patch(NODES, "", "a", {"metadata": {"labels": {label: value}}}, manager="user")

    def label_of(self, name: str) -> str | None:
        labels: dict[str, str] = self.world.pod(name)["metadata"].get("labels", {})
        return labels.get(EVICTION_LABEL)


async def no_gpu_is_ready(cards: Cards) -> None:
    stage = cards.stage
    async with stage.story("TasNoGpuReady", "TasWorkerNotReady", minutes=5, new=True) as during:
        await stage.is_at("tas_inventory_nodes", lambda count: count == 1)
        during.extend(await stage.scrapes())

        async def says_why() -> bool:
            """First it may have no connection to the bus."""
            status, reason = await cards.gpu.health("/readyz")
            return (status, "no complete list yet" in reason) == (503, True)

        await eventually(says_why)
        cards.world.sandbox.faults.clear()
        for each in (cards.gpu, cards.inventory, cards.evictions):
            await each.ready()


async def binds_fail(cards: Cards) -> None:
    async with cards.stage.story("TasGpuBindsFail", minutes=5) as during:
        cards.world.sandbox.faults.answer(403, times=FOREVER, which=binds)
        during.append(await cards.stage.scrape())
        await cards.bind("refused", lambda error: "(403)" in error)
        during.append(await cards.stage.scrape())
        await cards.gpu.has_logged("gpu_bind_failed", "error", "(403)")
        cards.world.sandbox.faults.clear()
        await cards.bind("bound", lambda error: error == "")


async def nobody_knows_the_cards_of_a_pod(cards: Cards) -> None:
    stage = cards.stage
    async with stage.story("TasGpuPodsUnaccounted", minutes=4) as during:
        cards.world.add_pod("stray", "A{i1}")
        bind(cards.world, "stray", "a", {})
        await stage.is_at("tas_inventory_drifting_pods", lambda count: count == 1)
        during.extend(await stage.scrapes())
        assert f"{NAMESPACE}/stray" in (await cards.inventory.health("/drift"))[1]
        await cards.inventory.logged("pods_without_claim", pods=[f"{NAMESPACE}/stray"])
        cards.world.sandbox.cluster.delete(PODS, NAMESPACE, "stray")
        await stage.is_at("tas_inventory_drifting_pods", lambda count: count == 0)


async def a_label_cannot_be_read(cards: Cards) -> None:
    stage = cards.stage
    async with stage.story("TasGpuCardsUnreadable", minutes=12) as during:
        cards.label_node(NUMA, "x")
        await stage.is_at("tas_inventory_problems", lambda count: count == 1)
        during.extend(await stage.scrapes())
        await cards.inventory.has_logged("cards_of_node_unreadable", "problems", NUMA)
        cards.label_node(NUMA, None)
        await stage.is_at("tas_inventory_problems", lambda count: count == 0)


async def a_pod_does_not_get_its_label(cards: Cards) -> None:
    """First the node cannot be read, then the API server refuses the patch of the pod."""
    stage, faults = cards.stage, cards.world.sandbox.faults
    async with stage.story("TasEvictionLabelsNotWritten", minutes=7) as during:
        faults.answer(403, times=FOREVER, which=reads_a_node)
        cards.label_node(EMPTIED, "true")
        await stage.is_at("tas_eviction_nodes_failing", lambda count: count == 1)
        during.extend(await stage.scrapes())
        await cards.evictions.has_logged("eviction_node_unread", "error", "(403)")
        faults.clear()
        await eventually(lambda: cards.label_of("bound") is not None)
        await stage.is_at("tas_eviction_nodes_failing", lambda count: count == 0)
        cards.label_node(EMPTIED, None)
        await eventually(lambda: cards.label_of("bound") is None)
    async with stage.story("TasEvictionLabelsNotWritten", minutes=7) as during:
        during.append(await stage.scrape())
        faults.answer(422, times=FOREVER, which=patches_a_pod)
        cards.label_node(EMPTIED, "true")
        # It tries again: at the next poll there may be two.
        await stage.is_at('tas_eviction_patches_total{result="refused"', lambda count: count >= 1)
        during.append(await stage.scrape())
        await cards.evictions.has_logged("eviction_label_refused", "reason", "(422)")
        faults.clear()
        cards.label_node(EMPTIED, None)


STORIES = (
    no_gpu_is_ready,
    binds_fail,
    nobody_knows_the_cards_of_a_pod,
    a_label_cannot_be_read,
    a_pod_does_not_get_its_label,
)


@pytest.mark.nightly
async def test_the_alerts_about_cards_fire_and_end_as_their_rows_say(
    tas: Tas, server: Server, bus: Bus, tmp_path: Path, prometheus_binary: Path
) -> None:
    async with (
        gpus(server, bus, tmp_path) as world,
        aiohttp.ClientSession() as session,
        AsyncExitStack() as stack,
    ):
        add_node(world, "a", "N(0) i2")
        world.sandbox.faults.answer(500, times=FOREVER, which=lists_pods)

        async def run(worker: str, *flags: str) -> Running:
            shared = ("--bus", server.url, "--kubeconfig", str(tmp_path / "kubeconfig"))
            return await stack.enter_async_context(tas.running("run", worker, *shared, *flags))

        inventory = await run("inventory", "--new-bus-wait", "0s", *HEALTH)
        evictions, gpu = await run("evictions", *HEALTH), await run("gpu", *FREE)
        # Also an extender for telemetry, which is ready: else its alerts would fire in all stories.
        extender = await stack.enter_async_context(tas.running("run", "extender", "--bus", server.url, *FREE))
        rules = policy_folder(tmp_path, demo_policy(RULES))
        policies = ("run", "policies", "--bus", server.url, "--policies", str(rules))
        await stack.enter_async_context(tas.running(*policies, *HEALTH))
        await extender.ready()
        user = User(session, (await extender.logged("extender_listening"))["url"])
        stage = Stage(extender, user.filter, inventory, evictions, gpu)
        cards = Cards(stage=stage, world=world, gpu=gpu, inventory=inventory, evictions=evictions, session=session)
        for story in STORIES:
            await story(cards)
    check(prometheus_binary.with_name("promtool"), stage.stories, tmp_path)
