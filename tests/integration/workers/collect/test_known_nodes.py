"""`collect` with the nodes of a cluster: series that name a node by an address, of replicas, and of unknown nodes."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import NODES, SYNCED
from bus.connection import Bus
from bus.kinds import NODE_FACTS
from bus.records.codec import encode
from bus.records.nodes import NodeFacts
from bus.records.synced import Synced
from bus.rights.access import Access
from bus.rights.roles import SOURCE
from tas.sources.state import Health, health
from tests.integration.bus.operated import EVERYTHING, Operator, operated
from tests.integration.servers import Server
from tests.integration.workers.collecting import World, polled
from tests.integration.workers.running import epoch_on, put, running
from tests.sources import writing
from workers.collect import known_nodes
from workers.collect import worker as collect_module
from workers.collect.known_nodes import KnownNodes
from workers.collect.sources.config import ConfigFile
from workers.collect.sources.prometheus import Prometheus
from workers.collect.sources.remote_write import RemoteWrite
from workers.collect.worker import Collect
from workers.http.address import Address
from workers.roles import ROLES
from workers.samples.metrics import SourceMetrics
from workers.samples.source_spec import SourceKind, SourceSpec

pytestmark = pytest.mark.usefixtures("long_limits")

HEADERS = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}


class Cluster(World):
    """The nodes on a bus, a Prometheus, and a sender of remote write."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self.series: list[tuple[Mapping[str, str], str]] = []
        self.receiver: RemoteWrite | None = None

    async def node(self, name: str, *addresses: str, uid: str = "u", known: bool = True) -> None:
        facts = NodeFacts(uid=uid, labels={}, addresses=addresses if known else None)
        await put(self.bus, NODES, NODE_FACTS.key(name), encode(facts))

    async def gone(self, name: str) -> None:
        await put(self.bus, NODES, NODE_FACTS.key(name), None)

    async def nodes_listed(self, *, cluster: bool = True) -> None:
        epoch = await epoch_on(self.bus, NODES)
        synced = Synced(epoch=epoch.created, count=0, time=datetime.now(UTC), writer="test", cluster=cluster)
        await put(self.bus, NODES, SYNCED, encode(synced))

    async def answer(self, _: web.Request) -> web.Response:
        now = time.time()
        found = [({"__name__": "load"} | dict(labels), value) for labels, value in self.series]
        result = [{"metric": labels, "value": [now, value]} for labels, value in found]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

    async def write(self, value: float, **labels: str) -> None:
        await self.write_all(writing.series("load", (float(value), round(time.time() * 1000)), **labels))

    async def write_all(self, *series: writing.Series) -> None:
        """Sends all series in one request."""
        assert self.receiver is not None
        body = writing.body(series)
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.receiver.url, data=body, headers=HEADERS) as answer,
        ):
            assert answer.status == 204

    async def health(self, source: str) -> Health | None:
        state = await self.state(source)
        return None if state is None else health(state, is_held=True, now=time.time())

    async def has_health(self, source: str, expected: Health) -> None:
        async def is_so() -> bool:
            return await self.health(source) is expected

        await polled(is_so)


@pytest.fixture
async def cluster(bus: Bus) -> Cluster:
    world = Cluster(bus)
    await world.listed()
    await world.use("load")
    return world


