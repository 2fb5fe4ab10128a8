"""The status of TASPolicies over the sandbox and a real nats-server."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.connection import Bus
from bus.errors import UnavailableError
from bus.lease import Lease
from tas.policy.policy import PolicyKey
from tas.processes.process import NotReady
from tas.verdict.status import says_bus_unreachable
from tests.integration.proxy import Proxy
from tests.integration.servers import Server, eventually
from tests.integration.tables import put_tables
from tests.integration.workers.running import running
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.status_scenarios import Checking, StatusScenarios, status, status_running, wait_for_status
from tests.kubernetes.world import STALE_SECONDS, World, deschedule, rule
from tests.sandbox import Sandbox
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import KubernetesError
from workers.kubernetes.reflectors import Reflectors
from workers.status.outage import StatusWithoutBus
from workers.status.patches import StatusPatches
from workers.status.worker import PolicyStatus

__all__ = ["status", "world"]


@pytest.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    async with Sandbox.start() as sandbox:
        yield sandbox.kubeconfig(tmp_path / "kubeconfig")


pytestmark = pytest.mark.usefixtures("quick_status")


class TestStatus(StatusScenarios):
    pass


class LateAnswers(KubernetesClient):
    """A client that holds back the answers to patches until `may` is set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answered = False
        self.may = asyncio.Event()
        self.delivered: set[int] = set()
        """Generations that the watch has delivered and its follower has processed."""

    async def merge_patch(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().merge_patch(*args, **kwargs)
        self.answered = True
        await self.may.wait()
        return answer

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        async for change in super().watch(*args, **kwargs):
            yield change
            self.delivered.add(change.object.metadata.generation)


async def test_an_edit_that_the_watch_delivers_before_the_answer_to_a_patch_is_in_the_status(
    world: World, bus: Bus, kubeconfig: Path
) -> None:
    """The answer is older than the delivered change, and must not replace it."""
    async with LateAnswers.connect(kubeconfig, worker="status") as connected:
        client = cast("LateAnswers", connected)
        worker = PolicyStatus(
            bus, client, Reflectors(client), registry=CollectorRegistry(), default_stale_after=STALE_SECONDS
        )
        async with running(worker):
            namespace, name = await world.namespace(), world.name()
            await world.policy(namespace, name, deschedule())
            await eventually(lambda: client.answered)
            key = await world.policy(namespace, name, deschedule(), suspend=True)
            await eventually(lambda: 2 in client.delivered)
            client.may.set()
            await wait_for_status(world, key, Ready=("False", "Suspended"))


@pytest.mark.usefixtures("quick_status")
async def test_while_nobody_runs_evaluate_a_policy_is_not_ready(world: World, bus: Bus, kubeconfig: Path) -> None:
    lost: set[str] = set()
    async with KubernetesClient.connect(kubeconfig, worker="status") as client:
        worker = PolicyStatus(
            bus,
            client,
            Reflectors(client),
            registry=CollectorRegistry(),
            default_stale_after=STALE_SECONDS,
            lost=lambda: lost,
        )
        async with running(worker):
            key = await world.policy(await world.namespace(), world.name(), deschedule())
            await wait_for_status(world, key, Ready=("True", "InForce"))
            lost.update(("evaluate", "labels"))
            await wait_for_status(world, key, Ready=("False", "NotEvaluated"), Violating=("Unknown", "NotEvaluated"))
            assert worker.policies_not_ready() == {"NotEvaluated": NotReady(1, (str(key),))}
            lost.clear()
            await wait_for_status(world, key, Ready=("True", "InForce"))


async def test_a_policy_for_which_its_namespace_has_no_room_says_so(
    world: World, bus: Bus, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tas.policy.room.NAMESPACE_BYTES", 900)
    async with KubernetesClient.connect(kubeconfig, worker="status") as client:
        worker = PolicyStatus(
            bus, client, Reflectors(client), registry=CollectorRegistry(), default_stale_after=STALE_SECONDS
        )
        async with running(worker):
            namespace = await world.namespace()
            older = await world.policy(namespace, "a", deschedule())
            await wait_for_status(world, older, Ready=("True", "InForce"))
            younger = await world.policy(namespace, "b", deschedule(*[rule()] * 10))
            found = await wait_for_status(world, younger, Ready=("False", "PartlyUnreadable"))
            assert any("older ones of" in each["message"] for each in found["conditions"])
            honest = await world.policy("default", "c", deschedule())
            await wait_for_status(world, honest, Ready=("True", "InForce"))


class LostAnswer(KubernetesClient):
    """A client to which one answer to a patch is lost: the API server has applied it."""

    lost = 0

    async def merge_patch(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().merge_patch(*args, **kwargs)
        if not self.lost:
            self.lost += 1
            raise KubernetesError("no data for 10 s")
        return answer


async def test_a_status_whose_patch_had_no_answer_is_a_concern_until_it_is_as_it_should_be(
    world: World, bus: Bus, kubeconfig: Path
) -> None:
    key = await world.policy(await world.namespace(), world.name(), deschedule())
    concerns: list[str] = []
    async with LostAnswer.connect(kubeconfig, worker="status") as client, running(worker := Checking(bus, client)):

        def noted() -> bool:
            concerns.extend(worker.concerns())
            return bool(concerns)

        await eventually(noted)
        await wait_for_status(world, key, Ready=("True", "InForce"))
        await eventually(lambda: not list(worker.concerns()))
    assert set(concerns) == {f"the status of 1 policy cannot be written, as of {key}: no data for 10 s"}


async def test_a_metric_of_a_table_is_seen(world: World, status: Checking, bus: Bus) -> None:
    key = await world.policy(await world.namespace(), world.name(), deschedule())
    await wait_for_status(world, key, MetricsSeen=("False", "NoFreshSample"))
    await put_tables(bus, {await world.node("one"): {"health": "0"}})
    await wait_for_status(world, key, MetricsSeen=("True", "Fresh"))


@pytest.fixture
def quick_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage counts after a second, and the first patch waits as long as another replica needs to undo it."""
    for name, seconds in (("OUTAGE", 1.0), ("STANDBY", 0.5), ("FIRST", 60.0), ("BACK", 0.5), ("CHECK", 0.1)):
        monkeypatch.setattr(f"workers.status.outage.{name}_SECONDS", seconds)
    monkeypatch.setattr("workers.status.worker.Lease", partial(Lease, ttl_seconds=1))


def patched(registry: CollectorRegistry, result: str = "patched") -> float:
    return registry.get_sample_value("tas_policy_status_patches_total", {"result": result}) or 0.0


LOST = dict.fromkeys(("Ready", "Violating", "MetricsSeen"), ("Unknown", "BusUnreachable"))


async def test_with_a_dead_bus_no_policy_stays_ready_and_each_is_patched_once(
    world: World, server: Server, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, quick_outage: None
) -> None:
    monkeypatch.setattr("workers.status.outage.FIRST_SECONDS", 0.5)
    namespace = await world.namespace()
    async with status_running(kubeconfig, server.url) as worker:
        keys = [await world.policy(namespace, world.name(name), deschedule()) for name in "abc"]
        suspended = await world.policy(namespace, world.name("d"), deschedule(), suspend=True)
        for key in keys:
            await wait_for_status(world, key, Ready=("True", "InForce"))
        await wait_for_status(world, suspended, Ready=("False", "Suspended"))
        before = patched(worker.registry)
        await server.kill()
        for key in keys:
            found = await wait_for_status(world, key, **LOST)
            assert found["message"].startswith("the bus cannot be reached: ")
        await wait_for_status(world, suspended, Ready=("False", "Suspended"), Violating=LOST["Violating"])
        later = PolicyKey(namespace, world.name("e"))
        await world.admin.create_policy(namespace, later.name, strategies=deschedule())
        await wait_for_status(world, later, **LOST)
        await eventually(lambda: patched(worker.registry) == before + 5)
        await server.start()
        for key in (*keys, later):
            await wait_for_status(world, key, Ready=("True", "InForce"), Violating=("Unknown", "NoVerdict"))
        await wait_for_status(world, suspended, Ready=("False", "Suspended"), Violating=("Unknown", "NoVerdict"))
        await eventually(lambda: patched(worker.registry) == before + 10)


async def test_a_replica_that_alone_has_lost_the_bus_says_so_of_one_policy_and_for_a_moment(
    world: World, server: Server, kubeconfig: Path, quick_outage: None
) -> None:
    namespace = await world.namespace()
    async with Proxy.before(server.url) as proxy, status_running(kubeconfig, proxy.url) as cut_off:
        keys = [await world.policy(namespace, world.name(name), deschedule()) for name in "abc"]
        for key in keys:
            await wait_for_status(world, key, Ready=("True", "InForce"))
        before = patched(cut_off.registry)
        async with status_running(kubeconfig, server.url) as other:
            proxy.open = False
            proxy.cut()
            await eventually(lambda: patched(cut_off.registry) == before + 1)
            await eventually(lambda: cut_off._without_bus._is_undone)
            await wait_for_status(world, min(keys), Ready=("True", "InForce"))
            await eventually(lambda: patched(other.registry) == 1)
            assert patched(cut_off.registry) == before + 1
            proxy.open = True
            await eventually(lambda: not cut_off._without_bus._is_undone)  # its outage is over
        for key in keys:
            await wait_for_status(world, key, Ready=("True", "InForce"))


class FullBus(Bus):
    """A bus that takes no write while it is full, and answers reads: as nats-server does with a full disk."""

    is_full = False

    async def put(self, *args: Any, **kwargs: Any) -> int:
        if self.is_full:
            raise UnavailableError("no answer within 2 s")
        return await super().put(*args, **kwargs)


async def test_with_a_full_disk_nobody_has_the_lease_and_no_policy_stays_ready(
    world: World, server: Server, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, quick_outage: None
) -> None:
    monkeypatch.setattr("workers.status.outage.HELD_SECONDS", 3.0)
    key = await world.policy(await world.namespace(), world.name(), deschedule())
    async with (
        FullBus.connect(server.url, name="status") as connected,
        KubernetesClient.connect(kubeconfig, worker="status") as client,
    ):
        bus = cast("FullBus", connected)
        await bus.wait_connected()
        async with running(Checking(bus, client)):
            await wait_for_status(world, key, Ready=("True", "InForce"))
            bus.is_full = True
            await wait_for_status(world, key, **LOST)
            assert bus.connected
            bus.is_full = False
            await wait_for_status(world, key, Ready=("True", "InForce"))


class CountedBus(Bus):
    """A bus that counts how often somebody asks whether it is connected."""

    asked = 0

    @property
    def connected(self) -> bool:
        self.asked += 1
        return super().connected


class RefusingClient(KubernetesClient):
    """A client whose API server refuses each patch of a policy `a`, as an admission webhook does."""

    async def merge_patch(self, resource: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name.endswith("-a"):
            raise KubernetesError("denied the request", code=422)
        return await super().merge_patch(resource, name, *args, **kwargs)


async def test_a_refused_policy_alone_holds_up_no_other_and_while_the_bus_answers_nothing_is_said(
    world: World, server: Server, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, quick_outage: None
) -> None:
    for name, seconds in (("FIRST", 0.0), ("BACK", 600.0), ("RETRY", 0.1)):
        monkeypatch.setattr(f"workers.status.outage.{name}_SECONDS", seconds)
    namespace = await world.namespace()
    async with (
        CountedBus.connect(server.url, name="status") as connected,
        RefusingClient.connect(kubeconfig, worker="status") as client,
    ):
        bus = cast("CountedBus", connected)
        await bus.wait_connected()
        registry = CollectorRegistry()
        patches = StatusPatches(client, registry)
        worker = StatusWithoutBus(bus, patches, Reflectors(client), had_lease=lambda: True)

        async def passes() -> None:
            before = bus.asked
            await eventually(lambda: bus.asked >= before + 10)

        async def create(name: str) -> PolicyKey:
            key = PolicyKey(namespace, f"{world.name('x')}-{name}")
            await world.admin.create_policy(namespace, key.name, strategies=deschedule())
            return key

        async with running(worker):
            refused = await create("a")
            second = await create("b")
            await server.kill()
            await wait_for_status(world, second, **LOST)
            await server.start()
            await bus.wait_connected()
            third = await create("c")
            await eventually(lambda: third in worker._policies)
            await passes()
            assert patched(registry) == 1
            with capture_logs() as logs:
                path = f"{world.admin.policies(namespace)}/{second.name}"
                await world.admin.patch(f"{path}/status", {"status": {"conditions": []}})
                await eventually(lambda: not says_bus_unreachable(worker._policies[second].status))
                await passes()
            assert "status_written_by_another" not in [each["event"] for each in logs]
            await server.kill()  # the same outage: the bus has answered for less than `BACK_SECONDS`
            for key in (second, third):
                await wait_for_status(world, key, **LOST)
            await eventually(lambda: patched(registry) == 3)
            assert [str(refused) in each for each in patches.concerns()] == [True]
        assert list(patches.concerns()) == []  # whoever has the lease afterwards knows what fails then
