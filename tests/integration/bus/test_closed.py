"""A closed bus: each process with the credentials of its own user, and what these users must not do."""

import asyncio
import re
import shutil
import time
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bus import connection
from bus.buckets import (
    AGENTS,
    ALL,
    BREAKERS,
    EVENTS,
    HEADER_BYTES,
    HOLDS,
    LEASES,
    NODES,
    POLICIES,
    REFUSALS,
    SAMPLES,
    SAMPLES_CONSUMER,
    SOURCES,
    TABLES,
    TABLES_CONSUMER,
    VERDICT_LOG,
    VERDICTS,
    Bucket,
    Stream,
)
from bus.connection import DEFAULT_VALUE_BYTES, Bus
from bus.errors import ForbiddenError, RefusedError, UnavailableError
from bus.kinds import BREAKER_RECORDS, NODE_VERDICTS
from bus.pull import Message
from bus.record_kind import Entry, Unreadable
from bus.rights.access import Access
from bus.scrapes import publish_scrape
from bus.stream_reader import FROM_START, StreamReader
from bus.subjects import samples_subject, token
from bus.subscription import Subscription
from bus.verdict_log import logged_verdicts
from cli.loading import load_settings
from cli.wiring import Process
from lab.sandbox.resources import NODES as SANDBOX_NODES
from lab.sandbox.resources import TASPOLICIES
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tas.verdict.freeze import Breaker, Trip
from tests.e2e.processes import free_ports
from tests.integration.bus.closed import Closed, closed
from tests.integration.servers import answered, eventually
from tests.integration.watched import meanwhile
from tests.sandbox import Sandbox
from workers.names import run_by
from workers.registry import WORKERS, with_commands, workers_of_all
from workers.roles import ROLES

pytestmark = pytest.mark.usefixtures("long_limits")
__all__ = ["closed"]

SINKS = "sinks: {hook: {type: cloudevents, url: http://127.0.0.1:9/}}"
PROCESSES = [spec.name for spec in with_commands() if spec.in_cluster and spec.name != "keeper"]
"""The processes of a cluster."""

GIVEN = {
    "labels": {"breaker": "off", "breaker_all": "off", "new_bus_wait": "0s"},
    "collect": {"period": "200ms", "source": "custom-metrics"},
    "inventory": {"allocations": "on", "outcomes": "on", "annotations": "on", "new_bus_wait": "0s"},
}
"""The settings of single processes."""

RULE = {"metricname": "health", "operator": "Equals", "target": 2}
MEAN = {"metricname": "load:mean:1m", "operator": "GreaterThan", "target": 5}
FEW = 16
"""More subscriptions than any of these processes has."""

STRATEGIES = {
    "deschedule": {"rules": [RULE], "taint": {"effect": "NoSchedule"}, "nodeCondition": True},
    "dontschedule": {"rules": [RULE, MEAN]},
}


async def start(stack: AsyncExitStack, closed: Closed, process: str, kubeconfig: Path, folder: Path) -> Process:
    """A process with the credentials of its user, in this event loop."""
    command = f"run {process}"
    sources = ("custom-metrics",) if process == "collect" else ()
    texts = {
        "bus": closed.server.url,
        "bus_credentials": str(closed.user(process, "", *sources)),
        "health_listen": "127.0.0.1:0",
        **GIVEN.get(process, {}),
    }
    spec = WORKERS[process]
    if spec.listens:
        texts["listen"] = f"127.0.0.1:{free_ports(1)[0]}"
    if spec.needs_kubernetes:
        texts["kubeconfig"] = str(kubeconfig)
    if process == "notify":
        texts["sinks"] = str(folder / "sinks.yaml")
    settings = load_settings(command, texts)
    parts = Process(settings, stack)
    await parts.build(run_by(process))
    stop = asyncio.Event()
    running = asyncio.create_task(parts.run(stop), name=process)

    async def end() -> None:
        stop.set()
        assert await running == 0, process

    stack.push_async_callback(end)
    return parts


