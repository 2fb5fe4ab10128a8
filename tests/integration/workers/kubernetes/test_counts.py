"""What `tas run all` has once: connections, watches of buckets, views, lists and watches of the cluster."""

import asyncio
import gc
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest

from bus.buckets import ALL, Bucket
from bus.connection import Bus
from cli.loading import load_settings
from cli.wiring import Process
from tas.view.view import View
from tests.integration.cli.tas import FREE, Running, Tas
from tests.integration.servers import Server, answered, eventually
from tests.kubernetes.admin import Admin
from tests.kubernetes.watch_scenarios import strategies
from tests.sandbox import Sandbox
from workers.registry import workers_of_all

pytestmark = pytest.mark.usefixtures("long_limits")

FOLLOWED = {"NODES", "POLICIES", "PODS", "VERDICTS", "SOURCES", "REFUSALS", "BREAKERS"}
"""The buckets that `tas run all` follows."""

WHOLE = {"deschedule": {"rules": strategies(2)["dontschedule"]["rules"], "taint": {"effect": "NoSchedule"}}}
"""Strategies for which somebody needs whole nodes."""


def connections_of(running: Running, server: Server) -> int:
    """How many connections to the server the process has open."""
    port = int(server.url.rpartition(":")[2])
    sockets = psutil.Process(running.process.pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED and each.raddr.port == port for each in sockets)


async def consumers_on(bus: Bus) -> Counter[str]:
    """How many consumers each stream and bucket has, by its name."""
    found: Counter[str] = Counter()
    for of in ALL:
        state = (await answered(partial(bus.api, f"STREAM.INFO.{of.stream}")))["state"]
        found[of.name] = state["consumer_count"]
    return +found


async def follows_each_bucket_once(bus: Bus) -> bool:
    """Who comes later, such as the writer of the status, has a consumer of its own until it has caught up."""
    found = await consumers_on(bus)
    return {of.name: found[of.name] for of in ALL if isinstance(of, Bucket) and of.name in found} == dict.fromkeys(
        FOLLOWED, 1
    )


class Requests:
    """The lists and watches of a sandbox since the start of a process."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox, self._since = sandbox, len(sandbox.calls)

    def count(self, verb: str, resource: str) -> int:
        return self._sandbox.count(since=self._since)[verb, resource]


async def test_run_all_has_each_thing_once(
    tas: Tas, server: Server, bus: Bus, sandbox: Sandbox, kubeconfig: Path
) -> None:
    requests = Requests(sandbox)
    async with (
        Admin.connect(kubeconfig) as admin,
        tas.running("run", "all", "--bus", server.url, "--kubeconfig", str(kubeconfig), *FREE) as running,
    ):
        await running.ready()
        await eventually(partial(follows_each_bucket_once, bus))
        await running.logged("status_ready")  # the last one that follows policies
        assert connections_of(running, server) == 2
        # Whole nodes were needed until it was known that no policy and no node has a mark.
        await running.logged("marks_off")
        await eventually(lambda: sandbox.watches == 3)
        assert requests.count("watch", "pods") == requests.count("list", "pods") == 1
        assert requests.count("watch", "taspolicies") == 1
        assert requests.count("watch", "nodes") == 2  # one of metadata, one of whole nodes that has ended

        await admin.create_policy("default", "marked", strategies=WHOLE)
        await eventually(lambda: sandbox.watches == 4)
        assert requests.count("watch", "nodes") == 3
        await eventually(partial(follows_each_bucket_once, bus))
        assert connections_of(running, server) == 2
        # One for each who became ready at another time: two of metadata, two of whole nodes, two of policies. And one
        # of the addresses of all nodes.
        assert requests.count("list", "nodes") <= 4 + 1
        assert requests.count("list", "taspolicies") <= 2 + 1  # and one before a label of a deleted policy may go


QUESTIONS_PER_SECOND = 4.0
"""Calls of the JetStream API of an idle process: 2.4 and, in some seconds, the reading of a bucket."""

WAKE_UPS_PER_SECOND = 28.0
"""How often its event loop waits: 18 to 21 times."""

IDLE_SECONDS = 10.0


async def test_an_idle_process_asks_little_and_seldom_wakes_up(
    tas: Tas, server: Server, bus: Bus, kubeconfig: Path
) -> None:
    """On a busy machine both are fewer: timers that end late end together."""
    loop = asyncio.get_running_loop()
    async with tas.running("run", "all", "--bus", server.url, "--kubeconfig", str(kubeconfig), *FREE) as running:
        await running.ready()
        await running.logged("status_ready")
        await running.logged("marks_off")
        await eventually(partial(follows_each_bucket_once, bus))
        process = psutil.Process(running.process.pid)

        async def counts() -> tuple[float, int, int]:
            total = (await answered(partial(bus.api, "INFO")))["api"]["total"]
            return loop.time(), total, process.num_ctx_switches().voluntary

        async def is_idle() -> bool:
            before = await counts()
            await eventually(lambda: loop.time() > before[0] + IDLE_SECONDS)
            seconds, questions, wake_ups = (after - then for after, then in zip(await counts(), before, strict=True))
            return questions <= QUESTIONS_PER_SECOND * seconds and wake_ups <= WAKE_UPS_PER_SECOND * seconds

        await eventually(is_idle, within=60.0)  # some of the start may be left to do


async def test_marks_and_resources_share_whole_nodes(
    tas: Tas, server: Server, bus: Bus, sandbox: Sandbox, kubeconfig: Path
) -> None:
    command = ("run", "all", "--bus", server.url, "--kubeconfig", str(kubeconfig), "--node-resource", "10", *FREE)
    async with Admin.connect(kubeconfig) as admin:
        await admin.create_policy("default", "marked", strategies=WHOLE)
        async with tas.running(*command) as running:
            await running.ready()
            await running.logged("status_ready")
            await eventually(lambda: sandbox.watches == 4)
            await eventually(partial(follows_each_bucket_once, bus))
            assert connections_of(running, server) == 2


async def test_the_workers_of_run_all_read_one_view(server: Server, kubeconfig: Path) -> None:
    texts = {"bus": server.url, "kubeconfig": str(kubeconfig), "health_listen": "127.0.0.1:0", "listen": "127.0.0.1:0"}
    settings = load_settings("run all", texts)
    gc.collect()
    before = sum(isinstance(each, View) for each in gc.get_objects())
    async with AsyncExitStack() as stack:
        parts = Process(settings, stack)
        await parts.build(workers_of_all(settings))
        assert sum(isinstance(each, View) for each in gc.get_objects()) - before == 1
