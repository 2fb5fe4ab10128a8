"""One value through programs that are all real: from a file on a node to a pod on another node."""

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import psutil
import pytest

from bus.connection import Bus
from bus.tables import last_tables, received_row
from tas.values.quantity import format_quantity
from tests.integration.servers import answered
from workers.process.manifests import read_yaml

from .api import Object
from .chain import EXAMPLE, Chain, chain, descheduler, evictions
from .cluster import NODES, RESOURCE, Cluster
from .processes import until
from .product import Product, product

RIGHTS = Path(__file__).parents[2] / "deploy" / "rbac"
NAMESPACE = "health-metric-demo"
POLICY = "demo-policy"
SOURCE = "custom-metrics"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

USER = "tas"
ROLES = ("tas-watch", "tas-collect", "tas-labels", "tas-resources")
BINDING = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: chain-{role}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {role}}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {user}}}]
"""

Probe = Callable[[], Awaitable[bool]]


@pytest.fixture(scope="module")
def running(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """The programs from the files to the custom metrics API, with a healthy file for each node."""
    with chain(cluster, tmp_path_factory.mktemp("chain"), NODES) as running:
        yield running


@pytest.fixture(scope="module")
def user(cluster: Cluster, crd: None, product_namespace: str) -> Path:
    """The kubeconfig of a user with exactly the roles of `deploy/rbac`."""
    for file in RIGHTS.glob("*.yaml"):
        cluster.apply(file)
    cluster.apply("---".join(BINDING.format(role=role, user=USER) for role in ROLES))
    # Policies of other tests use the same metric.
    cluster.kubectl("delete", "taspolicies", "--all", "--all-namespaces")
    return cluster.kubeconfig_for(USER)


@pytest.fixture
def example(cluster: Cluster, user: Path) -> Iterator[Path]:
    """The user's kubeconfig. The namespace and the policy of the example exist until the test ends."""
    until(lambda: not _exists(cluster), "the namespace of another test is gone")
    cluster.apply(EXAMPLE / "policy.yaml")
    yield user
    cluster.kubectl("delete", "-f", str(EXAMPLE / "policy.yaml"))
    cluster.remove_resource()


def _exists(cluster: Cluster) -> bool:
    return NAMESPACE in {each["metadata"]["name"] for each in cluster.api.get("/api/v1/namespaces")["items"]}


async def timeline(hops: Mapping[str, Probe]) -> dict[str, float]:
    """The seconds from now until each hop's probe is true, in the order of the hops.

    All probes of a round count for its end, and the last hop is asked first. So no hop seems to come before its cause.
    """
    began, deadline = time.monotonic(), time.monotonic() + 120
    came: dict[str, float] = {}
    while len(came) < len(hops):
        assert time.monotonic() < deadline, f"after {came} nothing more came"
        found = [name for name, probe in reversed(list(hops.items())) if name not in came and await probe()]
        came |= dict.fromkeys(found, time.monotonic() - began)
        await asyncio.sleep(0.01)
    return {name: came[name] for name in hops}


def in_thread(probe: Callable[[], bool]) -> Probe:
    return partial(asyncio.to_thread, probe)


def printed(title: str, took: Mapping[str, float]) -> str:
    """A timeline as lines: seconds since the file was written, seconds since the hop before, name of the hop."""
    before, lines = 0.0, [title]
    for name, at in took.items():
        lines.append(f"  {at:6.2f} s  +{max(at - before, 0.0):5.2f} s  {name}")
        before = at
    return "\n".join(lines)


