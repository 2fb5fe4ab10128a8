"""Each alert of `deploy/alerts` fires when its fault is brought about, and ends as docs/operations.md says.

The processes, the bus and HTTP are real, and so are the scrapes; promtool stretches them to the minutes of the rules.
"""

import asyncio
import datetime as dt
import json
import operator
import os
import re
import signal
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bus.connection import Bus
from bus.kinds import EXPECTED_NUMBERS
from bus.rights.access import Access
from bus.scrapes import publish_scrapes
from lab.sandbox.resources import NODES, PODS, TASPOLICIES
from tas.policy.policy import API_VERSION
from tas.processes.expected import Expected
from tas.processes.process import Process
from tas.samples.sample import Scrape as Scraped
from tas.values.quantity import parse_quantity
from tests.certificates import Authority
from tests.contract.test_alerts import ALWAYS, rules
from tests.installed import write_package
from tests.integration.bus.operated import Operator, operated
from tests.integration.cli.tas import (
    FREE,
    HEALTH,
    Running,
    Tas,
    demo_policy,
    filter_request,
    policy_folder,
    replace_file,
)
from tests.integration.servers import Server, answered, eventually
from tests.integration.watched import meanwhile
from tests.integration.workers.notify.receiver import Receiver, answering, receiving
from tests.sandbox import Call, Sandbox
from workers.process.presence import Presence

from .alerts import NOT_PLAYED, Scrape, Story, check
from .nats import nats_servers

MINUTE = 60.0
DAY = 86400.0
METRIC = "health_metric"
METRICS = (METRIC, "few_metric")
NAMES = [f"node-{number}" for number in range(12)]
MANY = NAMES[:8]
FOREVER = 10**6
JSON = {"Content-Type": "application/json"}
BLOCKS = """
    import time

    class Blocks:
        def __init__(self, nodes):
            pass

        def filter(self, pod, candidates, now):
            time.sleep(5)
            return {}
"""
VIEW_AGE = 'tas_view_value_age_seconds{source="custom-metrics"'
CLOCK = "tas_process_clock_ahead_seconds"
PASSED = 'tas_extender_unknown_passed_total{path="/scheduler"'
ASKED = 'tas_extender_last_request_timestamp_seconds{path="/scheduler", verb="filter"'
MOMENTS: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "TasSourceDry": ("tas_source_overdue_seconds", lambda overdue: overdue > 5),
    "TasBusLost": ("tas_bus_connected", lambda connected: connected == 0),
    "TasBusUnavailable": ("tas_bus_unavailable", lambda unavailable: unavailable == 1),
    "TasViewBehind": ("tas_view_lag", lambda lag: lag == -1),
    "TasWorkerNotReady": ("tas_worker_ready", lambda ready: ready == 0),
    "TasLabelsNotWritten": ("tas_label_nodes_failing", lambda count: count > 0),
    "TasMarksNotWritten": ("tas_mark_nodes_failing", lambda count: count > 0),
    "TasEvictionLabelsNotWritten": ("tas_eviction_nodes_failing", lambda count: count > 0),
    "TasSinkBehind": ("tas_notify_lag_seconds", lambda lag: lag > 0),
    "TasApiServerSilent": ("tas_kubernetes_silent_seconds", lambda seconds: seconds > 12),
    "TasMetricLate": ("tas_metric_late_seconds", lambda seconds: seconds < 30),
    "TasSourceSilent": ('tas_source_silent_seconds{source="agent"', lambda seconds: seconds < 30),
}
"""The state of an alert that a busy machine has for seconds, in which a source or a server does not answer."""


class Stage:
    """A running product of which scrapes are taken; with the series of `others`, as if they were one process."""

    def __init__(self, product: Running, ask: Callable[[], Awaitable[int]], *others: Running) -> None:
        self.product = product
        self._others = others
        self.ask = ask
        self.stories: list[Story] = []
        self._expected: set[str] = set()

    async def scrape(self) -> Scrape:
        """What Prometheus gets now, or soon: the moments of a busy machine in `MOMENTS` are part of no other story."""
        found = Scrape(time.time())

        async def is_of_the_story() -> bool:
            nonlocal found
            found = await self._scrape()
            return not any(
                series.startswith(name) and is_wrong(value)
                for series, value in (found.series or {}).items()
                for alert, (name, is_wrong) in MOMENTS.items()
                if alert not in self._expected
            )

        await eventually(is_of_the_story, every=0.1)
        return found

    async def _scrape(self) -> Scrape:
        try:
            found = [
                Scrape.of(time.time(), (await each.health("/metrics"))[1]) for each in (*self._others, self.product)
            ]
        except aiohttp.ClientError:
            return Scrape(time.time())
        for each in found[:-1]:
            found[-1].counters.update(each.counters)
            (found[-1].series or {}).update(each.series or {})
        return found[-1]

    async def values(self, series: str) -> list[float]:
        """The values of all series that begin so."""
        found = (await self._scrape()).series or {}
        return [value for name, value in found.items() if name.startswith(series)]

    async def value(self, series: str) -> float:
        """The value of the only series that begins so."""
        (found,) = await self.values(series)
        return found

    async def is_at(self, series: str, holds: Callable[[float], bool]) -> None:
        """Waits until all series that begin so have such values, while requests are sent."""

        async def is_there() -> bool:
            await self.ask()
            found = await self.values(series)
            return bool(found) and all(map(holds, found))

        await eventually(is_there, every=0.1)

    async def is_gone(self, series: str) -> None:
        """Waits until no series begins so."""

        async def is_so() -> bool:
            return not await self.values(series)

        await eventually(is_so)

    async def scrapes(self) -> list[Scrape]:
        """Two scrapes, one after the other."""
        return [await self.scrape(), await self.scrape()]

    @asynccontextmanager
    async def story(self, *alerts: str, minutes: float, new: bool = False) -> AsyncIterator[list[Scrape]]:
        """The body brings about a fault, takes scrapes of it, and ends it."""
        before = None if new else await self.scrape()
        during: list[Scrape] = []
        self._expected = set(alerts)
        yield during
        self._expected = set()
        assert len(during) > 1
        after = await self.scrape()
        seconds = minutes * MINUTE
        name = " and ".join(alerts)
        self.stories.append(
            Story(name=name, alerts=set(alerts), before=before, during=during, after=after, seconds=seconds)
        )


