"""Events reach the sinks of `notify`: a real bus, real HTTP, and sinks that fail in every way."""

import asyncio
import base64
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import DEAD_LETTERS, EVENTS, NANOSECONDS
from bus.client import Msg
from bus.connection import Bus
from bus.errors import BusError
from bus.events import Expected, publish_events
from bus.stream_reader import FROM_START, StreamReader
from tas.events import cloudevents
from tas.events.data import EpochChanged, EventData, LabelApplied
from tas.events.event import TYPE_PREFIX, Event
from tas.notifying.config import AlertmanagerConfig, ChatConfig, CloudEventsConfig, KubernetesEventsConfig
from tas.notifying.node_events import MAX_ALIKE
from tas.values.backoff import Backoff
from tests.integration.dead_letters import dead_letter_of
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.notify.receiver import (
    Behaviour,
    Receiver,
    answering,
    flooding,
    hanging,
    receiving,
)
from tests.integration.workers.running import running
from tests.unit.tas.notifying.making import ended, event, started
from workers.kubernetes.client import KubernetesClient
from workers.notify.sinks.alertmanager import AlertmanagerSink
from workers.notify.sinks.base import Sink, SinkMetrics
from workers.notify.sinks.chat import ChatSink
from workers.notify.sinks.cloudevents import CloudEventsSink
from workers.notify.sinks.kubernetes_events import KubernetesEventsSink
from workers.notify.worker import Notify

SECRET = bytes(range(32))
QUICK = Backoff(first=0.02, longest=0.1)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