async def test_a_value_in_a_file_moves_a_pod(
    cluster: Cluster, running: Chain, example: Path, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with product(cluster, tmp_path, "--source", SOURCE, "--node-resource", "1000", kubeconfig=example) as tas:
        running.set_health("node-2", 1)
        running.set_health("node-3", 1)
        until(lambda: passing(tas) == {"node-1"}, "only node-1 is healthy")
        (configuration,) = read_yaml((EXAMPLE / "scheduler.yaml").read_bytes())
        assert isinstance(configuration, dict)
        (entry,) = configuration["extenders"]
        # As in the file, except the address and a longer time limit for a slow machine.
        with cluster.scheduler(entry | {"urlPrefix": f"{tas.url}/scheduler", "httpTimeout": "30s"}):
            cluster.apply(EXAMPLE / "workload.yaml")
            old = until(partial(only_pod, cluster, "node-1"), "the pod runs on the healthy node")
            running.set_health("node-2", 0)
            until(lambda: passing(tas) == {"node-1", "node-2"}, "node-2 has recovered")
            until(partial(all_offer, cluster), "all nodes offer the resource")
            mark = cluster.audit.mark()
            with descheduler(cluster) as evicting:
                until(lambda: "Number of evictions" in evicting.tail(1000), "the descheduler has run once")
                assert only_pod(cluster, "node-1") == old
                async with Bus.connect(tas.bus, name="chain", streams=()) as bus:
                    await bus.wait_connected()
                    took = await moved(cluster, running, tas, bus, old)
                    back = await recovered(cluster, running, tas, bus)
            until(lambda: evictions(cluster, mark) == {f"{PODS}/{old}/eviction"}, "the descheduler has evicted one pod")
    measured(printed("chain: after the 2 is in the file of node-1, until the pod runs on node-2:", took))
    measured(printed("chain: after the 0 is in the file of node-1:", back))
    caused = list(took.values())[-4:]  # the label, the eviction, the replacement on a node, the replacement runs
    assert caused == sorted(caused)


async def moved(cluster: Cluster, running: Chain, tas: Product, bus: Bus, old: str) -> dict[str, float]:
    """The timeline of the value 2 in the file of node-1."""
    hops = values(running, bus, "2") | {
        "the extender rejects the node": in_thread(lambda: "node-1" not in passing(tas)),
        "label on the node": in_thread(lambda: labelled(cluster) == {"node-1"}),
        "descheduler has evicted the pod": in_thread(lambda: old not in pods_of(cluster)),
        "scheduler has placed its replacement": in_thread(lambda: bool(nodes_of_others(cluster, old))),
        "the replacement runs": in_thread(lambda: only_pod(cluster, "node-2") is not None),
    }
    await asyncio.to_thread(running.set_health, "node-1", 2)
    return await timeline(hops)


async def recovered(cluster: Cluster, running: Chain, tas: Product, bus: Bus) -> dict[str, float]:
    """The timeline of the value 0 in the file of node-1."""
    hops = values(running, bus, "0") | {
        "the extender passes the node": in_thread(lambda: "node-1" in passing(tas)),
        "the label is removed": in_thread(lambda: not labelled(cluster)),
    }
    await asyncio.to_thread(running.set_health, "node-1", 0)
    return await timeline(hops)


def values(running: Chain, bus: Bus, value: str) -> dict[str, Probe]:
    """The hops of a value of node-1 as far as the bus."""

    async def on_the_bus() -> bool:
        found = [received_row(each, "node-1") for each in await answered(partial(last_tables, bus, "node-1"))]
        scrapes = [scrape for row in found if row.source == SOURCE for scrape in row.samples]
        return [format_quantity(each.metrics["health_metric"]) for each in scrapes] == [value]

    return {
        "node_exporter": in_thread(lambda: running.exported("node-1") == value),
        "Prometheus": in_thread(lambda: running.scraped("node-1") == value),
        "prometheus-adapter, custom metrics API": in_thread(lambda: running.adapted("node-1") == value),
        "collect, sample on the bus": on_the_bus,
    }


def passing(tas: Product) -> set[str]:
    return tas.passes(NAMESPACE, POLICY, NODES)


def labelled(cluster: Cluster) -> set[str]:
    nodes = cluster.api.get("/api/v1/nodes", labelSelector=f"{POLICY}=violating")["items"]
    return {node["metadata"]["name"] for node in nodes}


def all_offer(cluster: Cluster) -> bool:
    """Whether all nodes offer the resource: otherwise the descheduler finds that the pod fits no other node."""
    return all(RESOURCE in node["status"]["allocatable"] for node in cluster.api.get("/api/v1/nodes")["items"])


def pods_of(cluster: Cluster) -> dict[str, Object]:
    """The pods of the example that are not being deleted, by name."""
    found = cluster.api.get(PODS)["items"]
    return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}