class Program:
    """Publishes the values of each node again and again: those of one moment are stale after a minute.

    Attributes:
        metrics: By node, with values that they have had for nearly a minute.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.metrics: dict[str, dict[str, str]] = {}

    async def run(self) -> None:
        """Publishes until cancelled."""
        while True:
            for node, metrics in list(self.metrics.items()):
                for ago in (50.0, 20.0, 0.0):
                    with suppress(UnavailableError):
                        await publish(self._bus, node, ago=ago, **metrics)
            await asyncio.sleep(0.2)


async def publish(bus: Bus, node: str, *, ago: float = 0.0, **metrics: str) -> None:
    at = time.time() - ago
    values = {metric: parse_quantity(text) for metric, text in metrics.items()}
    await publish_scrape(bus, node, Scrape(source="probe", measured=at, arrived=at, sequence=0, metrics=values))


@pytest.mark.ci
async def test_the_loop_works_with_the_rights_of_each_process_also_after_a_wipe(closed: Closed, tmp_path: Path) -> None:
    (tmp_path / "sinks.yaml").write_text(SINKS)
    async with Sandbox.start(nodes=["a", "b"]) as sandbox, AsyncExitStack() as stack:
        kubeconfig = sandbox.kubeconfig(tmp_path / "kubeconfig")

        def node() -> dict[str, Any]:
            found: dict[str, Any] = sandbox.cluster.get(SANDBOX_NODES, "", "a")
            return found

        def is_marked() -> bool:
            spec, status = node()["spec"], node()["status"]
            return any(each["key"].endswith("/sick") for each in spec.get("taints", ())) and any(
                each["type"].endswith("/sick") and each["status"] == "True" for each in status["conditions"]
            )

        # Who may not create streams waits for the keeper, and says so.
        first = await start(stack, closed, "evaluate", kubeconfig, tmp_path)
        await eventually(lambda: "is missing, and the user tas-evaluate" in str(first.context.bus_problem()))
        keeper = await start(stack, closed, "keeper", kubeconfig, tmp_path)
        await eventually(lambda: not keeper.unready())
        processes = {
            name: await start(stack, closed, name, kubeconfig, tmp_path) for name in PROCESSES if name != "evaluate"
        }
        body = {
            "apiVersion": "telemetry.intel.com/v1alpha1",
            "kind": "TASPolicy",
            "metadata": {"name": "sick"},
            "spec": {"strategies": STRATEGIES},
        }
        sandbox.cluster.create(TASPOLICIES, "default", body, manager="author")
        sandbox.metrics.set("health", "b", 0)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        address = processes["extender"].context.settings.listen

        async def rejected() -> set[str]:
            pod = {"metadata": {"name": "p", "namespace": "default", "labels": {"telemetry-policy": "sick"}}}
            request = {"Pod": pod, "Nodes": None, "NodeNames": ["a", "b"]}
            async with session.post(f"http://{address}/scheduler/filter", json=request) as answer:
                found = await answer.json()
                return {"a", "b"} - set(found.get("NodeNames") or ()) if answer.status == 200 else set()

        async def rejects(*nodes: str) -> bool:
            return await rejected() == set(nodes)

        probe = Program(await stack.enter_async_context(closed.connected("publisher", "probe-of-all", "probe")))
        reader = await stack.enter_async_context(closed.connected("reader"))
        await eventually(lambda: not any(each.unready() for each in processes.values()))
        probe.metrics = {"a": {"health": "2"}, "b": {"load": "9"}}
        await stack.enter_async_context(meanwhile(probe.run()))
        await eventually(lambda: node()["metadata"].get("labels", {}).get("sick") == "violating")
        await eventually(is_marked)
        await eventually(lambda: rejects("a", "b"))  # b by a statistic
        await eventually(lambda: "telemetry/scheduling" in node()["status"]["allocatable"])

        async def has(subject: str, of: Any) -> bool:
            return bool(await reader.last_messages(of, subject))

        await eventually(lambda: has(NODES.subject("_table.custom-metrics.1-0"), NODES))
        await eventually(lambda: has("tas.events.violation.>", EVENTS))
        await eventually(lambda: has(NODES.subject("a.allocation"), NODES))
        most = await closed.subscriptions()
        assert {f"tas-{process}" for process in PROCESSES} < most.keys()
        too_many = {name: count for name, count in most.items() if count > FEW}
        assert not too_many, "the limit of a process is many times of what it has"
        (attempt,) = closed.violations()  # of evaluate, once, before the keeper ran
        assert attempt.startswith("Publish $JS.API.STREAM.CREATE.KV_")

        await closed.server.stop()
        shutil.rmtree(closed.server.log.parent / "store")
        await closed.server.start()
        await eventually(lambda: not any(each.unready() for each in processes.values()))
        probe.metrics["a"] = {"health": "0"}
        await eventually(lambda: "sick" not in node()["metadata"].get("labels", {}))
        await eventually(lambda: rejects("b"))
        probe.metrics["a"] = {"health": "0", "load": "9"}
        await eventually(lambda: rejects("a", "b"))  # windows goes on: a had no load before the wipe
        assert all("STREAM.CREATE" in each for each in closed.violations())


async def test_one_process_with_all_rights_is_also_the_keeper(closed: Closed, tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    texts = {
        "bus": closed.server.url,
        "bus_credentials": str(closed.user("all")),
        "policies": str(tmp_path / "policies"),
        "health_listen": "127.0.0.1:0",
        "listen": f"127.0.0.1:{free_ports(1)[0]}",
    }
    settings = load_settings("run all", texts)
    async with AsyncExitStack() as stack:
        parts = Process(settings, stack)
        await parts.build(workers_of_all(settings))
        stop = asyncio.Event()
        running = asyncio.create_task(parts.run(stop))
        try:
            await eventually(lambda: not parts.unready() and parts.context.bus_problem() is None)
            reader = await stack.enter_async_context(closed.connected("reader"))
            for of in ALL:  # also those that no worker of this process uses
                await eventually(partial(_exists, reader, of))
            # Its extender answers without the bus, and would leave its Service with a keeper that is not ready.
            await closed.server.stop()
            try:
                await eventually(lambda: parts.context.bus_problem() is not None)
                assert parts.unready() == {}
            finally:
                await closed.server.start()
        finally:
            stop.set()
            assert await running == 0
    assert closed.violations() == []


async def _exists(bus: Bus, of: Stream | Bucket) -> bool:
    try:
        await bus.epoch(of)
    except UnavailableError:
        return False
    return True


def api(verb: str) -> str:
    return f"$JS.API.{verb}"


OF_MATERIALIZE = tuple(
    subject
    for stream, durable in ((SAMPLES, SAMPLES_CONSUMER), (TABLES, TABLES_CONSUMER))
    for subject in (
        *(api(f"CONSUMER.{verb}.{stream.name}.{durable}") for verb in ("CREATE", "MSG.NEXT", "DELETE", "INFO")),
        f"$JS.ACK.{stream.name}.{durable}.1.1.1.1.1",
    )
)
"""What only materialize may do with its durable consumers, although others read SAMPLES and TABLES too."""

OTHERS = {
    "materialize": (
        NODES.subject("a.facts"),
        POLICIES.subject("n.p"),
        "tas.samples.a.x",
        "tas.tables.x.1-0",
        api("STREAM.PURGE.KV_NODES"),
    ),
    "watch": (NODES.subject("a.metrics"), VERDICTS.subject("a"), HOLDS.subject("a"), api("STREAM.PURGE.KV_VERDICTS")),
    "policies": (NODES.subject("a.facts"), VERDICTS.subject("a"), api("STREAM.PURGE.KV_POLICIES")),
    "evaluate": (
        NODES.subject("a.metrics"),
        LEASES.subject("labels"),
        api("STREAM.PURGE.KV_POLICIES"),
        api("STREAM.PURGE.EVENTS"),
        api("CONSUMER.CREATE.EVENTS.tas-evaluate_1"),
    ),
    "labels": (VERDICTS.subject("a"), REFUSALS.subject("p.marks"), LEASES.subject("marks")),
    "marks": (REFUSALS.subject("p"), BREAKERS.subject("p"), LEASES.subject("labels")),
    "resources": ("tas.events.violation.p.a", LEASES.subject("labels")),
    "collect": (
        "tas.samples.a.other",
        "tas.tables.other.1-0",
        NODES.subject("_table.probe.1-0"),
        SOURCES.subject("other"),
        LEASES.subject("collect.other"),
        NODES.subject("a.facts"),
    ),
    "windows": ("tas.samples.a.collect", *OF_MATERIALIZE, SOURCES.subject("collect")),
    "events": (VERDICTS.subject("a"), "tas.samples.a.x"),
    "notify": ("tas.events.violation.p.a", LEASES.subject("events")),
    "inventory": (NODES.subject("a.facts"), POLICIES.subject("n.p"), "tas.samples.a.other"),
    "gpu": (NODES.subject("a.inventory"), "tas.outcomes.a"),
    "evictions": (HOLDS.subject("a"),),
    "agents": ("tas.outcomes.a", HOLDS.subject("a")),
    "extender": (NODES.subject("a.metrics"), POLICIES.subject("n.p"), "tas.samples.a.x", VERDICTS.subject("a")),
    "keeper": (NODES.subject("a.facts"), "tas.samples.a.x", api("STREAM.CREATE.OTHER"), api("STREAM.MSG.GET.SAMPLES")),
    "reader": (NODES.subject("a.metrics"), BREAKERS.subject("_paused"), "tas.samples.a.x", *OF_MATERIALIZE),
    "operator": (NODES.subject("a.metrics"), POLICIES.subject("n.p"), VERDICTS.subject("a")),
    "publisher": (
        NODES.subject("a.metrics"),
        "tas.samples.a.other",
        "tas.tables.other.1-0",
        api("STREAM.MSG.GET.SAMPLES"),
    ),
    "subscriber": (api("STREAM.MSG.GET.EVENTS"), api("CONSUMER.INFO.EVENTS.other"), "tas.dead_letters.other"),
    "node": (
        "tas.samples.b.probe",
        "tas.samples.a.other",
        "tas.tables.probe.1-0",
        NODES.subject("a.metrics"),
        api("STREAM.MSG.GET.SAMPLES"),
    ),
}
"""What each user must not do beside what nobody may do: only a neighbour may."""

NOBODY = (
    *(api(f"STREAM.{verb}.{of.stream}") for verb in ("UPDATE", "DELETE", "SNAPSHOT", "RESTORE") for of in ALL),
    *(api(f"STREAM.MSG.DELETE.{of.stream}") for of in ALL),
    *(api(f"CONSUMER.{verb}.{of.stream}") for verb in ("LIST", "NAMES") for of in ALL),
    api("STREAM.LIST"),
    api("STREAM.NAMES"),
    api("STREAM.CREATE.OTHER"),
    "$SYS.REQ.SERVER.PING",
    "_INBOX.tas-evaluate.x",
)


@pytest.mark.parametrize("role", [role for role in ROLES if role != "all"])
async def test_a_user_is_refused_what_is_not_its_own(closed: Closed, role: str) -> None:
    name = "a" if role == "node" else ""
    async with closed.connected(role, name, "probe") as bus:
        forbidden = (*OTHERS[role], *NOBODY, *(() if role == "keeper" else (api("STREAM.CREATE.SAMPLES"),)))
        for subject in forbidden:
            with pytest.raises(ForbiddenError, match=re.escape(subject)):
                await bus.link.request(subject, b"", seconds=connection.CALL_SECONDS)
        # The answers to others are not its own, either.
        for inbox in ("_INBOX.>", "_INBOX.tas-other.>", ">"):
            await bus.link.subscribe(inbox, _ignore)
        await eventually(
            lambda: (
                closed.violations()[-3:] == [f"Subscription {each}" for each in ("_INBOX.>", "_INBOX.tas-other.>", ">")]
            )
        )
    assert len(closed.violations()) == len(forbidden) + 3


@pytest.mark.parametrize("role", ["node", "publisher", "reader"])
async def test_one_connection_does_not_fill_the_memory_of_the_server_with_subscriptions(
    closed: Closed, role: str
) -> None:
    most, tries = ROLES[role].limits.subscriptions, 2000
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(closed.connected(role, "other", "probe"))
        link = other.link
        credentials = closed.user(role, "thief", "probe")
        reader, writer = await stack.enter_async_context(closed.raw(credentials))
        writer.write(b"".join(b"SUB _INBOX.thief.%d %d\r\n" % (number, number + 1) for number in range(tries)))
        writer.write(b"PING\r\n")
        refused = (await reader.readuntil(b"PONG\r\n")).lower().count(b"maximum subscriptions exceeded")
        assert (refused, (await closed.subscriptions())["thief"]) == (tries - most, most)
        # The next connection of the same user is not affected, nor is anybody else.
        again = await stack.enter_async_context(closed.raw(credentials))
        again[1].write(b"SUB _INBOX.thief.a 1\r\nPING\r\n")
        assert b"-ERR" not in await again[0].readuntil(b"PONG\r\n")
        await other.link.subscribe("_INBOX.other.a", _ignore)
        await eventually(partial(_has_subscriptions, closed, "other", 2))
        assert other.link is link
        assert not link.lost.is_set()


async def _has_subscriptions(closed: Closed, name: str, count: int) -> bool:
    return (await closed.subscriptions())[name] == count


@pytest.mark.parametrize(("role", "name"), [("node", "a"), ("publisher", "probe-of-all")])
async def test_a_publisher_of_samples_sends_no_larger_message_than_samples_may_have(
    closed: Closed, role: str, name: str
) -> None:
    subject, most = samples_subject("a", "probe"), SAMPLES.max_message_bytes
    access = Access(credentials=closed.user("keeper"))
    async with Bus.connect(closed.server.url, name="keeper", access=access) as keeper:
        await eventually(lambda: keeper.connected and keeper.problem is None)
        assert keeper.max_value_bytes == DEFAULT_VALUE_BYTES
        async with closed.connected(role, name, "probe") as bus:
            link = bus.link
            await bus.publish(SAMPLES, subject, b"x" * most)
            with pytest.raises(RefusedError, match=f"{most + 1} bytes; SAMPLES allows at most {most}$"):
                await bus.publish(SAMPLES, subject, b"x" * (most + 1))
            assert bus.link is link
            assert not link.lost.is_set()
        # A client that does not obey loses its connection.
        async with closed.raw(closed.user(role, name, "probe")) as (reader, writer):
            writer.write(b"PUB %s %d\r\n" % (subject.encode(), most + HEADER_BYTES + 1))
            async with asyncio.timeout(60):
                assert b"maximum payload violation" in (await reader.read()).lower()


async def test_a_node_publishes_its_own_samples_and_a_subscriber_reads_events(closed: Closed) -> None:
    await closed.with_streams()
    node = token("ip-10-0-0-1.ec2.internal")
    async with closed.connected("node", node, "machine", "probe") as bus:
        for source in ("machine", "probe"):
            await bus.publish(SAMPLES, samples_subject("ip-10-0-0-1.ec2.internal", source), b"{}")
    access = Access(credentials=closed.user("subscriber", "pager"))
    async with Subscription(closed.server.url, "pager", access=access, resync=True) as events:
        await eventually(lambda: events.bus.connected)
    assert closed.violations() == []


async def test_what_a_server_writes_to_a_reply_subject_resets_no_breaker_and_is_no_verdict(closed: Closed) -> None:
    """NATS does not check reply subjects: so a server writes its answers, and what it delivers, to any subject."""
    async with AsyncExitStack() as stack:
        access = Access(credentials=closed.user("keeper"))
        keeper = await stack.enter_async_context(Bus.connect(closed.server.url, name="keeper", access=access))
        await eventually(lambda: keeper.connected and keeper.problem is None)
        labels, agents, reader = [
            await stack.enter_async_context(closed.connected(role)) for role in ("labels", "agents", "reader")
        ]
        tripped = Breaker(nodes={}, trip=Trip(since=1.0, limit=1, wanted=2, selected=3))
        revision = await BREAKER_RECORDS.put(labels, "p", tripped, revision=0, read_at=time.monotonic())
        # The answers to a node reach no stream (`test_publishers`), those to a reader do.
        await reader.link.send(api(f"STREAM.INFO.{SAMPLES.stream}"), b"", reply=BREAKERS.subject("p"))

        async def breaker() -> Entry[str, Breaker]:
            return await BREAKER_RECORDS.get(reader, "p")

        async def is_overwritten() -> bool:
            return (await breaker()).revision > revision

        await eventually(is_overwritten)
        assert isinstance((await breaker()).read(), Unreadable)  # labels stay frozen

        # A state whose subject is as long as that of a verdict, and a pull of it to such a subject.
        forged = AGENTS.subject("xxnode-1")
        await agents.link.publish(forged, b'{"policies":{}}', seconds=connection.CALL_SECONDS)
        config = {"name": "tas-agents", "ack_policy": "none", "deliver_policy": "all"}
        body = {"stream_name": AGENTS.stream, "config": config}
        await agents.api(f"CONSUMER.CREATE.{AGENTS.stream}.tas-agents", body)
        pull = f"$JS.API.CONSUMER.MSG.NEXT.{AGENTS.stream}.tas-agents"
        await agents.link.send(pull, b'{"batch":1}', reply=VERDICTS.subject("node-1"))
        messages: list[Message] = []

        async def is_copied() -> bool:
            messages.clear()
            async with aclosing(StreamReader(reader, VERDICT_LOG, FROM_START).stored()) as batches:
                async for batch in batches:
                    messages.extend(batch.messages)
            return bool(messages)

        await eventually(lambda: answered(is_copied))
        assert [message.subject for message in messages] == [forged]
        assert [each.entry for each in logged_verdicts(reader, messages)] == [None]
        assert await answered(lambda: NODE_VERDICTS.entries(reader)) == []
    assert closed.violations() == []


async def _ignore(_: object) -> None: ...
