"""Agents that learn, over a real nats-server: from a pod that fails to other scores, over restarts and replicas."""

import base64
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import NODES, OUTCOMES, POLICIES
from bus.connection import Bus
from bus.kinds import LEARNED_STATES
from bus.outcomes import publish_outcomes
from bus.records.agents import LearnedState
from lab.sandbox.resources import PODS
from tas.agent import Needs, Outcome, Placed, Result
from tas.agents.builtin import BUILTIN
from tas.agents.file import AgentConfig
from tas.agents.foo import Foo
from tas.agents.pigeon import Pigeon
from tas.agents.rewards import SNAPSHOT_VERSION, Rewards
from tests.e2e.processes import free_ports
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.running import epoch_on, running
from tests.sandbox import Sandbox
from workers.agents.agents_file import GROUP, AgentsFile, LoadedAgent
from workers.agents.configured import hooks_of
from workers.agents.interrupting import Interrupter
from workers.agents.learner import hand_over
from workers.agents.worker import AgentsWorker
from workers.following.followed_view import FollowedView
from workers.following.synced import write_synced
from workers.http.address import Address
from workers.inventory.worker import Inventory
from workers.kubernetes.client import KubernetesClient
from workers.scheduler.server import SchedulerServer

FILE = "agents: {rl-priority: , pigeon-holing: }"
PROGRAM = "tests.integration.workers.agents.test_learning"


