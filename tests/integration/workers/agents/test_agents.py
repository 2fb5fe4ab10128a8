"""The process that serves agents, over a real nats-server: its paths, its file, and the faults of one agent."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import NODES, POLICIES, SAMPLES, TABLES
from bus.connection import Bus
from bus.kinds import NODE_ALLOCATION
from tas.agents.agent import Agent, Candidates, Needs, Passes, PodDemand, Scores
from tas.allocation.node import NodeAllocation
from tas.errors import InvalidInputError
from tests.e2e.processes import free_ports
from tests.integration.servers import answered, eventually
from tests.integration.workers.materialize.test_materialize import materializing
from tests.integration.workers.running import put, running
from workers.agents.agents_file import GROUP, AgentsFile
from workers.agents.configured import hooks_of
from workers.agents.interrupting import Interrupter
from workers.agents.learner import hand_over
from workers.agents.worker import BIND_REFUSAL, AgentsWorker
from workers.following.followed_view import FollowedView
from workers.following.synced import write_synced
from workers.http.address import Address
from workers.process.errors import StartError
from workers.process.version import product_version
from workers.scheduler.server import SchedulerServer

POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}}
NAMES = {"Pod": POD, "Nodes": None, "NodeNames": ["a", "b"]}
NODES_IN_FULL = {"pod": POD, "nodes": {"items": [{"metadata": {"name": name}} for name in "ab"]}, "nodenames": None}
BINDING = {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "a"}
PROGRAM = "tests.integration.workers.agents.test_agents"


class Level(msgspec.Struct, frozen=True, kw_only=True):
    level: int = 3


def constant(value: float, nodes: Candidates) -> Scores:
    count = len(nodes.names)
    return Scores(values=np.full(count, value, dtype=np.float64), known=np.ones(count, dtype=np.bool_))


class Fixed(Agent):
    """Rejects node b, and scores its level. What it learns is the highest level that it ever had."""

    Options = Level

    def __init__(self, options: Level) -> None:
        self.level = self.highest = options.level

    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        every = np.ones(len(nodes.names), dtype=np.bool_)
        return Passes(passed=np.array([name != "b" for name in nodes.names]), known=every, reason="is b")

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        return constant(self.level / 10, nodes)

    def snapshot(self) -> dict[str, int]:
        return {"highest": self.highest}

    def restore(self, state: Any) -> None:
        if state["highest"] > 100:
            raise InvalidInputError("agent", "highest", state["highest"], "is too high")
        self.highest = max(self.highest, state["highest"])


class Loaded(Agent):
    """Rejects nodes whose load is above 0.6, and scores the load."""

    @property
    def needs(self) -> Needs:
        return Needs(metrics=["load"])

    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        load = nodes.metric("load")
        return Passes(passed=load <= 0.6, known=~np.isnan(load), reason="is loaded")

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        load = nodes.metric("load")
        return Scores(values=np.nan_to_num(load), known=~np.isnan(load))


class Sized(Agent):
    """Scores by what nodes have."""

    @property
    def needs(self) -> Needs:
        return Needs(allocations=True)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        cpu = nodes.allocatable("cpu")
        return Scores(values=np.nan_to_num(cpu) / 8000, known=~np.isnan(cpu))


class Raises(Agent):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        return constant(1 // 0, nodes)


class Spins(Agent):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        while True:
            pass


class Sleeps(Agent):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        time.sleep(600)
        raise AssertionError


class Exits(Agent):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        raise SystemExit(3)


class Eleven(Agent):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        return constant(11.0, nodes)


class NotANumber(Agent):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        return constant(float("nan"), nodes)


class Broken(Raises):
    @property
    def needs(self) -> Needs:
        raise ValueError("no needs")


class Unmakeable(Fixed):
    def __init__(self, options: Level) -> None:
        raise OSError("no licence")


FAULTY = (Raises, Spins, Sleeps, Exits, Eleven, NotANumber, Broken)
INSTALLED = [
    EntryPoint("loaded", f"{PROGRAM}:Loaded", GROUP),
    EntryPoint("sized", f"{PROGRAM}:Sized", GROUP),
    *[EntryPoint(kind.__name__.lower(), f"{PROGRAM}:{kind.__name__}", GROUP) for kind in FAULTY],
    EntryPoint("gone", "a_package_that_is_not_there:Agent", GROUP),
    EntryPoint("twice", f"{PROGRAM}:Raises", GROUP),
    EntryPoint("twice", f"{PROGRAM}:Exits", GROUP),
    EntryPoint("found-twice", f"{PROGRAM}:Raises", GROUP),
    EntryPoint("found-twice", f"{PROGRAM}:Raises", GROUP),
    EntryPoint("no-agent", f"{PROGRAM}:constant", GROUP),
    EntryPoint("unmakeable", f"{PROGRAM}:Unmakeable", GROUP),
    EntryPoint("fixed", "the name of a built-in agent:counts not", GROUP),
]


@dataclass
class Served:
    worker: AgentsWorker
    url: str
    session: aiohttp.ClientSession
    registry: CollectorRegistry
    file: Path

    async def ask(self, path: str, body: object = NAMES) -> tuple[int, Any]:
        async with self.session.post(f"{self.url}{path}", json=body) as reply:
            return reply.status, await reply.json()

    async def score(self, name: str) -> int:
        status, scores = await self.ask(f"/scheduler/priorities/{name}")
        assert status == 200, scores
        return int(scores[0]["Score"])

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def write(self, text: str) -> None:
        other = self.file.with_suffix(".new")
        other.write_text(text)
        other.rename(self.file)


def agents_file(path: Path | None, registry: CollectorRegistry | None = None) -> AgentsFile:
    return AgentsFile(
        path, builtin={"fixed": Fixed}, installed=INSTALLED, registry=registry or CollectorRegistry(),
        fallbacks={"fixed": {"level": 4}},
    )  # fmt: skip


@asynccontextmanager
async def serving(
    bus: Bus, folder: Path, text: str | None, *, ready: bool = True, cluster: bool = True
) -> AsyncIterator[Served]:
    path = folder / "agents.yaml"
    if text is not None:
        path.write_text(text)
    registry, listen = CollectorRegistry(), Address("127.0.0.1", *free_ports(1))
    source = agents_file(None if text is None else path, registry)
    worker = AgentsWorker(
        bus,
        FollowedView(bus, default_stale_after=60.0),
        source,
        await source.load(),
        SchedulerServer("agents", listen, registry),
        hooks_of=hooks_of,
        registry=registry,
    )
    async with running(worker), aiohttp.ClientSession() as session:
        served = Served(worker, f"http://{listen}", session, registry, path)

        async def listens() -> bool:
            try:
                return (await served.ask("/scheduler/bind"))[0] > 0
            except aiohttp.ClientError:
                return False

        await eventually(listens)
        if ready:
            await complete(bus, cluster=cluster)
            await eventually(lambda: worker.unready() is None)
        yield served


async def complete(bus: Bus, *, cluster: bool = True) -> None:
    """The lists of policies and nodes are stored: both are empty. Without a `cluster` each name is a node."""
    for bucket in (POLICIES, NODES):
        epoch = await answered(partial(bus.epoch, bucket))
        await answered(partial(write_synced, bus, bucket, epoch, count=0, writer="test", cluster=cluster))


async def test_defects_f2_f3_f4_f5_f6_each_agent_answers_below_its_paths_and_binds_nothing(
    bus: Bus, tmp_path: Path
) -> None:
    async with serving(bus, tmp_path, "agents: {fixed: {options: {level: 7}}, other: {agent: fixed}}") as served:
        for path in ("/fixed/filter", "/scheduler/predicates/fixed"):
            status, answer = await served.ask(path)
            assert (status, answer["NodeNames"]) == (200, ["a"])
            assert {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]} == {"b": "fixed: is b"}
            status, answer = await served.ask(path, NODES_IN_FULL)
            assert (status, answer["Nodes"]["items"]) == (200, [{"metadata": {"name": "a"}}])
        for path in ("/fixed/prioritize", "/scheduler/priorities/fixed"):
            assert await served.ask(path) == (200, [{"Host": "a", "Score": 7}, {"Host": "b", "Score": 7}])
        assert await served.score("other") == 4  # the fall-back
        assert await served.ask("/scheduler/bind", BINDING) == (200, {"Error": BIND_REFUSAL})
        async with served.session.get(f"{served.url}/version") as reply:
            assert (reply.status, reply.content_type, await reply.text()) == (200, "text/plain", product_version())
        # D-F2: nothing ends without an answer that says why.
        for path in ("/scheduler/predicates/fixed", "/scheduler/priorities/fixed", "/scheduler/bind"):
            status, answer = await served.ask(path, {"Pod": None})
            assert (status, bool(answer["error"])) == (400, True)
        for path in ("/scheduler/preemption", "/scheduler/predicates/none", "/fixed/preempt", "/fixed", "/none/filter"):
            assert (await served.ask(path))[0] == 404
        # Both paths of a verb are one in metrics.
        counted = {"path": "/fixed", "verb": "filter"}
        assert served.metric("tas_extender_requests_total", **counted, code="200") == 4
        assert served.metric("tas_extender_requests_total", **counted, code="400") == 1
        assert served.metric("tas_extender_rejected_total", path="/fixed") == 4


@pytest.mark.parametrize("forms", [["nodes"], ["tables"], ["nodes", "tables", "nodes"]], ids=" then ".join)
async def test_what_an_agent_reads_may_come_by_node_or_in_tables(bus: Bus, tmp_path: Path, forms: list[str]) -> None:
    async with serving(bus, tmp_path, "agents: {loaded: }", cluster=False) as served, materializing(bus):
        for number, form in enumerate([*forms, forms[-1]]):
            load = [0.2, 0.7] if number % 2 else [0.7, 0.2]
            if form == "tables":
                await put_table(bus, {"nodes": ["a", "b"], "metrics": {"load": load}})
            else:
                for node, value in zip("ab", load, strict=True):
                    body = json.dumps({"metrics": {"load": value}}).encode()
                    await answered(partial(bus.publish, SAMPLES, f"tas.samples.{node}.own", body))
            expected = [{"Host": node, "Score": round(10 * value)} for node, value in zip("ab", load, strict=True)]

            async def are_known(expected: list[dict[str, Any]] = expected) -> bool:
                return await served.ask("/loaded/prioritize") == (200, expected)

            await eventually(are_known)
            _, answer = await served.ask("/loaded/filter")
            assert answer["NodeNames"] == (["a"] if number % 2 else ["b"])


async def put_table(bus: Bus, body: dict[str, Any]) -> None:
    await answered(partial(bus.publish, TABLES, "tas.tables.own.1-0", json.dumps(body).encode()))


async def test_an_agent_that_knows_too_little_of_every_node_is_a_concern_until_it_knows_more(
    bus: Bus, tmp_path: Path
) -> None:
    """As after the end of `--allocations on` of inventory: people look at the status, and nothing else fails."""
    async with serving(bus, tmp_path, "agents: {sized: , loaded: }", cluster=False) as served:

        def concerns() -> list[str]:
            return list(served.worker.concerns())

        async def scores(*expected: int) -> None:
            async def are_so() -> bool:
                return [each["Score"] for each in (await served.ask("/sized/prioritize"))[1]] == list(expected)

            await eventually(are_so)

        assert concerns() == []
        await served.score("loaded")
        served.write("agents: {sized: }")
        await eventually(lambda: served.metric("tas_agents") == 1)
        assert concerns() == []  # the agent is not served any more
        lacking = "sized knew too little of every node when it was asked last (prioritize), as of node a: "
        lacking += "unknown: allocation"
        await scores(0, 0)
        assert concerns() == [lacking]
        allocation = NodeAllocation(uid="u", allocatable={"cpu": 4000})
        await answered(partial(NODE_ALLOCATION.put, bus, "a", allocation, revision=0, read_at=time.monotonic()))
        await scores(5, 5)  # the other gets the mean
        assert concerns() == []
        await put(bus, NODES, "a.allocation", None)
        await scores(0, 0)
        assert concerns() == [lacking]


async def test_it_is_unready_until_the_view_is_complete(bus: Bus, tmp_path: Path) -> None:
    async with serving(bus, tmp_path, None, ready=False) as served:
        status, answer = await served.ask("/fixed/filter")
        assert (status, "not ready" in answer["error"]) == (503, True)
        assert served.worker.unready() is not None
        await complete(bus)
        await eventually(lambda: served.worker.unready() is None)
        assert await served.score("fixed") == 4
        # Without a file the built-in agents run, and no others.
        assert (await served.ask("/raises/prioritize"))[0] == 404
        assert served.metric("tas_agents") == 1


FAULTS = """
agents:
  {fixed: , raises: , exits: , eleven: , notanumber: , broken: , spins: {timeout: 100ms}, sleeps: {timeout: 100ms}}