class User:
    """A client of the extender, with the certificates of a folder if there are any."""

    def __init__(self, session: aiohttp.ClientSession, url: str, folder: Path | None = None) -> None:
        self._session = session
        self._url = url
        self._folder = folder

    async def filter(self, *, extension: str = "scheduler", slowly: bool = False) -> int:
        """The status of the answer; 0 without one. `slowly`: the body follows the headers late."""
        tls: ssl.SSLContext | bool = True
        if self._folder is not None:
            tls = ssl.create_default_context(cafile=self._folder / "ca.crt")
            tls.load_cert_chain(self._folder / "client.crt", self._folder / "client.key")
        body = json.dumps(filter_request(*NAMES)).encode()
        data = _late(body) if slowly else body
        url = f"{self._url.removesuffix('/scheduler')}/{extension}/filter"
        try:
            async with self._session.post(url, data=data, headers=JSON, ssl=tls) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0


async def _late(body: bytes) -> AsyncIterator[bytes]:
    yield body[:1]  # with the headers
    await asyncio.sleep(0.7)
    yield body[1:]


def patches(call: Call) -> bool:
    return call.verb == "patch" and call.resource == "nodes"


def patches_of_marks(call: Call) -> bool:
    return patches(call) and call.user_agent == "tas-on-nats/marks"