class Counts(Foo):
    """Counts what it observes."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @property
    def needs(self) -> Needs:
        return Needs(outcomes=True)

    def observe(self, event: Placed | Outcome) -> None:
        self.seen.append(event.uid)

    def snapshot(self) -> dict[str, Any]:
        return {"version": 1, "seen": self.seen}

    def restore(self, state: Any) -> None:
        self.seen = list(state["seen"])


class Level(msgspec.Struct, frozen=True, kw_only=True):
    level: int = 1


class Changes(Counts):
    Options = Level

    def __init__(self, options: Level) -> None:
        super().__init__()
        self.level = options.level


class Times(Counts):
    def observe(self, event: Placed | Outcome) -> None:
        self.seen.append(repr(event.at))


class Places(Counts):
    @property
    def needs(self) -> Needs:
        return Needs()


class Raises(Counts):
    def observe(self, event: Placed | Outcome) -> None:
        if event.uid == "1":
            raise ValueError("not this one")
        super().observe(event)


class Spins(Counts):
    def observe(self, event: Placed | Outcome) -> None:
        while event.uid in ("1", "3", "4", "5"):
            pass
        super().observe(event)


class Large(Counts):
    def snapshot(self) -> dict[str, Any]:
        return {"version": 1, "seen": self.seen, "noise": random.Random(1).randbytes(2 << 20).hex()}


INSTALLED = [
    EntryPoint(kind.__name__.lower(), f"{PROGRAM}:{kind.__name__}", GROUP)
    for kind in (Counts, Changes, Times, Places, Raises, Spins, Large)
]


class Replica:
    def __init__(self, worker: AgentsWorker, registry: CollectorRegistry) -> None:
        self._worker = worker
        self._registry = registry

    def agent(self, name: str) -> Any:
        loaded, _ = self._worker._mounted[name]
        return loaded.agent

    def reward(self, node: str) -> float:
        agent = self.agent("rl-priority")
        assert isinstance(agent, Rewards)
        return agent.reward("default", "web", node)

    def metric(self, name: str, agent: str) -> float:
        return self._registry.get_sample_value(name, {"agent": agent}) or 0.0


@asynccontextmanager
async def replica(bus: Bus, folder: Path, text: str = FILE) -> AsyncIterator[Replica]:
    """A ready replica of `agents`."""
    path = folder / "agents.yaml"
    path.write_text(text)
    registry = CollectorRegistry()
    source = AgentsFile(path, builtin=BUILTIN, installed=INSTALLED, registry=registry)
    worker = AgentsWorker(
        bus,
        FollowedView(bus, default_stale_after=60.0),
        source,
        await source.load(),
        SchedulerServer("agents", Address("127.0.0.1", *free_ports(1)), registry),
        hooks_of=hooks_of,
        registry=registry,
    )
    async with running(worker):
        await eventually(lambda: worker.unready() is None)
        yield Replica(worker, registry)


async def complete(bus: Bus) -> None:
    """The lists of policies and nodes are stored: both are empty."""
    for bucket in (POLICIES, NODES):
        epoch = await answered(partial(bus.epoch, bucket))
        await answered(partial(write_synced, bus, bucket, epoch, count=0, writer="test", cluster=True))


async def stored(bus: Bus, agent: str) -> LearnedState | None:
    entry = await answered(lambda: LEARNED_STATES.get(bus, agent))
    return entry.readable()


def failed(uid: str, node: str = "a") -> Outcome:
    return Outcome(
        namespace="default",
        uid=uid,
        node=node,
        container="main",
        restart=0,
        result=Result.FAILED,
        at=time.time(),
        labels={"app": "web"},
    )


async def fail(bus: Bus, uids: Sequence[str]) -> None:
    for answer in await answered(lambda: publish_outcomes(bus, [failed(uid) for uid in uids])):
        assert isinstance(answer, int)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.agents.learner.SAVE_SECONDS", 0.1)
    # On a busy machine a replica would be ready before it knows what is stored.
    monkeypatch.setattr("workers.agents.worker.WAIT_SECONDS", 120.0)


async def test_what_is_learned_outlives_processes_and_the_bus(server: Server, bus: Bus, tmp_path: Path) -> None:
    """A pod fails on node a, and its kind is placed there no more; each replica knows it, and counts it once."""

    def knows(found: Replica, failures: int) -> Callable[[], bool]:
        return lambda: found.reward("a") == pytest.approx(0.9**failures) and found.reward("b") == 1.0

    await complete(bus)
    async with AsyncExitStack() as first:
        one = await first.enter_async_context(replica(bus, tmp_path))
        async with (
            Sandbox.start(nodes=["a", "b"]) as sandbox,
            KubernetesClient.connect(sandbox.kubeconfig(tmp_path / "kubeconfig"), worker="inventory") as client,
            running(
                inventory := Inventory(
                    bus, client, registry=CollectorRegistry(), card_metrics=0, cards=False, outcomes=True
                )
            ),
        ):
            await eventually(lambda: inventory.unready() is None)
            requests = {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
            spec = {"nodeName": "a", "containers": [{"name": "main", "image": "x", **requests}]}
            pod = {"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": spec}
            sandbox.cluster.create(PODS, "default", pod, manager="test")
            ended = [{"name": "main", "restartCount": 0, "state": {"terminated": {"exitCode": 1}}}]
            sandbox.cluster.patch(
                PODS, "default", "web", {"status": {"containerStatuses": ended}}, manager="kubelet", status=True
            )
            await eventually(knows(one, 1))
            pigeon = one.agent("pigeon-holing")
            assert isinstance(pigeon, Pigeon)
            await eventually(lambda: len(pigeon.snapshot()["demands"]) == 1)
            assert pigeon.snapshot()["demands"] == [("default", [500.0, 1024.0])]
        await fail(bus, ["2", "3"])
        await eventually(knows(one, 3))
        last = (await epoch_on(bus, OUTCOMES)).last_sequence

        async def is_stored() -> bool:
            states = [await stored(bus, name) for name in ("rl-priority", "pigeon-holing")]
            return all(state is not None and state.sequence == last for state in states)

        await eventually(is_stored)
        async with replica(bus, tmp_path) as two:  # knows it at once, and learns with the first
            assert knows(two, 3)()
            assert two.agent("pigeon-holing").snapshot() == pigeon.snapshot()
            await fail(bus, ["4"])
            await eventually(knows(one, 4))
            await eventually(knows(two, 4))
            writes = [each.metric("tas_agent_state_writes_total", "rl-priority") for each in (one, two)]
            assert max(writes) >= 1
            await first.aclose()
            await fail(bus, ["5"])
            last = (await epoch_on(bus, OUTCOMES)).last_sequence
            await eventually(is_stored)  # by the second one

    await fail(bus, ["6"])  # while no replica runs
    before = await stored(bus, "rl-priority")
    assert before is not None
    async with replica(bus, tmp_path) as three:
        await eventually(knows(three, 6))
        await server.restart(wiped=True)
        await complete(bus)

        async def is_stored_again() -> bool:
            state = await stored(bus, "rl-priority")
            return state is not None and state.since == before.since

        await eventually(is_stored_again)
        await fail(bus, ["7", "6"])  # the second one again
        await eventually(lambda: three.metric("tas_agent_events_total", "rl-priority") >= 3)
        await eventually(knows(three, 7))

    # What another version has stored is refused, and the agent learns from what the log still has.
    other = msgspec.structs.replace(before, state={"version": 99})

    async def put_other() -> int:
        entry = await LEARNED_STATES.get(bus, "rl-priority")
        return await LEARNED_STATES.put(bus, "rl-priority", other, revision=entry.revision, read_at=time.monotonic())

    await answered(put_other)
    with capture_logs() as logs:
        async with replica(bus, tmp_path) as four:
            await eventually(knows(four, 2))
            assert four.metric("tas_agent_learned_since_seconds", "rl-priority") > before.since

            async def is_ours() -> bool:
                state = await stored(bus, "rl-priority")
                return state is not None and state.state["version"] == SNAPSHOT_VERSION

            await eventually(is_ours)
    (refused,) = [line for line in logs if line["event"] == "agent_state_refused"]
    assert (refused["agent"], "version = 99" in refused["error"]) == ("rl-priority", True)


async def test_a_fault_of_an_agent_ends_its_own_learning_at_most(bus: Bus, tmp_path: Path) -> None:
    await complete(bus)
    # On a busy machine a call that ends at once takes more than 100 ms, or a second, until the thread has its turn.
    others = ", ".join(f"{name}: {{timeout: 10s}}" for name in ("counts", "places", "raises", "large"))
    file = f"agents: {{{others}, spins: {{timeout: 500ms}}}}"
    with capture_logs() as logs:
        async with replica(bus, tmp_path, file) as found:
            await answered(lambda: publish_outcomes(bus, [Placed(uid="0", node="a", at=1.0, requests={})]))
            await fail(bus, ["1", "2"])
            seen = {name: ["0", "1", "2"] for name in ("counts", "large")}
            seen |= {"raises": ["0", "2"], "spins": ["0", "2"], "places": ["0"]}  # one event costs nothing else
            await eventually(lambda: {name: found.agent(name).seen for name in seen} == seen)
            assert found.metric("tas_agent_events_failed_total", "raises") == 1
            assert found.metric("tas_agent_events_failed_total", "spins") == 1
            assert found.metric("tas_agent_learning", "spins") == 1
            await fail(bus, ["3", "4", "5", "6"])
            everything = ["0", "1", "2", "3", "4", "5", "6"]
            seen |= {"counts": everything, "large": everything, "raises": ["0", "2", "3", "4", "5", "6"]}
            await eventually(lambda: {name: found.agent(name).seen for name in seen} == seen)

            async def are_stored() -> bool:
                return all([(await stored(bus, name)) is not None for name in ("counts", "raises")])

            await eventually(are_stored)
            await eventually(lambda: any(line["event"] == "agent_state_too_large" for line in logs))
            await eventually(lambda: any(line["event"] == "agent_learning_stopped" for line in logs))
            await eventually(lambda: found.metric("tas_agent_learning", "spins") == 0)
            assert found.metric("tas_agent_learning", "raises") == 1
            assert found.metric("tas_agent_events_failed_total", "spins") == 4
            assert await stored(bus, "large") is None
            assert found.metric("tas_agent_state_bytes", "large") > 2**20
    async with replica(bus, tmp_path, "agents: {counts: }") as again:
        await fail(bus, ["7"])
        await eventually(lambda: again.agent("counts").seen[-1:] == ["7"])
        assert again.agent("counts").seen == [*everything, "7"]  # each once: it has continued where the first ended
    failures = [(line["agent"], line["error"]) for line in logs if line["event"] == "agent_event_failed"]
    assert {("raises", "ValueError: not this one"), ("spins", "observe: no answer within 0.5 s")} == set(failures)
    (stopped,) = [line for line in logs if line["event"] == "agent_learning_stopped"]
    assert (stopped["agent"], stopped["error"]) == ("spins", "observe: no answer within 0.5 s, 3 times in a row")


async def test_the_replica_that_has_learned_for_longer_is_right(bus: Bus, tmp_path: Path) -> None:
    """A replica that began without a state takes the one of another replica when it is stored."""
    await complete(bus)
    await fail(bus, ["2"])
    async with replica(bus, tmp_path, "agents: {counts: }") as found:
        await eventually(lambda: found.agent("counts").seen == ["2"])
        older = LearnedState(agent="counts", sequence=1, since=5.0, state={"version": 1, "seen": ["1"]})

        async def put(record: LearnedState) -> int:
            entry = await LEARNED_STATES.get(bus, "counts")
            return await LEARNED_STATES.put(bus, "counts", record, revision=entry.revision, read_at=time.monotonic())

        await answered(lambda: put(older))
        await eventually(lambda: found.agent("counts").seen == ["1", "2"])

        async def is_stored() -> bool:
            state = await stored(bus, "counts")
            return state is not None and state.sequence == (await epoch_on(bus, OUTCOMES)).last_sequence

        await eventually(is_stored)
        same = await stored(bus, "counts")
        assert same is not None
        await answered(lambda: put(same))  # as another replica, which then writes no more
        await fail(bus, ["3"])
        await eventually(is_stored)
        last = {"last_by_subj": "$KV.AGENTS.counts"}
        message = (await answered(lambda: bus.api("STREAM.MSG.GET.KV_AGENTS", last)))["message"]
        assert b"Nats-TTL: 2592000\r\n" in base64.b64decode(message["hdrs"])
    # What is stored is no state for another agent of this name.
    with capture_logs() as logs:
        async with replica(bus, tmp_path, "agents: {counts: {agent: places}}") as other:
            assert other.agent("counts").seen == []
    (refused,) = [line for line in logs if line["event"] == "agent_state_refused"]
    assert "agent = 'counts': is another agent" in refused["error"]


async def test_no_event_is_later_than_its_message(bus: Bus, tmp_path: Path) -> None:
    """Else one observer with a clock ahead makes what was learned before expire."""
    ahead, past = time.time() + 30 * 86400, float(int(time.time() - 60))
    events: list[Placed | Outcome] = [
        replace(failed("1"), at=ahead),
        Placed(uid="2", node="a", at=ahead, requests={}),
        replace(failed("3"), at=past),
    ]
    await complete(bus)
    async with replica(bus, tmp_path, "agents: {times: }") as found:
        for answer in await answered(lambda: publish_outcomes(bus, events)):
            assert isinstance(answer, int)
        agent = found.agent("times")
        await eventually(lambda: len(agent.seen) == 3)
        first, second, third = map(float, agent.seen)
        assert past < first <= time.time() + 1
        assert past < second <= time.time() + 1
        assert third == past


@pytest.mark.parametrize("ahead", [1, 2**62])
async def test_a_state_that_is_ahead_of_the_log_is_refused_and_replaced(bus: Bus, tmp_path: Path, ahead: int) -> None:
    """Whoever wrote it: with this sequence no replica would observe anything any more, and store the sequence again."""
    await complete(bus)

    async def put() -> int:
        sequence = (await epoch_on(bus, OUTCOMES)).last_sequence + ahead
        state = LearnedState(agent="counts", sequence=sequence, since=1.0, state={"version": 1, "seen": ["hostile"]})
        entry = await LEARNED_STATES.get(bus, "counts")
        return await LEARNED_STATES.put(bus, "counts", state, revision=entry.revision, read_at=time.monotonic())

    async def is_stored() -> bool:
        state = await stored(bus, "counts")
        return state is not None and state.sequence == (await epoch_on(bus, OUTCOMES)).last_sequence

    with capture_logs() as logs:
        await answered(put)
        async with replica(bus, tmp_path, "agents: {counts: }") as found:  # which reads the state at its start
            await fail(bus, ["1"])
            await eventually(is_stored)
            await answered(put)  # while it runs
            await eventually(is_stored)
            await fail(bus, ["2"])
            await eventually(lambda: found.agent("counts").seen == ["1", "2"])
    refused = [line["error"] for line in logs if line["event"] == "agent_state_refused"]
    assert refused
    assert all("sequence = " in error and "the last of OUTCOMES" in error for error in refused)


def test_an_agent_that_hands_over_for_too_long_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would block all agents of the process, and nothing would say which one."""
    monkeypatch.setattr("workers.agents.learner.RESTORE_SECONDS", 0.1)

    class Endless(Counts):
        def snapshot(self) -> dict[str, Any]:
            while True:
                pass

    before, after = (
        LoadedAgent(config=AgentConfig(name="endless", kind="endless"), agent=Endless(), target="", package="")
        for _ in range(2)
    )
    interrupter = Interrupter()
    with interrupter.watching(), capture_logs() as logs:
        assert not hand_over(before, after, interrupter)
    (refused,) = logs
    assert (refused["event"], refused["agent"]) == ("agent_state_refused", "endless")
    assert "no answer within 0.1 s" in refused["error"]


async def test_an_agent_with_new_options_learns_on(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.process.followed_file.CHECK_SECONDS", 0.01)
    monkeypatch.setattr("workers.agents.learner.SAVE_SECONDS", 1000.0)  # nothing is stored
    await complete(bus)
    await fail(bus, ["1"])
    async with replica(bus, tmp_path, "agents: {changes: }") as found:
        await eventually(lambda: found.agent("changes").seen == ["1"])
        before = found.agent("changes")
        new = tmp_path / "new.yaml"
        new.write_text("agents: {changes: {options: {level: 2}}}")
        new.rename(tmp_path / "agents.yaml")
        await eventually(lambda: found.agent("changes").level == 2)
        await fail(bus, ["2"])
        await eventually(lambda: found.agent("changes").seen[-1:] == ["2"])
        assert found.agent("changes").seen == ["1", "2"]
        assert before.seen == ["1"]  # it does not observe any more