class World:
    """A bus with sinks, and their metrics."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        self.bus = bus
        self.folder = folder
        self.registry = CollectorRegistry()
        self.metrics = SinkMetrics(self.registry)
        self._revision = 0
        (folder / "secret").write_text("whsec_" + base64.b64encode(SECRET).decode())

    def cloudevents(self, url: str, *, name: str = "hook", timeout: str = "10s") -> CloudEventsSink:
        config = CloudEventsConfig(url=url, secret_file="secret", timeout=timeout)
        return CloudEventsSink(self.bus, name, config, folder=self.folder, metrics=self.metrics, backoff=QUICK)

    def chat(self, url: str, *, wait: str = "0s") -> ChatSink:
        config = ChatConfig(url=url, wait=wait, interval="0s")
        return ChatSink(self.bus, "chat", config, folder=self.folder, metrics=self.metrics, backoff=QUICK)

    @asynccontextmanager
    async def running(self, *sinks: Sink) -> AsyncIterator[None]:
        async with running(Notify(self.bus, sinks, metrics=self.metrics)):
            yield

    async def publish(self, *datas: EventData) -> list[Event]:
        """Publishes events of different subjects."""
        self._revision += 1
        events = [event(data, revision=self._revision, time=time.time()) for data in datas]
        for first in range(0, len(events), 200):

            async def write(part: Sequence[Event] = events[first : first + 200]) -> None:
                for outcome in await publish_events(self.bus, [await self._expected(each) for each in part]):
                    if isinstance(outcome, BusError):
                        raise outcome

            await answered(write)
        return events

    async def _expected(self, event: Event) -> Expected:
        sequence = 0
        for last in await self.bus.last_messages(EVENTS, Expected(event, 0).subject):
            sequence = last.sequence
        return Expected(event, sequence)

    def value(self, metric: str, **labels: str) -> float:
        return self.registry.get_sample_value(metric, labels) or 0.0

    async def durable(self, sink: str) -> dict[str, Any] | None:
        """What the server says of the durable of a sink; None: it does not exist."""
        listed = await answered(lambda: self.bus.api(f"CONSUMER.LIST.{EVENTS.stream}"))
        of_sink = [each for each in listed["consumers"] or () if each["config"].get("description") == f"notify-{sink}"]
        assert len(of_sink) <= 1
        return of_sink[0] if of_sink else None

    async def acknowledged(self, sink: str) -> None:
        """Waits until the durable of a sink has nothing left."""

        async def done() -> bool:
            state = await self.durable(sink)
            return state is not None and bool(state["num_pending"] == state["num_ack_pending"] == 0)

        await eventually(done)


@pytest.fixture
def world(bus: Bus, tmp_path: Path) -> World:
    return World(bus, tmp_path)


class TestCloudEvents:
    async def test_each_event_arrives_once_signed_and_in_the_order_of_its_object(
        self, world: World, receiver: Receiver
    ) -> None:
        published = await world.publish(*(started(f"node-{n}") for n in range(20)))
        published += await world.publish(*(ended(f"node-{n}") for n in range(20)))
        published += await world.publish(LabelApplied(node="node-1", label="demo", value="violating"))
        failed: list[str] = []

        async def fail_at_first(request: web.Request) -> web.StreamResponse | None:
            """The first event of node-5 is not accepted before later ones of other nodes are."""
            text = await request.text()
            if len(receiver.accepted) >= 30 or '"node-5"' not in text or "violation.started" not in text:
                return None
            failed.append(text)
            return web.Response(status=500)

        receiver.behaviour = fail_at_first
        async with world.running(world.cloudevents(receiver.url)):
            await receiver.receives(41)
            await world.acknowledged("hook")
        assert failed
        assert sorted(each.event_id for each in receiver.accepted) == sorted(each.id for each in published)
        for number in range(20):
            of_node = [each.json["type"] for each in receiver.accepted if each.data["node"] == f"node-{number}"]
            kinds = [kind for kind in of_node if "violation" in kind]
            assert kinds == [f"{TYPE_PREFIX}violation.started.v1", f"{TYPE_PREFIX}violation.ended.v1"]
        first = receiver.accepted[0]
        assert first.is_signed_with(SECRET)
        assert not first.is_signed_with(bytes(32))
        assert abs(int(first.headers["webhook-timestamp"]) - time.time()) < 600
        assert first.headers["content-type"].startswith("application/cloudevents+json")
        assert first.json["specversion"] == "1.0"
        assert len({each.headers["webhook-id"] for each in receiver.accepted}) == 41

    async def test_a_sink_that_fails_says_so_in_one_line_a_minute(self, world: World, receiver: Receiver) -> None:
        """However many events wait, and however often they are tried; the line says how often."""
        await world.publish(*(started(f"node-{n}") for n in range(20)))
        receiver.behaviour = answering(503)
        with capture_logs() as lines:
            async with world.running(world.cloudevents(receiver.url)):
                await eventually(lambda: len(receiver.requests) >= 20)
        failed = [line for line in lines if line["log_level"] != "info"]
        assert [(line["event"], line["sink"]) for line in failed] == [("sink_failed", "hook")]

    async def test_a_sink_that_fails_in_every_way_gets_every_event_when_it_works_again(
        self, world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fails_twice(code: str, fault: Behaviour) -> None:
            requests = partial(world.value, "tas_notify_requests_total", sink="hook", code=code)
            receiver.behaviour, before = fault, requests()
            await eventually(lambda: requests() >= before + 2)

        published = await world.publish(*(started(f"node-{n}") for n in range(5)))
        async with receiving() as other:
            receiver.behaviour = answering(500)
            async with world.running(world.cloudevents(receiver.url, timeout="1s")):
                faults: dict[str, Behaviour] = {
                    "500": answering(500),
                    "429": answering(429, **{"Retry-After": "0"}),
                    "404": answering(404),
                    "307": answering(307, Location=other.url),
                    "502": flooding,
                    "none": hanging,
                }
                for code, fault in faults.items():
                    await fails_twice(code, fault)
                    assert receiver.accepted == []
                assert world.value("tas_notify_held", sink="hook") == 5
                assert world.value("tas_notify_lag_seconds", sink="hook") > 0
                notify = Notify(world.bus, [], metrics=world.metrics)
                assert list(notify.concerns()) == [], "perhaps it just starts again"
                monkeypatch.setattr("workers.notify.sinks.base.LATE_SECONDS", 0.0)
                (concern,) = notify.concerns()
                assert re.fullmatch(r"the sink hook has not accepted an event for \d+ s", concern)
                receiver.behaviour = None
                await receiver.receives(5)
                await world.acknowledged("hook")
            assert other.requests == [], "a redirection is not followed"
        assert {each.event_id for each in receiver.accepted} == {each.id for each in published}
        assert world.value("tas_notify_events_total", sink="hook", outcome="retried") >= 12
        assert world.value("tas_notify_events_total", sink="hook", outcome="dead") == 0
        by_event: dict[str, set[str]] = {}
        for each in receiver.requests:
            by_event.setdefault(each.event_id, set()).add(each.headers["webhook-id"])
        assert all(len(ids) == 1 for ids in by_event.values()), "a repetition has the id of the first attempt"

    async def test_an_event_that_the_sink_refuses_is_a_dead_letter_and_the_others_arrive(
        self, world: World, receiver: Receiver
    ) -> None:
        async def refuse_one(request: web.Request) -> web.StreamResponse | None:
            is_refused = "node-3" in await request.text()
            return web.Response(status=422, text="node-3 is not welcome") if is_refused else None

        receiver.behaviour = refuse_one
        published = await world.publish(*(started(f"node-{n}") for n in range(6)))
        async with world.running(world.cloudevents(receiver.url)):
            await receiver.receives(5)
            await eventually(lambda: world.value("tas_notify_events_total", sink="hook", outcome="dead") == 1)
            await world.acknowledged("hook")
        (letter,) = [
            message
            async for batch in StreamReader(world.bus, DEAD_LETTERS, FROM_START).stored()
            for message in batch.messages
        ]
        assert letter.headers is not None
        assert letter.headers["ce-id"] == published[3].id
        found = dead_letter_of(letter.headers)
        assert (found.subscription, found.attempts) == ("notify-hook", 1)
        assert "node-3 is not welcome" in found.reason

        # Without a place for it, the event is not given up.
        await answered(lambda: world.bus.api(f"STREAM.DELETE.{DEAD_LETTERS.stream}"))
        async with world.running(world.cloudevents(receiver.url)):
            await world.publish(ended("node-3"))
            await eventually(lambda: world.value("tas_notify_events_total", sink="hook", outcome="retried") >= 2)
            assert world.value("tas_notify_held", sink="hook") == 1
        assert world.value("tas_notify_events_total", sink="hook", outcome="dead") == 1

    async def test_a_second_replica_takes_over_at_once_and_nothing_is_lost(
        self, world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # So the second replica gets what the first one held only if the first one gives it back.
        monkeypatch.setattr("bus.deliveries.ACK_WAIT_SECONDS", 3600.0)
        async with AsyncExitStack() as first:
            await first.enter_async_context(world.running(world.cloudevents(receiver.url)))
            await world.publish(started("node-1"))
            await receiver.receives(1)
            standby = SinkMetrics(CollectorRegistry())
            other = CloudEventsSink(
                world.bus,
                "hook",
                CloudEventsConfig(url=receiver.url),
                folder=world.folder,
                metrics=standby,
                backoff=QUICK,
            )
            async with running(Notify(world.bus, [other], metrics=standby)):
                await world.acknowledged("hook")
                receiver.behaviour = answering(503)
                (second,) = await world.publish(started("node-2"))
                await eventually(lambda: any(each.event_id == second.id for each in receiver.requests))
                await first.aclose()
                receiver.behaviour = None
                await receiver.receives(2)
                await world.acknowledged("hook")
        assert [each.data["node"] for each in receiver.accepted] == ["node-1", "node-2"]

    async def test_a_sink_with_other_settings_continues_where_the_sink_of_its_name_was(
        self, world: World, receiver: Receiver
    ) -> None:
        settings: asyncio.Queue[Sequence[Sink]] = asyncio.Queue()
        async with receiving() as other:
            kept, changed = world.chat(receiver.url), world.cloudevents(other.url)
            notify = Notify(
                world.bus, [kept, world.cloudevents(receiver.url)], metrics=world.metrics, changed=settings.get
            )
            async with running(notify):
                published = await world.publish(started("node-1"))
                await world.acknowledged("hook")
                settings.put_nowait([kept, changed])
                published += await world.publish(started("node-2"))
                await world.acknowledged("hook")
                published += await world.publish(started("node-3"))
                await eventually(lambda: published[-1].id in [each.event_id for each in other.accepted])
                settings.put_nowait([kept])
                lag = partial(world.registry.get_sample_value, "tas_notify_lag_seconds", {"sink": "hook"})
                await eventually(lambda: lag() is None)
                await eventually(lambda: world.value("tas_notify_lease_held", sink="chat") == 1)
        delivered = [each for each in (*receiver.accepted, *other.accepted) if "webhook-id" in each.headers]
        assert {each.event_id for each in delivered} == {each.id for each in published}

    async def test_an_event_whose_acknowledgement_was_lost_is_not_sent_again(
        self, world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bus.deliveries.ACK_WAIT_SECONDS", 0.5)
        monkeypatch.setattr("bus.deliveries._ACK", b"+LOST")
        async with world.running(world.cloudevents(receiver.url)):
            await world.publish(started("node-1"))

            async def comes_again() -> bool:
                info = await world.durable("hook")
                return info is not None and bool(info["num_redelivered"])

            await receiver.receives(1)
            await eventually(comes_again)
            monkeypatch.setattr("bus.deliveries._ACK", b"+ACK")
            await world.acknowledged("hook")
        assert len(receiver.requests) == 1

    async def test_what_the_stream_drops_before_a_sink_has_it_is_counted(
        self, world: World, receiver: Receiver
    ) -> None:
        async with world.running(world.cloudevents(receiver.url)):
            await world.publish(started("node-1"))
            await receiver.receives(1)
            await world.acknowledged("hook")
        await world.publish(*(started(f"node-{n}") for n in range(2, 7)))
        first = (await answered(lambda: world.bus.api(f"STREAM.INFO.{EVENTS.stream}")))["state"]["first_seq"]
        for sequence in range(first, first + 6):  # as at the limit of the stream; a purge also moves its consumers
            await world.bus.api(f"STREAM.MSG.DELETE.{EVENTS.stream}", {"seq": sequence, "no_erase": True})
        (last,) = await world.publish(started("node-9"))
        async with world.running(world.cloudevents(receiver.url)):
            await receiver.receives(2)
            await eventually(lambda: world.value("tas_notify_missed_total", sink="hook") == 5)
        assert receiver.accepted[-1].event_id == last.id

    async def test_a_bus_that_is_lost_and_wiped_delays_events_and_loses_none_of_the_new_ones(
        self, server: Server, world: World, receiver: Receiver
    ) -> None:
        async with world.running(world.cloudevents(receiver.url)):
            await world.publish(started("node-1"))
            await receiver.receives(1)
            await server.restart()
            await world.bus.wait_connected()
            await world.publish(started("node-2"))
            await receiver.receives(2)
            await server.restart(wiped=True)
            await world.bus.wait_connected()
            await world.publish(started("node-3"))
            await receiver.receives(3)
            await world.acknowledged("hook")
        nodes = [each.data["node"] for each in receiver.accepted]
        assert sorted(set(nodes)) == ["node-1", "node-2", "node-3"]
        assert world.value("tas_notify_missed_total", sink="hook") == 0


class BrokenSink:
    """A sink with a bug."""

    name = "broken"
    shared = False
    starts = 0

    async def run(self) -> None:
        self.starts += 1
        raise ZeroDivisionError


class TestOtherSinks:
    async def test_alerts_that_alertmanager_refuses_are_counted_and_sent_again_no_sooner_than_others(
        self, world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tas.notifying.alerts.CONFIRM_SECONDS", 0.5)
        monkeypatch.setattr("workers.notify.sinks.alertmanager.FORGET_SECONDS", 0.1)
        config = AlertmanagerConfig(urls=(receiver.url,), resend="1s")
        sink = AlertmanagerSink(world.bus, "alerts", config, folder=world.folder, metrics=world.metrics)
        receiver.behaviour = answering(400)
        count, began = partial(world.value, "tas_notify_events_total", sink="alerts"), time.monotonic()

        def accepted() -> set[str]:
            return {alert["labels"]["node"] for each in receiver.accepted for alert in each.json}

        async with world.running(sink):
            await world.publish(EpochChanged(epoch="1"))
            await world.publish(started("node-1"), started("node-2"))
            await eventually(lambda: count(outcome="dead") >= 6)
            assert world.value("tas_notify_lag_seconds", sink="alerts") == 0, "Alertmanager works"
            receiver.behaviour = None
            await eventually(lambda: accepted() == {"node-1", "node-2"})
            assert world.value("tas_notify_alerts", sink="alerts") == 2
            await world.publish(EpochChanged(epoch="2"))
            # After a wipe nobody announces them again: they end.
            await eventually(lambda: world.value("tas_notify_alerts", sink="alerts") == 0)
        assert count(outcome="retried") == 0
        # Each alert comes once a second, alone or with the other.
        assert len(receiver.requests) <= 2 * (time.monotonic() - began + 1)

    async def test_a_hundred_nodes_are_one_message_of_a_chat_without_events_of_a_later_version(
        self, world: World, receiver: Receiver
    ) -> None:
        first, *_ = await world.publish(*(started(f"node-{n}") for n in range(100)))
        later = cloudevents.headers(first) | {"ce-type": f"{TYPE_PREFIX}violation.started.v2"}
        message = ("tas.events.violation.node-x.default.demo.dontschedule", cloudevents.body(first), later)
        await answered(lambda: world.bus.publish_each(EVENTS, [message]))
        async with world.running(world.chat(receiver.url, wait="2s")):
            await receiver.receives(1)
            await world.acknowledged("chat")
        assert world.value("tas_notify_events_total", sink="chat", outcome="unknown") == 1
        assert world.value("tas_notify_events_total", sink="chat", outcome="delivered") == 100
        text = "\n".join(each.json["text"] for each in receiver.accepted)
        assert len(receiver.accepted) <= 2, "two only if the events took longer than the wait"
        assert "nodes violate default/demo (dontschedule): node-0, node-1" in text

    async def test_a_chat_that_gathers_is_not_behind_and_keeps_what_it_holds(
        self, world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bus.deliveries.PROGRESS_SECONDS", 0.05)
        signs: list[bytes] = []

        async def note(message: Msg) -> None:
            signs.append(message.data)

        await world.bus.link.subscribe(f"$JS.ACK.{EVENTS.stream}.>", note)
        await world.publish(started("node-1"))
        sink = world.chat(receiver.url, wait="1h")
        async with world.running(sink):
            await eventually(lambda: world.value("tas_notify_held", sink="chat") == 1)
            assert world.value("tas_notify_lag_seconds", sink="chat") == 0
            await eventually(lambda: signs.count(b"+WPI") >= 2)
            held = [*sink._inbox._messages.values(), *sink._inbox._deliveries._held.values()]
            assert [message.data for message in held] == [b"", b""], "thousands are held: none with its content"
            durable = await world.durable("chat")
            assert durable is not None
        assert receiver.requests == []
        # A sink that was removed leaves its position for a while, and not before the stream has dropped its events.
        assert EVENTS.max_age_seconds < durable["config"]["inactive_threshold"] / NANOSECONDS < 366 * 86400

    async def test_a_chat_that_fails_gets_what_it_missed(self, world: World, receiver: Receiver) -> None:
        receiver.behaviour = answering(500)
        await world.publish(started("node-1"))
        async with world.running(world.chat(receiver.url)):
            await eventually(lambda: len(receiver.requests) >= 3)
            assert world.value("tas_notify_lag_seconds", sink="chat") > 0
            await world.publish(started("node-2"))
            slower = partial(world.value, "tas_notify_requests_total", sink="chat", code="429")
            receiver.behaviour = answering(429, **{"Retry-After": "1"})
            await eventually(lambda: slower() >= 2)
            first, second = receiver.requests[-2:]
            assert second.time - first.time >= 1
            receiver.behaviour = None
            await eventually(lambda: "node-2" in "".join(each.json["text"] for each in receiver.accepted))
            await world.acknowledged("chat")
        assert "node-1" in "".join(each.json["text"] for each in receiver.accepted)

    @pytest.mark.usefixtures("long_limits")
    async def test_a_sink_that_hangs_or_has_a_bug_does_not_delay_another_sink(
        self, world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("workers.notify.worker.RESTART", Backoff(first=0.02, longest=10.0))
        monkeypatch.setattr("workers.notify.sinks.cloudevents.CAPACITY", 10)
        monkeypatch.setattr("bus.deliveries.PROGRESS_SECONDS", 0.1)
        broken = BrokenSink()
        async with receiving() as slow:
            slow.behaviour = hanging
            async with world.running(
                world.cloudevents(slow.url, name="slow", timeout="120s"),
                broken,
                world.cloudevents(receiver.url),
                world.chat(receiver.url),
            ):
                await world.publish(*(started(f"node-{n}") for n in range(50)))
                await world.acknowledged("hook")
                await world.acknowledged("chat")
                await eventually(lambda: broken.starts >= 3)
                await world.publish(*(ended(f"node-{n}") for n in range(50)))
                # The others wait on the bus, not in memory, and are counted though none is delivered.
                # Together: a sink that loses its lease on a busy machine holds nothing until it has the lease again.
                await eventually(
                    lambda: [world.value(f"tas_notify_{name}", sink="slow") for name in ("behind", "held")] == [90, 10]
                )
                await world.acknowledged("hook")
            assert len(slow.requests) >= 1
            assert slow.accepted == []
        # Each once or more: on a busy machine an event comes again, since its acknowledgement is late.
        assert len({each.headers["webhook-id"] for each in receiver.accepted if "webhook-id" in each.headers}) == 100


@asynccontextmanager
async def event_api() -> AsyncIterator[tuple[str, list[dict[str, Any]], list[str]]]:
    """The part of an API server that takes Events: its URL, the Events that exist, and the paths of patched ones."""
    created: list[dict[str, Any]] = []
    patched: list[str] = []

    async def create(request: web.Request) -> web.Response:
        created.append(await request.json())
        return web.json_response(created[-1], status=201)

    async def patch(request: web.Request) -> web.Response:
        if request.match_info["name"] not in {each["metadata"]["name"] for each in created}:
            return web.json_response({"kind": "Status", "reason": "NotFound", "code": 404}, status=404)
        patched.append(request.path)
        return web.json_response({"metadata": {"name": "x", "namespace": "default"}})

    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    app = web.Application()
    app.add_routes([web.post(path, create), web.patch(f"{path}/{{name}}", patch)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", created, patched
    finally:
        await runner.cleanup()


@asynccontextmanager
async def cluster_sink(
    world: World, folder: Path, config: KubernetesEventsConfig
) -> AsyncIterator[tuple[Sink, list[dict[str, Any]], list[str]]]:
    """A sink that writes Events, the Events that exist, and the paths of patched ones."""
    kubeconfig = folder / "kubeconfig"
    async with event_api() as (url, created, patched):
        entry = {"name": "test", "cluster": {"server": url}}
        context = {"name": "test", "context": {"cluster": "test", "user": "test"}}
        user = {"name": "test", "user": {}}
        document = {"current-context": "test", "clusters": [entry], "contexts": [context], "users": [user]}
        kubeconfig.write_text(json.dumps(document))
        async with KubernetesClient.connect(kubeconfig, worker="notify") as client:
            yield KubernetesEventsSink(world.bus, client, "cluster", config, metrics=world.metrics), created, patched


async def test_an_event_that_is_gone_when_its_series_begins_is_created_again(world: World, tmp_path: Path) -> None:
    config = KubernetesEventsConfig(wait="0s", interval="0s")
    async with cluster_sink(world, tmp_path, config) as (sink, created, patched):
        await world.publish(started("node-1"))
        async with world.running(sink):
            await world.acknowledged("cluster")
            kinds = Counter(each["regarding"]["kind"] for each in created)
            assert kinds == {"Node": 1, "TASPolicy": 1}
            created.clear()
            await world.publish(started("node-1"))
            dead = partial(world.value, "tas_notify_events_total", sink="cluster", outcome="dead")
            await eventually(lambda: len(created) == 2 or dead() > 0)
    assert Counter(each["regarding"]["kind"] for each in created) == kinds
    assert not patched


async def test_an_event_about_a_policy_whose_namespace_is_gone_is_not_given_up(world: World, tmp_path: Path) -> None:
    """Who deletes a namespace with a policy loses nothing: no alert is due."""
    async with cluster_sink(world, tmp_path, KubernetesEventsConfig(wait="0s", interval="0s")) as (sink, created, _):
        await world.publish(msgspec.structs.replace(started("node-1"), namespace="deleted"))
        async with world.running(sink):
            await world.acknowledged("cluster")
    assert [each["regarding"]["kind"] for each in created] == ["Node"]
    assert world.value("tas_notify_events_total", sink="cluster", outcome="gone") == 1
    assert world.value("tas_notify_events_total", sink="cluster", outcome="dead") == 0


async def test_150_nodes_that_change_make_a_bounded_number_of_events(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tas.notifying.node_events.WINDOW_SECONDS", inf)
    nodes, policies = [f"node-{number}" for number in range(150)], ("demo", "other")
    config = KubernetesEventsConfig(wait="5s", interval="1s")  # a busy machine reads all events within that
    async with cluster_sink(world, tmp_path, config) as (sink, created, patched):
        # Before the sink runs: a busy machine may need longer for it than the sink waits for more events.
        await world.publish(*(started(node, policy=policy) for node in nodes for policy in policies))
        await world.publish(
            *(
                msgspec.structs.replace(ended(node, policy=policy), node_uid=f"uid-{node}")
                for node in nodes
                for policy in policies
            )
        )
        async with world.running(sink):
            await world.acknowledged("cluster")
    of_nodes = Counter(
        (each["reason"], each["related"]["name"]) for each in created if each["regarding"]["kind"] == "Node"
    )
    assert set(of_nodes.values()) == {MAX_ALIKE}
    assert len(of_nodes) == 4
    of_policies = [each for each in created if each["regarding"]["kind"] == "TASPolicy"]
    assert len(created) + len(patched) <= 4 * MAX_ALIKE + 3 * len(of_policies)
    ended_of = Counter(each["regarding"]["name"] for each in of_policies if "150 nodes" in each["note"])
    assert ended_of.keys() == {"demo", "other"}, [each["note"] for each in of_policies]
    assert len(of_policies) <= 4, "at most one for each policy and reason"
    assert world.value("tas_notify_events_total", sink="cluster", outcome="grouped") == 600 - 4 * MAX_ALIKE