@asynccontextmanager
async def collecting(cluster: Cluster, bus: Bus | None = None) -> AsyncIterator[None]:
    """Polls the Prometheus as `prometheus`, and receives as `written`. `bus` is that of `collect`."""
    bus = bus or cluster.bus
    app = web.Application()
    app.add_routes([web.get("/api/v1/query", cluster.answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    nodes, config = KnownNodes(bus), ConfigFile.load(None)
    host, port, *_ = runner.addresses[0]
    prometheus = Prometheus("prometheus", f"http://{host}:{port}", config, nodes=nodes.current)
    cluster.receiver = RemoteWrite("written", Address("127.0.0.1", 0), config, nodes=nodes.current)
    collect = Collect(
        bus,
        {
            SourceSpec(name="prometheus", kind=SourceKind.PROMETHEUS): prometheus,
            SourceSpec(name="written", kind=SourceKind.REMOTE_WRITE): cluster.receiver,
        },
        period=0.1,
        default_stale_after=120.0,
        metrics=SourceMetrics(CollectorRegistry()),
        nodes=nodes,
    )
    try:
        async with running(collect):

            async def is_listening() -> bool:
                return bool(cluster.receiver and cluster.receiver.url)

            await polled(is_listening)
            yield
    finally:
        await prometheus.close()
        await runner.cleanup()


async def test_values_of_an_address_count_for_its_node_polled_and_written(cluster: Cluster) -> None:
    await cluster.node("node-1", "172.20.3.4", "fd00::1")
    await cluster.nodes_listed()
    cluster.series = [({"instance": "172.20.3.4:20257"}, "7")]
    async with collecting(cluster):
        await cluster.has("node-1", "prometheus", {"load": 7})
        await cluster.write(8, instance="[FD00::0001]:9100")
        await cluster.has("node-1", "written", {"load": 8})
        await cluster.has_health("prometheus", Health.HEALTHY)
    assert await cluster.scrape("172.20.3.4", "prometheus") is None


async def test_a_source_of_which_no_node_is_known_is_not_healthy(cluster: Cluster) -> None:
    await cluster.node("node-1", "172.20.3.4")
    await cluster.nodes_listed()
    cluster.series = [({"instance": "172.20.3.5:20257"}, "7")]
    async with collecting(cluster):
        await cluster.refuses("prometheus", "node", "instance = '172.20.3.5:20257': is no name of a node")
        await cluster.refuses("prometheus", "node", "the nearest is '172.20.3.4' of node-1")
        await cluster.has_health("prometheus", Health.FAILING)
        await cluster.write(8, node="nod-1")
        await cluster.has_health("written", Health.FAILING)
        await cluster.misses("written", "load", "node = 'nod-1': is no name of a node of the cluster")


async def test_an_address_follows_the_node_and_never_counts_for_two(cluster: Cluster) -> None:
    await cluster.node("node-1", "172.20.3.4")
    await cluster.nodes_listed()
    cluster.series = [({"instance": "172.20.3.4:20257"}, "1")]
    async with collecting(cluster):
        await cluster.has("node-1", "prometheus", {"load": 1})
        await cluster.node("node-2", "172.20.3.4")  # as a new node, whose address the other one seems to have
        await cluster.refuses("prometheus", "node", "an address of several nodes, node-1, node-2")
        cluster.series = [({"instance": "172.20.3.4:20257"}, "2")]
        await cluster.node("node-1", "172.20.3.5")
        await cluster.has("node-2", "prometheus", {"load": 2})
        assert await cluster.values("node-1", "prometheus") == {"load": 1}


async def test_another_node_of_the_name_has_no_address_until_it_is_read(cluster: Cluster) -> None:
    await cluster.node("node-1", "172.20.3.4", uid="before")
    await cluster.node("node-2")
    await cluster.nodes_listed()
    cluster.series = [({"instance": "172.20.3.4:20257"}, "1"), ({"node": "node-2"}, "5")]
    async with collecting(cluster):
        await cluster.has("node-1", "prometheus", {"load": 1})
        await cluster.node("node-1", uid="before", known=False)  # by a version that does not write addresses
        cluster.series = [({"instance": "172.20.3.4:20257"}, "2"), ({"node": "node-2"}, "6")]
        await cluster.has("node-1", "prometheus", {"load": 2})
        await cluster.node("node-1", uid="after", known=False)
        await cluster.refuses("prometheus", "node", "instance = '172.20.3.4:20257'")
        cluster.series = [({"instance": "172.20.3.4:20257"}, "3"), ({"node": "node-2"}, "7")]
        await cluster.has("node-2", "prometheus", {"load": 7})
        assert await cluster.values("node-1", "prometheus") == {"load": 2}
        await cluster.node("node-1", "172.20.3.4", uid="after")
        await cluster.has("node-1", "prometheus", {"load": 3})


async def test_a_node_that_joins_or_leaves_is_followed(cluster: Cluster) -> None:
    await cluster.nodes_listed()
    cluster.series = [({"node": "Node-1"}, "1")]
    async with collecting(cluster):
        await cluster.refuses("prometheus", "node", "the cluster has no nodes")
        await cluster.node("node-1")
        await cluster.has("node-1", "prometheus", {"load": 1})
        await cluster.gone("node-1")
        await cluster.misses("prometheus", "load", "node = 'Node-1'")


async def test_after_a_wipe_the_known_nodes_stay_until_there_is_a_new_list(cluster: Cluster, server: Server) -> None:
    await cluster.node("node-1", "172.20.3.4")
    await cluster.nodes_listed()
    cluster.series = [({"instance": "172.20.3.4:20257"}, "1"), ({"instance": "172.20.3.5:20257"}, "1")]
    async with collecting(cluster):
        await cluster.has("node-1", "prometheus", {"load": 1})
        await server.restart(wiped=True)
        await cluster.bus.wait_connected()
        cluster.series = [({"instance": "172.20.3.4:20257"}, "2"), ({"instance": "172.20.3.5:20257"}, "2")]
        await cluster.has("node-1", "prometheus", {"load": 2})
        assert await cluster.scrape("172.20.3.5", "prometheus") is None
        await cluster.node("node-2", "172.20.3.5")
        await cluster.nodes_listed()
        await cluster.has("node-2", "prometheus", {"load": 2})
        await cluster.misses("prometheus", "load", "")


async def test_without_a_cluster_every_valid_name_is_a_node(cluster: Cluster) -> None:
    await cluster.nodes_listed(cluster=False)
    cluster.series = [({"instance": "172.20.3.4:20257"}, "1"), ({"node": "any"}, "2")]
    async with collecting(cluster):
        await cluster.has("172.20.3.4", "prometheus", {"load": 1})
        await cluster.has("any", "prometheus", {"load": 2})


POLLED_TABLES = 100
"""More messages than the polls of one test publish."""


def invented(number: int) -> list[writing.Series]:
    return [writing.series("load", (1.0, round(time.time() * 1000)), node=f"invented-{each}") for each in range(number)]


async def test_of_invented_nodes_nothing_is_published(cluster: Cluster) -> None:
    await cluster.node("node-1")
    await cluster.nodes_listed()
    async with collecting(cluster):
        await cluster.write_all(*invented(2_000))
        await cluster.refuses("written", "node", "node = 'invented-0': is no name of a node")
        assert await cluster.published() == 0
        await cluster.write(1, node="node-1")
        assert await cluster.published() == 1


async def test_without_a_cluster_invented_nodes_are_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_module, "MAX_NEW_NAMES", 20)
    monkeypatch.setattr(collect_module, "MAX_NAMES", 30)
    cluster.series = [({"node": f"polled-{number}"}, "1") for number in range(100)]
    async with collecting(cluster):
        await cluster.refuses("prometheus", "node", "is one new name too many: at most 30 at once")
        state = await cluster.state("prometheus")
        assert state is not None
        assert state.metrics["load"].nodes == 30
        before = await cluster.published()
        await cluster.write(1, node="invented-0")
        await cluster.write_all(*invented(2_000))
        await cluster.refuses("written", "node", "is one new name too many: at most 20 at once")
        assert [await cluster.values(f"invented-{number}", "written") for number in (20, 21)] == [{"load": 1}, {}]
    assert before + 20 <= await cluster.published() <= before + 20 + POLLED_TABLES


async def test_replicas_count_once_polled_and_written_by_two_senders(cluster: Cluster) -> None:
    await cluster.node("node-1")
    await cluster.nodes_listed()
    cluster.series = [({"node": "node-1", "prometheus_replica": name}, name[-1]) for name in ("p-1", "p-2")]
    async with collecting(cluster):
        await cluster.has("node-1", "prometheus", {"load": 1})
        cluster.series = [({"node": "node-1", "prometheus_replica": "p-2"}, "2")]  # failover
        await cluster.has("node-1", "prometheus", {"load": 2})
        for value in range(4):
            await cluster.write(value, node="node-1", prometheus_replica=f"p-{value % 2}")
            await cluster.has("node-1", "written", {"load": value})
        for source in ("prometheus", "written"):
            state = await cluster.state(source)
            assert state is not None
            assert state.refused == {}


async def test_without_the_right_to_read_the_nodes_every_name_is_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_nodes, "READ_SECONDS", 0.5)
    rights = ROLES["collect"].earlier
    before = replace(rights, reads=tuple(each for each in rights.reads if each is not NODES))
    assert before != rights
    any_source = tuple(each.replace(SOURCE, "*") for each in before.permissions.publish)
    operator = Operator()
    users = {"all": EVERYTHING, "before": replace(before.permissions, publish=any_source, subscribe=(">",))}
    for name, permissions in users.items():
        (tmp_path / name).write_text(operator.credentials(name, permissions))
    async with operated(tmp_path, operator.configuration()) as server, AsyncExitStack() as stack:
        one = await stack.enter_async_context(
            Bus.connect(server.url, name="all", access=Access(credentials=tmp_path / "all"))
        )
        await one.wait_connected()
        other = await stack.enter_async_context(
            Bus.connect(server.url, name="before", streams=(), access=Access(credentials=tmp_path / "before"))
        )
        await other.wait_connected()
        cluster = Cluster(one)
        await cluster.listed()
        await cluster.use("load")
        cluster.series = [({"node": "any"}, "2")]
        with capture_logs() as logs:
            async with collecting(cluster, other):
                await cluster.has("any", "prometheus", {"load": 2})
        assert "source_nodes_unknown" in {line["event"] for line in logs}