def policy(sandbox: Sandbox, name: str, metric: str, **spec: Any) -> None:
    rule = {"metricname": metric, "operator": "GreaterThan", "target": 1}
    strategies = {kind: {"rules": [rule]} for kind in ("dontschedule", "deschedule")}
    head = {"apiVersion": API_VERSION, "kind": "TASPolicy", "metadata": {"name": name}}
    sandbox.cluster.create(TASPOLICIES, "default", head | {"spec": {"strategies": strategies} | spec}, manager="user")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A product with a cluster, a sink and certificates, and what happens to them."""

    stage: Stage
    product: Running
    tas: Tas
    server: Server
    sandbox: Sandbox
    receiver: Receiver
    sinks: Path
    user: User
    certs: Path

    @property
    def labelled(self) -> set[str]:
        """The nodes with the label of demo-policy."""
        return self.with_label("demo-policy")

    def with_label(self, key: str) -> set[str]:
        nodes = self.sandbox.cluster.store.items(NODES)
        return {each["metadata"]["name"] for each in nodes if key in each["metadata"]["labels"]}

    @property
    def tainted(self) -> set[str]:
        """The nodes with a taint."""
        nodes = self.sandbox.cluster.store.items(NODES)
        return {each["metadata"]["name"] for each in nodes if each["spec"].get("taints")}

    def with_taint(self, taint: dict[str, str] | None) -> None:
        """Edits the option `taint` of demo-policy."""
        patch = {"spec": {"strategies": {"deschedule": {"taint": taint}}}}
        self.sandbox.cluster.patch(TASPOLICIES, "default", "demo-policy", patch, manager="user")

    def measure(self, metric: str, value: int, nodes: Sequence[str]) -> None:
        for node in nodes:
            self.sandbox.metrics.set(metric, node, value)

    def stale_after(self, text: str | None) -> None:
        for name in ("demo-policy", "few"):
            patch = {"spec": {"staleAfter": text}}
            self.sandbox.cluster.patch(TASPOLICIES, "default", name, patch, manager="user")

    async def said(self, *command: str) -> str:
        """What a command of `tas` prints."""
        done = await self.tas(*command, "--bus", self.server.url)
        assert done.code == 0, done.err
        return done.out

    async def none_violates(self) -> bool:
        return "violated" not in await self.said("get", "verdicts")

    async def all_are_known(self) -> bool:
        before = await self.stage.value(PASSED)
        assert await self.stage.ask() == 200
        return await self.stage.value(PASSED) == before

    async def labels_are_written(self) -> None:
        """Waits until every node has the labels that policies desire, and their status says so."""
        for metric in ("tas_label_nodes_failing", "tas_policies_not_ready"):
            await self.stage.is_at(metric, lambda count: count == 0)

    async def status_says(self, reason: str) -> None:
        """Waits until the status of a policy has this reason: `labels_are_written` sees its end only after that."""
        await self.stage.is_at(f'tas_policies_not_ready{{reason="{reason}"', lambda count: count == 1)

    async def no_candidate_is_known(self) -> list[Scrape]:
        """Two scrapes between which filter passes nodes that are not known."""
        passed = await self.stage.value(PASSED)
        await self.stage.is_at(PASSED, lambda count: count > passed)
        first = await self.stage.scrape()
        for _ in range(5):
            assert await self.stage.ask() == 200
        return [first, await self.stage.scrape()]


async def certificate_expires(cluster: Cluster) -> None:
    stage = cluster.stage
    async with stage.story("TasCertificateExpires", minutes=5, new=True) as during:
        during.extend(await stage.scrapes())
        assert (await cluster.tas("certs", "renew", str(cluster.certs))).code == 0
        await stage.is_at('tas_tls_remaining_seconds{file="cert"', lambda left: left > 30 * DAY)


async def certificate_is_not_loaded(cluster: Cluster) -> None:
    stage = cluster.stage
    failed = 'tas_tls_reloads_total{result="failed"'
    async with stage.story("TasCertificateNotLoaded", minutes=5) as during:
        key = (cluster.certs / "tls.key").read_text()
        (cluster.certs / "tls.key").write_text("no key")
        await stage.is_at(failed, lambda count: count >= 1)
        during.append(await stage.scrape())
        before = await stage.value(failed)
        await stage.is_at(failed, lambda count: count > before)
        during.append(await stage.scrape())
        await cluster.product.has_logged("certificates_not_loaded", "error", "tls.key")
        (cluster.certs / "tls.key").write_text(key)
        await cluster.product.logged("certificates_recovered")


async def certificate_has_expired(cluster: Cluster) -> None:
    """The scheduler takes no answer, and with `ignorable` places a pod without its policy."""
    stage, names = cluster.stage, ("tls.crt", "tls.key")
    valid = {name: (cluster.certs / name).read_bytes() for name in names}
    expired = Authority("alerts").server("extender", lives=dt.timedelta(hours=-1))
    async with stage.story(
        "TasCertificateExpired", "TasNoExtenderReady", "TasSchedulerDoesNotAsk", minutes=2
    ) as during:
        for name, content in zip(names, (expired.certificate, expired.key), strict=True):
            (cluster.certs / name).write_bytes(content)
        await stage.is_at('tas_tls_remaining_seconds{file="cert"', lambda left: left < 0)
        assert await stage.ask() == 0
        asked = await stage.value(ASKED)
        await eventually(lambda: time.time() > asked + 12)  # so far may clocks differ
        head = {"name": "unasked", "labels": {"telemetry-policy": "demo-policy"}}
        pod = {"metadata": head, "spec": {"nodeName": NAMES[0], "containers": [{"name": "main", "image": "pause"}]}}
        cluster.sandbox.cluster.create(PODS, "default", pod, manager="user")
        await stage.is_at('tas_watch_newest_pod_timestamp_seconds{state="placed"', lambda newest: newest > asked + 10)
        during.extend(await stage.scrapes())
        for name, content in valid.items():
            (cluster.certs / name).write_bytes(content)
        await stage.is_at('tas_tls_remaining_seconds{file="cert"', lambda left: left > 0)
        await stage.is_at(ASKED, lambda last: last > asked + 12)
        cluster.sandbox.cluster.delete(PODS, "default", "unasked")


async def answers_are_late(cluster: Cluster) -> None:
    """The bodies of some requests come slowly: for the scheduler it is the same who is slow."""
    stage, slow = cluster.stage, 'tas_extender_request_seconds_count{path="/scheduler", verb="filter"'
    async with stage.story("TasExtenderSlow", minutes=6) as during:
        before = await stage.value(slow)
        during.append(await stage.scrape())
        assert await asyncio.gather(*(cluster.user.filter(slowly=True) for _ in range(8))) == [200] * 8
        await stage.is_at(slow, lambda count: count >= before + 8)
        during.append(await stage.scrape())
        _, answers = await cluster.product.health("/answers")
        assert sum(answer.get("seconds", 0.0) > 0.5 for answer in json.loads(answers)) >= 8


async def code_blocks_the_process(cluster: Cluster) -> None:
    """Comes last: what stops all values for a while is taken for the pace of their metrics for some minutes."""
    stage, stalls = cluster.stage, "tas_event_loop_stalls_total"
    async with stage.story("TasEventLoopStalls", minutes=4) as during:
        before = await stage.value(stalls)
        during.append(await stage.scrape())
        for number in range(3):
            assert await cluster.user.filter(extension="blocks") == 200
            await stage.is_at(stalls, partial(operator.lt, before + number))
        for ages in ("tas_source_silent_seconds", "tas_metric_late_seconds"):  # each look is 5 s after the one before
            await stage.is_gone(ages)
        during.append(await stage.scrape())
        await cluster.product.has_logged("event_loop_stalled", "task", "extension blocks: filter")
        await stage.is_at("tas_worker_ready", lambda ready: ready == 1)
        await eventually(cluster.all_are_known)


async def verdicts_are_late(cluster: Cluster) -> None:
    """The bus takes everything but verdicts."""
    stage, pending = cluster.stage, "tas_verdict_pending_seconds"
    async with (
        Bus.connect(cluster.server.url, name="test", streams=()) as bus,
        stage.story("TasVerdictsLate", minutes=2) as during,
    ):
        await bus.wait_connected()
        config = (await answered(lambda: bus.api("STREAM.INFO.KV_VERDICTS")))["config"]
        await answered(lambda: bus.api("STREAM.UPDATE.KV_VERDICTS", config | {"max_msg_size": 1}))
        cluster.measure(METRIC, 2, NAMES[:1])
        await stage.is_at(pending, lambda seconds: seconds > 6)
        during.extend(await stage.scrapes())
        assert not cluster.labelled
        await cluster.product.has_logged("verdict_not_written", "error", "message size")
        await answered(lambda: bus.api("STREAM.UPDATE.KV_VERDICTS", config))
        await eventually(lambda: cluster.labelled == {NAMES[0]})
        cluster.measure(METRIC, 0, NAMES)
        await eventually(lambda: not cluster.labelled)
        await cluster.labels_are_written()
        await stage.is_at(pending, lambda seconds: seconds < 1)


async def settings_are_unreadable(cluster: Cluster) -> None:
    stage, readable = cluster.stage, "tas_notify_sinks_readable"
    async with stage.story("TasSettingsUnreadable", minutes=7) as during:
        settings = cluster.sinks.read_text()
        replace_file(cluster.sinks, json.dumps({"sinks": {"hook": {"type": "cloudevents"}}}))
        await stage.is_at(readable, lambda value: value == 0)
        during.extend(await stage.scrapes())
        await cluster.product.has_logged("sinks_unreadable", "error", "must have the field url")
        replace_file(cluster.sinks, settings)
        await stage.is_at(readable, lambda value: value == 1)


async def many_nodes_are_labelled(cluster: Cluster) -> None:
    stage = cluster.stage
    async with stage.story("TasManyNodesLabelled", minutes=2) as during:
        cluster.measure(METRIC, 2, MANY)
        await eventually(lambda: cluster.labelled == set(MANY))
        await stage.is_at("tas_labelled_nodes", lambda count: count == len(MANY))
        during.extend(await stage.scrapes())

        async def names_them() -> bool:
            events = await cluster.said("events", "--since", "15m")
            applied = [line for line in events.splitlines() if "label.applied.v1" in line]
            return len(applied) == len(MANY) and all("policy=demo-policy" in line for line in applied)

        await eventually(names_them)
        assert METRIC in await cluster.said("explain", "node", MANY[0])
        cluster.measure(METRIC, 0, NAMES)
        await eventually(lambda: not cluster.labelled)
        await cluster.labels_are_written()


async def labels_flap(cluster: Cluster) -> None:
    """A node whose source says zero and another value in turn, with fresh times."""
    stage, name = cluster.stage, "flapping"
    node = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {}}
    async with stage.story("TasLabelsFlapping", minutes=2) as during:
        cluster.sandbox.cluster.create(NODES, "", node, manager="user")
        for value in (2, 0, 2, 0):
            cluster.measure(METRIC, value, [name])
            await eventually(lambda value=value: cluster.labelled == ({name} if value else set()))  # type: ignore[misc]
        await stage.is_at("tas_labels_flapping", lambda count: count == 1)
        during.extend(await stage.scrapes())
        cluster.sandbox.cluster.delete(NODES, "", name)
        await stage.is_at("tas_labels_flapping", lambda count: count == 0)
    await cluster.labels_are_written()


async def breaker_trips(cluster: Cluster) -> None:
    stage = cluster.stage
    async with stage.story("TasBreakerTripped", minutes=5) as during:
        cluster.measure("few_metric", 2, NAMES[:3])
        await stage.is_at("tas_breakers_tripped", lambda count: count == 1)
        during.extend(await stage.scrapes())
        policies = await cluster.said("get", "policies")
        # The breaker trips for the second node, maybe before it knows the third.
        assert re.search(r"[23] of 12 nodes were to have labels, at most 1 may", policies)
        assert "tas reset" in policies
        cluster.measure("few_metric", 0, NAMES)
        await eventually(cluster.none_violates)
        await cluster.said("reset", "default/few")
        await stage.is_at("tas_breakers_tripped", lambda count: count == 0)
        # Else its removal would be one of the patches that later stories count.
        await eventually(lambda: not cluster.with_label("few"))
        await cluster.labels_are_written()


async def labels_are_paused(cluster: Cluster) -> None:
    stage = cluster.stage
    async with stage.story("TasLabelsPaused", minutes=62) as during:
        await cluster.said("pause", "--reason", "a test")
        await stage.is_at("tas_labels_paused", lambda paused: paused == 1)
        during.extend(await stage.scrapes())
        assert "a test" in await cluster.said("get", "policies")
        await cluster.said("resume")
        await stage.is_at("tas_labels_paused", lambda paused: paused == 0)


async def labels_are_not_written(cluster: Cluster) -> None:
    stage, refused = cluster.stage, 'tas_kubernetes_requests_total{code="403", '
    async with stage.story("TasLabelsNotWritten", "TasApiServerRefuses", minutes=8) as during:
        cluster.sandbox.faults.answer(403, times=FOREVER, which=patches)
        cluster.measure(METRIC, 2, NAMES[:1])
        await stage.is_at("tas_label_nodes_failing", lambda count: count == 1)
        during.append(await stage.scrape())
        before = sum(await stage.values(refused))

        async def refuses_again() -> bool:
            return sum(await stage.values(refused)) > before

        await eventually(refuses_again)
        during.append(await stage.scrape())

        async def names_the_refusal() -> bool:
            return "the API server refuses the label on 1 node (node-0)" in await cluster.said("get", "policies")

        await eventually(names_the_refusal)
        await cluster.status_says("LabelsNotWritten")
        await cluster.product.has_logged("node_patch_failed", "error", "(403)")
        cluster.sandbox.faults.clear()
        await eventually(lambda: cluster.labelled == {NAMES[0]})
        await cluster.labels_are_written()


async def marks_are_not_written(cluster: Cluster) -> None:
    """The first node has its label, so nothing but its taint is to be written."""
    stage = cluster.stage
    async with stage.story("TasMarksNotWritten", minutes=7) as during:
        cluster.sandbox.faults.answer(403, times=FOREVER, which=patches_of_marks)
        cluster.with_taint({"effect": "NoSchedule"})
        await stage.is_at("tas_mark_nodes_failing", lambda count: count == 1)
        during.extend(await stage.scrapes())

        async def names_the_refusal() -> bool:
            return "the API server refuses the taint on 1 node (node-0)" in await cluster.said("get", "policies")

        await eventually(names_the_refusal)
        await cluster.status_says("MarksNotWritten")
        await cluster.product.has_logged("node_mark_failed", "error", "(403)")
        cluster.sandbox.faults.clear()
        await eventually(lambda: cluster.tainted == {NAMES[0]})
        await stage.is_at("tas_mark_nodes_failing", lambda count: count == 0)
        cluster.with_taint(None)
        await eventually(lambda: not cluster.tainted)
        await cluster.labels_are_written()


async def labels_are_late(cluster: Cluster) -> None:
    stage = cluster.stage
    async with stage.story("TasLabelsLate", minutes=3) as during:
        before = await stage.value("tas_label_patch_seconds_count")
        cluster.sandbox.faults.delay(1.2, times=4, which=patches)
        cluster.measure(METRIC, 2, NAMES[:5])  # the first one has its label
        await stage.is_at("tas_label_patch_seconds_count", lambda count: count >= before + 4)
        during.extend(await stage.scrapes())
        cluster.measure(METRIC, 0, NAMES)
        await eventually(lambda: not cluster.labelled)
        await cluster.labels_are_written()


async def samples_are_late(cluster: Cluster) -> None:
    stage, written = cluster.stage, "tas_sample_write_seconds_bucket"

    async def late() -> float:
        """How many messages took more than a second until they were stored."""
        # Of one scrape: between two of them more are stored.
        found = (await stage.scrape()).series or {}
        everything, soon = (
            sum(value for name, value in found.items() if name.startswith(f'{written}{{le="{le}"'))
            for le in ("+Inf", "1.0")
        )
        return everything - soon

    async with stage.story("TasSamplesLate", minutes=3) as during:
        before = await late()
        os.kill(cluster.product.process.pid, signal.SIGSTOP)
        try:
            await asyncio.gather(*(cluster.said("publish", node, "another=1") for node in NAMES[:4]))
            published = time.time()
            await eventually(lambda: time.time() > published + 1.5)  # also the last message waits for so long
        finally:
            os.kill(cluster.product.process.pid, signal.SIGCONT)

        async def are_stored() -> bool:
            return await late() >= before + 4

        await eventually(are_stored)
        await stage.is_at("tas_worker_ready", lambda ready: ready == 1)  # not at once after such a stop
        during.extend(await stage.scrapes())


async def source_is_dry(cluster: Cluster) -> None:
    stage = cluster.stage
    async with stage.story("TasSourceDry", "TasUnknownPassed", minutes=12) as during:
        for metric in METRICS:
            cluster.sandbox.metrics.forget(metric)
        await stage.is_at("tas_source_overdue_seconds", lambda overdue: overdue > 6)
        during.extend(await cluster.no_candidate_is_known())
        assert METRIC in await cluster.said("get", "sources")
        for metric in METRICS:
            cluster.measure(metric, 0, NAMES)
        await stage.is_at("tas_source_metrics_missing", lambda count: count == 0)
        await stage.is_at("tas_source_overdue_seconds", lambda overdue: overdue < 1)


async def monitoring_is_dead(cluster: Cluster) -> None:
    """Four of twelve nodes are sick when their metric ends."""
    stage, kept = cluster.stage, 'tas_policy_kept_rejections{namespace="default", policy="silent"'
    rule = {"metricname": "kept_metric", "operator": "GreaterThan", "target": 1}
    policy(cluster.sandbox, "silent", "", strategies={"dontschedule": {"rules": [rule]}})
    cluster.measure("kept_metric", 0, NAMES[4:])
    cluster.measure("kept_metric", 2, NAMES[:4])

    async def all_are_rejected() -> bool:
        return (await cluster.said("get", "verdicts")).count("violated") == 4

    await eventually(all_are_rejected, every=0.1)
    async with stage.story("TasManyKeptRejections", "TasMetricLate", minutes=12) as during:
        cluster.sandbox.metrics.forget("kept_metric")  # the source gives its other metrics
        await stage.is_at(kept, lambda count: count == 4)
        await stage.is_at("tas_metric_late_seconds", lambda age: age > 6)
        during.extend(await stage.scrapes())
        explained = json.loads(await cluster.said("explain", "node", NAMES[0], "--stale-after", "3s", "--json"))
        assert '"rejects_by_kept": true' in json.dumps(explained)
        assert (await cluster.said("release", NAMES[0])).startswith(f"{NAMES[0]} is released")
        await stage.is_at(kept, lambda count: count == 3)
        cluster.measure("kept_metric", 0, NAMES)
        await stage.is_at(kept, lambda count: count == 0)
        await stage.is_gone("tas_metric_late_seconds")
    cluster.sandbox.cluster.delete(TASPOLICIES, "default", "silent")
    await stage.is_at("tas_source_metrics_missing", lambda count: count == 0)


async def source_loses_nodes(cluster: Cluster) -> None:
    """Half of the nodes have a value no more."""
    stage = cluster.stage
    async with stage.story("TasSourceLostNodes", minutes=2) as during:
        cluster.sandbox.metrics.forget(METRIC, *NAMES[:6])
        await stage.is_at("tas_source_nodes_lost", lambda count: count == 6)
        during.extend(await stage.scrapes())

        async def says_so() -> bool:
            return f"gives no new {METRIC} of 6 of 12 nodes" in await cluster.said("get", "sources", "--json")

        await eventually(says_so)
        cluster.measure(METRIC, 0, NAMES)
        await stage.is_at("tas_source_nodes_lost", lambda count: count == 0)
        await eventually(cluster.all_are_known)


@asynccontextmanager
async def publishing(cluster: Cluster, source: str, metric: str, value: str = "1") -> AsyncIterator[None]:
    """A program that publishes this value of all nodes until the body ends."""

    async def publish(bus: Bus) -> None:
        while True:
            now = time.time()
            values = {metric: parse_quantity(value)}
            scrape = Scraped(source=source, measured=now, arrived=now, sequence=1, metrics=values)
            await answered(partial(publish_scrapes, bus, [(name, scrape) for name in NAMES]))
            await asyncio.sleep(0.5)

    async with Bus.connect(cluster.server.url, name=source) as bus:
        await bus.wait_connected()
        async with meanwhile(publish(bus)):
            yield


async def program_ends(cluster: Cluster) -> None:
    """Policies have its metric from nobody else."""
    stage, silent = cluster.stage, 'tas_source_silent_seconds{source="agent"'
    rule = {"metricname": "agent_metric", "operator": "GreaterThan", "target": 1, "source": "agent"}
    policy(cluster.sandbox, "of-agent", "", strategies={"scheduleonmetric": {"rules": [rule]}})

    async def is_stored() -> bool:
        return "agent_metric" in await cluster.said("get", "nodes", "--json")

    async def is_deleted() -> bool:
        return "of-agent" not in await cluster.said("get", "policies")

    async with publishing(cluster, "agent", "agent_metric"):
        await eventually(is_stored)
    async with stage.story("TasSourceSilent", minutes=2) as during:
        await stage.is_at(silent, lambda age: age > 6)
        during.extend(await stage.scrapes())

        async def says_so() -> bool:
            said = await cluster.said("get", "sources", "--json")
            return "the newest value of agent_metric by agent is" in said

        await eventually(says_so)  # the record of the process is written each 5 s
        async with publishing(cluster, "agent", "agent_metric"):
            await stage.is_gone(silent)
            cluster.sandbox.cluster.delete(TASPOLICIES, "default", "of-agent")
            await eventually(is_deleted)


async def sources_contradict(cluster: Cluster) -> None:
    """A program publishes other values than the custom metrics, of all nodes; no rule is violated by either."""
    stage = cluster.stage

    async with stage.story("TasSourcesContradict", minutes=2) as during:
        async with publishing(cluster, "other", METRIC):
            await stage.is_at("tas_metric_contradictions", lambda count: count == len(NAMES))
            during.extend(await stage.scrapes())
        # Its last value agrees, too: with a longer `staleAfter` of another story it counts again.
        async with publishing(cluster, "other", METRIC, "0"):
            await stage.is_gone("tas_metric_contradictions")


async def source_is_behind(cluster: Cluster) -> None:
    """Each answer takes four periods, and has fresh values."""
    stage = cluster.stage
    async with stage.story("TasSourceBehind", minutes=6) as during:
        cluster.sandbox.faults.delay(2.0, times=FOREVER, which=lambda call: METRIC in call.path)
        await stage.is_at("tas_source_behind_seconds", lambda seconds: seconds > 1)
        during.append(await stage.scrape())
        await cluster.product.has_logged("source_poll_late", "source", "custom-metrics")
        await stage.is_at("tas_source_behind_seconds", lambda seconds: seconds > 1)
        during.append(await stage.scrape())

        async def says_so() -> bool:
            return "behind" in await cluster.said("get", "sources")

        await eventually(says_so)
        cluster.sandbox.faults.clear()
        await stage.is_at("tas_source_behind_seconds", lambda seconds: seconds < 1)


async def values_are_old(cluster: Cluster) -> None:
    """All values are fresh by their policies, and of the same time again and again."""
    stage = cluster.stage
    async with stage.story("TasSourceValuesOld", minutes=2) as during:
        cluster.stale_after("10m")
        at = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for node, metric in product(NAMES, METRICS):
            cluster.sandbox.metrics.set(metric, node, 0, timestamp=at)
        await stage.is_at("tas_source_value_age_seconds", lambda age: age > 6)
        during.extend(await stage.scrapes())
        await stage.is_at("tas_source_overdue_seconds", lambda overdue: overdue < 1)
        for metric in METRICS:
            cluster.measure(metric, 0, NAMES)
        cluster.stale_after(None)
        await stage.is_at("tas_source_value_age_seconds", lambda age: age < 2)
        await stage.is_at(VIEW_AGE, lambda age: age < 2)


async def one_metric_is_late(cluster: Cluster) -> None:
    """The values of one metric are fresh, and of the same time again and again; those of the other move on.

    Comes early: what stops the values of a source for a while is taken for the pace of its metrics for some minutes.
    """
    stage = cluster.stage
    began = dt.datetime.fromisoformat(cluster.product.log[0]["time"]).timestamp()
    await eventually(lambda: time.time() > began + 90)  # after a minute `evaluate` knows the pace
    async with stage.story("TasMetricLate", minutes=2) as during:
        cluster.stale_after("10m")
        at = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for node in NAMES:
            cluster.sandbox.metrics.set(METRIC, node, 0, timestamp=at)
        await stage.is_at("tas_metric_late_seconds", lambda age: age > 6)
        during.extend(await stage.scrapes())

        async def says_so() -> bool:
            said = await cluster.said("get", "sources", "--json")
            return f"the newest value of {METRIC} by custom-metrics is" in said

        await eventually(says_so)
        cluster.measure(METRIC, 0, NAMES)
        cluster.stale_after(None)
        await stage.is_gone("tas_metric_late_seconds")


async def values_are_late(cluster: Cluster) -> None:
    """The bus takes what is published, and not what `materialize` makes of it."""
    stage = cluster.stage
    async with (
        Bus.connect(cluster.server.url, name="test", streams=()) as bus,
        stage.story("TasValuesLate", minutes=2) as during,
    ):
        await bus.wait_connected()
        config = (await answered(lambda: bus.api("STREAM.INFO.KV_NODES")))["config"]
        await answered(lambda: bus.api("STREAM.UPDATE.KV_NODES", config | {"max_msg_size": 1}))
        await stage.is_at(VIEW_AGE, lambda age: age > 6)
        during.extend(await stage.scrapes())
        assert {"healthy", "late"} & set((await cluster.said("get", "sources")).split()), "the source itself works"
        await answered(lambda: bus.api("STREAM.UPDATE.KV_NODES", config))
        await stage.is_at(VIEW_AGE, lambda age: age < 2)
        await eventually(cluster.all_are_known)


async def samples_are_not_stored(cluster: Cluster) -> None:
    """The source answers well, and nobody gets its samples."""
    stage = cluster.stage
    lost = "tas_source_polls_lost_total"
    async with (
        Bus.connect(cluster.server.url, name="test", streams=()) as bus,
        stage.story("TasNotStored", "TasSourceDry", "TasUnknownPassed", minutes=12) as during,
    ):
        await bus.wait_connected()
        configs = {
            stream: (await answered(partial(bus.api, f"STREAM.INFO.{stream}")))["config"]
            for stream in ("SAMPLES", "TABLES")  # a poll that TABLES refuses is published by node
        }
        for stream, config in configs.items():
            await answered(partial(bus.api, f"STREAM.UPDATE.{stream}", config | {"max_msg_size": 1}))
        await stage.is_at("tas_source_metrics_missing", lambda count: count == len(METRICS))
        await stage.is_at("tas_source_overdue_seconds", lambda overdue: overdue > 6)
        during.extend(await cluster.no_candidate_is_known())
        before = await stage.value(lost)
        await stage.is_at(lost, lambda count: count > before)
        during.append(await stage.scrape())
        await cluster.product.has_logged("source_samples_lost", "error", "message size")
        for stream, config in configs.items():
            await answered(partial(bus.api, f"STREAM.UPDATE.{stream}", config))
        await stage.is_at("tas_source_metrics_missing", lambda count: count == 0)
        await eventually(cluster.all_are_known)


async def sink_is_behind(cluster: Cluster) -> None:
    stage = cluster.stage
    async with stage.story("TasSinkBehind", minutes=17) as during:
        cluster.receiver.behaviour = answering(500)
        cluster.measure(METRIC, 2, NAMES[:1])
        await stage.is_at("tas_notify_lag_seconds", lambda lag: lag > 0)
        during.append(await stage.scrape())
        await stage.is_at("tas_notify_lag_seconds", lambda lag: lag > 1)
        during.append(await stage.scrape())
        await cluster.product.has_logged("sink_failed", "error", "(500)")
        cluster.receiver.behaviour = None
        cluster.measure(METRIC, 0, NAMES)
        await eventually(lambda: not cluster.labelled)
        await stage.is_at("tas_notify_lag_seconds", lambda lag: lag == 0)
        await cluster.labels_are_written()


async def sink_refuses_an_event(cluster: Cluster) -> None:
    stage, dead = cluster.stage, 'tas_notify_events_total{outcome="dead"'
    async with stage.story("TasEventsLost", minutes=3) as during:
        before = await stage.value(dead)
        during.append(await stage.scrape())
        cluster.receiver.behaviour = answering(422)
        cluster.measure(METRIC, 2, NAMES[:1])
        await stage.is_at(dead, lambda count: count > before)
        during.append(await stage.scrape())
        await cluster.product.has_logged("event_dead_lettered", "error", "422")
        cluster.receiver.behaviour = None
        cluster.measure(METRIC, 0, NAMES)
        await eventually(lambda: not cluster.labelled)
        await cluster.labels_are_written()


async def api_server_is_silent(cluster: Cluster) -> None:
    stage = cluster.stage
    async with stage.story("TasApiServerSilent", "TasWorkerNotReady", minutes=3) as during:
        faults = cluster.sandbox.faults
        released = faults.hold(times=FOREVER, which=lambda call: call.user_agent == "tas-on-nats/watch")
        cluster.sandbox.cut_watches()
        await stage.is_at('tas_worker_ready{worker="watch"', lambda ready: ready == 0)
        await stage.is_at("tas_kubernetes_silent_seconds", lambda seconds: seconds > 12)
        during.extend(await stage.scrapes())
        status, reason = await cluster.product.health("/readyz")
        assert (status, "no data from" in reason) == (503, True)
        faults.clear()
        released.set()
        await stage.is_at('tas_worker_ready{worker="watch"', lambda ready: ready == 1)


async def bus_is_lost(cluster: Cluster) -> None:
    stage = cluster.stage
    async with stage.story("TasBusLost", "TasViewBehind", "TasUnknownPassed", minutes=12) as during:
        leases_lost = len(cluster.product.events("source_lease_lost"))
        await cluster.server.kill()
        await stage.is_at("tas_bus_connected", lambda connected: connected == 0)
        # Without a lease, nobody has the source: it is the bus that is to blame.
        await eventually(lambda: len(cluster.product.events("source_lease_lost")) > leases_lost)
        during.extend(await cluster.no_candidate_is_known())
        await cluster.server.start()
        await stage.is_at("tas_bus_connected", lambda connected: connected == 1)
        await stage.is_at("tas_view_lag", lambda lag: lag == 0)
        await eventually(cluster.all_are_known)
        await stage.is_at("tas_worker_ready", lambda ready: ready == 1)  # each worker connects for itself


STORIES = (
    certificate_expires,
    certificate_has_expired,
    certificate_is_not_loaded,
    answers_are_late,
    one_metric_is_late,
    many_nodes_are_labelled,
    labels_flap,
    breaker_trips,
    labels_are_paused,
    labels_are_not_written,
    marks_are_not_written,
    labels_are_late,
    samples_are_late,
    verdicts_are_late,
    settings_are_unreadable,
    source_is_dry,
    monitoring_is_dead,
    source_is_behind,
    source_loses_nodes,
    sources_contradict,
    program_ends,
    values_are_old,
    values_are_late,
    samples_are_not_stored,
    sink_is_behind,
    sink_refuses_an_event,
    api_server_is_silent,
    bus_is_lost,
    code_blocks_the_process,
)


@pytest.mark.nightly
@pytest.mark.timeout(2400)  # many stories, each with waits of up to two minutes on a busy machine
async def test_the_alerts_of_a_cluster_fire_and_end_as_their_rows_say(
    server: Server, tas: Tas, tmp_path: Path, prometheus_binary: Path
) -> None:
    certs = tmp_path / "certs"
    assert (await tas("certs", "init", str(certs), "--days", "5")).code == 0
    async with (
        Sandbox.start(nodes=NAMES) as sandbox,
        receiving() as receiver,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
    ):
        policy(sandbox, "demo-policy", METRIC, breaker={"maxPercent": 100})
        policy(sandbox, "few", "few_metric", breaker={"maxNodes": 1})
        for node, metric in product(NAMES, METRICS):
            sandbox.metrics.set(metric, node, 0)
        sinks = tmp_path / "sinks.yaml"
        sinks.write_text(json.dumps({"sinks": {"hook": {"type": "cloudevents", "url": receiver.url}}}))
        arguments = [
            *("run", "all", "--bus", server.url, "--kubeconfig", str(sandbox.kubeconfig(tmp_path / "kubeconfig"))),
            *("--sinks", str(sinks), "--stale-after", "3s", "--period", "500ms", "--breaker-all", "off"),
            *("--cert", str(certs / "tls.crt"), "--key", str(certs / "tls.key"), "--cacert", str(certs / "ca.crt")),
        ]
        site = str(write_package(tmp_path / "site", BLOCKS, blocks="own:Blocks"))
        async with tas.running(*arguments, *FREE, PYTHONPATH=site) as running:
            await running.ready()
            user = User(session, (await running.logged("extender_listening"))["url"], certs)
            stage = Stage(running, user.filter)
            cluster = Cluster(
                stage=stage,
                product=running,
                tas=tas,
                server=server,
                sandbox=sandbox,
                receiver=receiver,
                sinks=sinks,
                user=user,
                certs=certs,
            )
            await eventually(cluster.all_are_known)
            for story in STORIES:
                await story(cluster)
    check(prometheus_binary.with_name("promtool"), stage.stories, tmp_path)


@pytest.mark.nightly
async def test_the_alerts_of_processes_fire_and_end_as_their_rows_say(
    tas: Tas, tmp_path: Path, prometheus_binary: Path
) -> None:
    server = Server(tmp_path / "store")  # it does not run yet
    strategies = "    dontschedule: {rules: [{metricname: m, operator: Equals, target: 2}]}\n"
    policies = (
        "run",
        "policies",
        "--bus",
        server.url,
        "--policies",
        str(policy_folder(tmp_path, demo_policy(strategies))),
    )
    extender = ("run", "extender", "--bus", server.url)
    async with aiohttp.ClientSession() as session, AsyncExitStack() as stack:
        async with tas.running(*extender, *FREE) as first:
            user = User(session, (await first.logged("extender_listening"))["url"])
            stage = Stage(first, user.filter)
            async with stage.story(
                "TasNoExtenderReady",
                "TasWorkerNotReady",
                "TasExtenderErrors",
                "TasBusLost",
                "TasViewBehind",
                minutes=4,
                new=True,
            ) as during:
                during.append(await stage.scrape())
                assert await user.filter() == 503  # once: somebody must see also that
                during.append(await stage.scrape())
                status, reason = await first.health("/readyz")
                assert (status, "not caught up with the bus" in reason) == (503, True)
                await first.logged("bus_unreachable")
                await server.start()
                stack.push_async_callback(server.stop)
                writer = await stack.enter_async_context(tas.running(*policies, *HEALTH))
                await writer.ready()
                await first.ready()

            both = await Stage(first, user.filter, writer).scrape()
            alone = await stage.scrapes()
            stage.stories.append(
                Story(
                    name="policies ends",
                    alerts={"TasOptionalWorkerMissing"},
                    before=both,
                    during=alone,
                    after=both,
                    seconds=7 * MINUTE,
                )
            )
            two = Stage(first, user.filter, writer)
            await two.is_at('tas_workers{worker="extender"', lambda count: count == 1)
            async with two.story("TasReplicaMissing", minutes=2) as during:
                async with Bus.connect(server.url, name="test", streams=()) as bus:
                    await bus.wait_connected()
                    should = Expected(count=2)
                    await EXPECTED_NUMBERS.put(bus, "extender", should, revision=0, read_at=time.monotonic())
                await two.is_at('tas_workers_expected{worker="extender"', lambda count: count == 2)
                during.extend(await two.scrapes())
                assert (await tas("dismiss", "extender", "--bus", server.url)).code == 0
                await two.is_at('tas_workers_expected{worker="extender"', lambda count: count == 1)
            async with two.story("TasClockDiffers", minutes=2) as during:
                async with Bus.connect(server.url, name="test", streams=()) as bus:
                    await bus.wait_connected()
                    async with meanwhile(Presence(bus, "extender", _an_hour_ahead).run()):
                        await two.is_at(f'{CLOCK}{{process="wrong-1"', lambda ahead: ahead > 3500)
                        during.extend(await two.scrapes())
                await two.is_at(CLOCK, lambda ahead: abs(ahead) < 5)
            before = await stage.scrape()
            os.kill(first.process.pid, signal.SIGKILL)
            await first.process.wait()
            killed = await stage.scrapes()
            assert [scrape.series for scrape in killed] == [None, None]
        async with tas.running(*extender, *FREE) as again:
            await again.ready()
            after = await Stage(again, user.filter).scrape()
    alerts = {"TasProcessDown", "TasNoExtenderReady", "TasWorkerMissing"}
    story = Story(name="killed", alerts=alerts, before=before, during=killed, after=after, seconds=7 * MINUTE)
    check(prometheus_binary.with_name("promtool"), [*stage.stories, *two.stories, story], tmp_path)


@pytest.mark.nightly
async def test_the_alert_of_a_bus_without_a_majority_fires_for_an_idle_process(
    tas: Tas, tmp_path: Path, prometheus_binary: Path
) -> None:
    """The process is connected to the server that is left, and writes nothing."""
    strategies = "    dontschedule: {rules: [{metricname: m, operator: Equals, target: 2}]}\n"
    folder = str(policy_folder(tmp_path, demo_policy(strategies)))
    with nats_servers(tmp_path, 3) as servers:
        last = ("--bus", servers.address.rpartition(",")[2], "--replicas", "3")
        async with (
            tas.running("run", "policies", *last, "--policies", folder, *HEALTH),
            tas.running("run", "extender", *last, *FREE) as running,
        ):
            await running.ready()
            stage = Stage(running, _nobody_asks)
            await stage.is_at("tas_bus_unavailable", lambda unavailable: unavailable == 0)
            await stage.is_at("tas_view_lag", lambda lag: lag == 0)
            async with stage.story("TasBusUnavailable", "TasViewBehind", minutes=4) as during:
                for process in servers.processes[:2]:
                    process.kill()
                await stage.is_at("tas_bus_unavailable", lambda unavailable: unavailable == 1)
                await stage.is_at("tas_view_lag", lambda lag: lag == -1)
                during.extend(await stage.scrapes())
                # Perhaps it had a connection to one of the others, which all servers name.
                await stage.is_at("tas_bus_connected", lambda connected: connected == 1)
                status, reason = await running.health("/readyz")
                assert (status, json.loads(reason)["bus"] is not None) == (200, True)
                for process in servers.processes[:2]:
                    process.restart()
                await stage.is_at("tas_bus_unavailable", lambda unavailable: unavailable == 0)
                await stage.is_at("tas_view_lag", lambda lag: lag == 0)
    check(prometheus_binary.with_name("promtool"), stage.stories, tmp_path)


@pytest.mark.nightly
async def test_the_alerts_of_a_connection_to_the_bus_fire_and_end_as_their_rows_say(
    tas: Tas, tmp_path: Path, prometheus_binary: Path
) -> None:
    operator = Operator()
    file = tmp_path / "user.creds"
    file.write_text(operator.credentials("tas-all", expires=time.time() + 5 * DAY))
    strategies = "    dontschedule: {rules: [{metricname: m, operator: Equals, target: 2}]}\n"
    folder = str(policy_folder(tmp_path, demo_policy(strategies)))
    async with operated(tmp_path, operator.configuration()) as server:
        connection = ("--bus", server.url, "--bus-credentials", str(file))
        async with (
            Bus.connect(server.url, name="test", streams=(), access=Access(credentials=file)) as bus,
            tas.running("run", "policies", *connection, "--policies", folder, *HEALTH),
            tas.running("run", "extender", *connection, *FREE) as running,
        ):
            await running.ready()
            stage = Stage(running, _nobody_asks)
            async with stage.story("TasBusCredentialsExpire", minutes=3, new=True) as during:
                during.extend(await stage.scrapes())
                replace_file(file, operator.credentials("tas-all", expires=time.time() + 90 * DAY))
                await stage.is_at("tas_bus_credentials_remaining_seconds", lambda left: left > 30 * DAY)
                await stage.is_at("tas_view_lag", lambda lag: lag == 0)
            async with stage.story("TasBusCredentialsExpired", "TasBusLost", "TasViewBehind", minutes=4) as during:
                replace_file(file, operator.credentials("tas-all", expires=time.time() + 4))
                await stage.is_at("tas_bus_credentials_remaining_seconds", lambda left: left < 0)
                await stage.is_at("tas_bus_connected", lambda connected: connected == 0)
                during.extend(await stage.scrapes())
                replace_file(file, operator.credentials("tas-all", expires=time.time() + 90 * DAY))
                await stage.is_at("tas_bus_credentials_remaining_seconds", lambda left: left > 30 * DAY)
                await stage.is_at("tas_bus_connected", lambda connected: connected == 1)
                await stage.is_at("tas_view_lag", lambda lag: lag == 0)
            async with stage.story("TasBusRefuses", minutes=4) as during:
                config = (await answered(lambda: bus.api("STREAM.INFO.KV_NODES")))["config"]
                await answered(lambda: bus.api("STREAM.UPDATE.KV_NODES", config | {"max_msgs_per_subject": 2}))
                await server.stop()
                await server.start()
                await stage.is_at("tas_bus_refusing", lambda refusing: refusing == 1)
                await stage.is_at("tas_view_lag", lambda lag: lag == 0)
                during.extend(await stage.scrapes())
                await running.has_logged("bus_problem", "error", "max_msgs_per_subject is 2, must be 1")
                await answered(lambda: bus.api("STREAM.UPDATE.KV_NODES", config))
                await stage.is_at("tas_bus_refusing", lambda refusing: refusing == 0)
    check(prometheus_binary.with_name("promtool"), stage.stories, tmp_path)


def _an_hour_ahead() -> Process:
    now = time.time()
    return Process(version="1", name="wrong-1", started=now, workers={"extender": ""}, time=now + 3600)


async def _nobody_asks() -> int:
    return 200


def test_every_alert_is_played() -> None:
    files = Path(__file__).parent.glob("test_*alerts_played.py")
    played = {alert for file in files for alert in re.findall(r'"(Tas[A-Z]\w+)"', file.read_text())}
    assert played == {rule["alert"] for rule in rules()} - {ALWAYS} - NOT_PLAYED