"""


async def test_a_fault_of_an_agent_affects_its_own_path_alone(bus: Bus, tmp_path: Path) -> None:
    async with serving(bus, tmp_path, FAULTS) as served:
        for name, expected in {
            "raises": (500, "ZeroDivisionError"),
            "exits": (500, "SystemExit"),
            "eleven": (500, "a = 11.0: a score is a number from 0 to 1"),
            "notanumber": (500, "a = nan: a score is a number from 0 to 1"),
            "broken": (503, "ValueError: 'no needs'"),
            "spins": (500, "no answer within 0.1 s"),
            "sleeps": (500, "no answer within 0.1 s"),
        }.items():
            began = time.monotonic()
            faulty, fine = await asyncio.gather(served.ask(f"/{name}/prioritize"), served.ask("/fixed/filter"))
            error = faulty[1]["error"]
            assert (faulty[0], expected[1] in error, name in error) == (expected[0], True, True)
            assert fine[0] == 200
            assert time.monotonic() - began < 60
            assert await served.score("fixed") == 4
            assert served.metric("tas_extender_requests_total", path=f"/{name}", verb="prioritize", code="200") == 0


async def test_the_file_is_followed_and_an_invalid_one_changes_nothing(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.process.followed_file.CHECK_SECONDS", 0.01)
    with capture_logs() as logs:

        def reads() -> list[Any]:
            return [line["agents"] for line in logs if line["event"] == "agents_read"]

        async with serving(bus, tmp_path, "agents: {fixed: {options: {level: 9}}}") as served:
            assert await served.score("fixed") == 9
            served.write("agents: {fixed: {options: {level: 10}}, also: {agent: fixed, weight: 0}}")
            await eventually(lambda: served.metric("tas_agents_readable") == 0)
            assert await served.score("fixed") == 9
            assert served.worker.unready() is None
            (refused,) = (line for line in logs if line["event"] == "agents_unreadable")
            assert f"agents {served.file}: agents.also.weight = 0: " in refused["error"]
            assert not reads()

            # The old content again is a repair, too.
            served.write("agents: {fixed: {options: {level: 9}}}")
            await eventually(lambda: bool(reads()))
            assert (reads(), served.metric("tas_agents_readable")) == ([["fixed"]], 1)

            served.write("agents: {fixed: {options: {level: 2}}, also: {agent: fixed}}")
            await eventually(lambda: served.metric("tas_agents") == 2)
            assert served.metric("tas_agents_readable") == 1
            assert (await served.score("fixed"), await served.score("also")) == (2, 4)
            served.write("agents: {also: {agent: fixed}}")
            await eventually(lambda: served.metric("tas_agents") == 1)
            assert (await served.ask("/fixed/filter"))[0] == 404
            assert await served.score("also") == 4
            # What was counted stays counted.
            assert served.metric("tas_extender_requests_total", path="/fixed", verb="prioritize", code="200") == 3


async def test_an_agent_with_new_options_keeps_what_it_has_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.process.followed_file.CHECK_SECONDS", 0.01)
    path = tmp_path / "agents.yaml"

    def write(levels: dict[str, int]) -> None:
        path.write_text(
            str({"agents": {name: {"agent": "fixed", "options": {"level": each}} for name, each in levels.items()}})
        )

    write({"same": 1, "changes": 9, "too-high": 101})
    file = agents_file(path)
    before = dict(await file.load())
    write({"same": 1, "changes": 2, "too-high": 3})
    interrupter = Interrupter()
    with interrupter.watching(), capture_logs() as logs:
        after = await asyncio.wait_for(file.changed(), 60)
        names = ("changes", "too-high")
        assert [each for each in names if hand_over(before[each], after[each], interrupter)] == ["changes"]
    assert after["same"] is before["same"]
    changed, refused = after["changes"].agent, after["too-high"].agent
    assert isinstance(changed, Fixed)
    assert isinstance(refused, Fixed)
    assert (changed.level, changed.highest) == (2, 9)
    assert (refused.level, refused.highest) == (3, 3)
    assert [line["agent"] for line in logs if line["event"] == "agent_state_refused"] == ["too-high"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agents: {gone: }", "agent = 'gone': a_package_that_is_not_there:Agent cannot be loaded: ModuleNotFoundError"),
        (
            "agents: {a: {agent: twice}}",
            f"agent = 'twice': several packages have an agent of this name: {PROGRAM}:Exits and {PROGRAM}:Raises",
        ),
        ("agents: {no-agent: }", "must be a subclass of tas.agent.Agent"),
        ("agents: {unmakeable: }", "OSError: no licence"),
        (
            "agents: {a: {agent: none}}",
            "agents.a.agent = 'none': is not installed: must be one of broken, eleven, exits, fixed, ",
        ),
        ("agents: {fixed: {options: {level: x}}}", "agents.fixed.options.level = 'x': must be a whole number"),
        ("agents: [", "no YAML: line 2"),
        ("", "agents = None: must have at least one agent"),
    ],
)
async def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text(text)
    with pytest.raises(StartError) as raised:
        await agents_file(path).load()
    assert message in str(raised.value)