def nodes_of_others(cluster: Cluster, old: str) -> list[str]:
    """The nodes of the pods that are not `old`."""
    pods = pods_of(cluster).items()
    return [pod["spec"]["nodeName"] for name, pod in pods if name != old and "nodeName" in pod["spec"]]


def only_pod(cluster: Cluster, node: str) -> str | None:
    """The name of the example's only pod, if this pod runs on this node."""
    pods = pods_of(cluster)
    places = [(pod["spec"].get("nodeName"), pod["status"].get("phase")) for pod in pods.values()]
    return next(iter(pods)) if places == [(node, "Running")] else None


# Three ways from Prometheus to a label

WAYS = (SOURCE, "prometheus", "remote-write")
BY_WAY = """
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {{name: by-{way}, namespace: default}}
spec:
  strategies:
    deschedule:
      rules: [{{metricname: health_metric, operator: Equals, target: 2, source: {way}}}]
"""
CHANGES = (0, 2, 0, 2, 0)
"""The values of the file after its first 2, each at a random time within a period of the scrapes and of `collect`."""


@pytest.fixture
def ways(cluster: Cluster, user: Path) -> Iterator[Path]:
    """The user's kubeconfig. One policy for each way exists until the test ends."""
    cluster.apply("---".join(BY_WAY.format(way=way) for way in WAYS))
    yield user
    cluster.delete_policies("default")


async def test_a_value_becomes_a_label_by_each_way(
    cluster: Cluster, running: Chain, ways: Path, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    sources = (SOURCE, f"prometheus={running.prometheus}", f"remote-write={running.receiver}")
    flags = [word for source in sources for word in ("--source", source)]
    scrapes: list[float] = []
    labels: dict[str, list[float]] = {way: [] for way in WAYS}
    adapter = psutil.Process(running.adapter.pid)

    def hops(value: int) -> dict[str, Probe]:
        scraped = in_thread(lambda: running.scraped("node-1") == str(value))
        return {"scraped": scraped} | {
            way: in_thread(partial(is_labelled, cluster, f"by-{way}", value == 2)) for way in WAYS
        }

    with product(cluster, tmp_path, *flags, kubeconfig=ways):
        running.set_health("node-1", 2)
        await timeline(hops(2))
        began, used = time.monotonic(), sum(adapter.cpu_times()[:2])
        for value in CHANGES:
            await asyncio.sleep(random.random())
            running.set_health("node-1", value)
            took = await timeline(hops(value))
            scrapes.append(took["scraped"])
            for way in WAYS:
                labels[way].append(took[way] - took["scraped"])
        lasted, used = time.monotonic() - began, sum(adapter.cpu_times()[:2]) - used
    measured(f"ways: a value is in Prometheus {spread(scrapes)} after the file was written, and then a label")
    for way, seconds in labels.items():
        measured(f"  by {way:14} {spread(seconds)} later")
    resident = adapter.memory_info().rss / 2**20
    measured(f"  prometheus-adapter uses {resident:.0f} MiB and {used / lasted:.1%} of a processor")


def is_labelled(cluster: Cluster, label: str, expected: bool) -> bool:
    """Whether node-1 has this label, or not, as expected."""
    return (label in cluster.api.get("/api/v1/nodes/node-1")["metadata"]["labels"]) is expected


def spread(seconds: list[float]) -> str:
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    return f"{low:.2f} to {high:.2f} s (median {middle:.2f} s)"
