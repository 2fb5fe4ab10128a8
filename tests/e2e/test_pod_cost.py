"""A burst of pods between two samples: with `podCost` it is spread, without it goes to the one best node."""

import asyncio
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.subjects import samples_subject
from tests.integration.servers import answered

from .cluster import Cluster, extender
from .processes import until
from .product import CALL_SECONDS, Product, product

METRIC = "burst_load"
PODS = 200
ROOM = 110
"""The pods that a node of the tests has room for."""
BATCH = 10
"""So many pods are created before the extender must know the nodes of all before: it is never further behind."""

FREE = [f"free-{number}" for number in range(4)]
COSTED = [f"costed-{number}" for number in range(4)]


@pytest.fixture
def burst_nodes(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Four equal nodes for each of the two policies. Their pods are deleted before the nodes."""
    for name, nodes in (("free", FREE), ("costed", COSTED)):
        cluster.create_nodes(*nodes, labels={"burst": name})
    yield
    cluster.delete_pods(namespace)
    cluster.delete_nodes(*FREE, *COSTED)


def create_policy(cluster: Cluster, namespace: str, name: str, **cost: object) -> None:
    rule = {"metricname": METRIC, "operator": "LessThan"} | cost
    # A burst of a busy machine takes longer than the two minutes after which a sample is stale by default.
    spec = {"staleAfter": "1h", "strategies": {"scheduleonmetric": {"rules": [rule]}}}
    body = {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy", "metadata": {"name": name}, "spec": spec}
    cluster.api.create(f"/apis/telemetry.intel.com/v1alpha1/namespaces/{namespace}/taspolicies", body)


def create_pods(cluster: Cluster, namespace: str, policy: str, numbers: range) -> None:
    for number in numbers:
        cluster.create_pod(namespace, f"{policy}-{number}", policy=policy, nodeSelector={"burst": policy})


def nodes_of(cluster: Cluster, namespace: str, policy: str) -> Counter[str]:
    """The number of pods of a policy on each node."""
    selector = f"telemetry-policy={policy}"
    pods = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)["items"]
    return Counter(pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName"))


def counted(tas: Product, namespace: str, policy: str) -> int:
    """The number of pods whose cost the extender counts, as it explains the policy."""
    with urllib.request.urlopen(f"{tas.health}/debug/explain?policy={namespace}/{policy}", timeout=CALL_SECONDS) as got:
        nodes = json.load(got)["nodes"].values()
    return sum(rule["pods"] for node in nodes for strategy in node["strategies"] for rule in strategy["rules"])


def publish(tas: Product) -> None:
    """A new sample of each node: of the four of a policy, each is better than the next by one."""

    async def published() -> None:
        async with Bus.connect(tas.bus, name="source", streams=()) as bus:
            await bus.wait_connected()
            for place, nodes in enumerate(zip(FREE, COSTED, strict=True)):
                for node in nodes:
                    sample = json.dumps({"metrics": {METRIC: place}}).encode()
                    await answered(partial(bus.publish, SAMPLES, samples_subject(node, "cli"), sample))

    asyncio.run(published())


@pytest.mark.usefixtures("crd", "burst_nodes")
def test_facts_c28_c36_a_burst_between_two_samples_is_spread_by_the_cost_of_its_pods(
    cluster: Cluster, namespace: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    create_policy(cluster, namespace, "free")
    create_policy(cluster, namespace, "costed", podCost=10)
    with product(cluster, tmp_path, kubeconfig=cluster.kubeconfig) as tas:
        publish(tas)
        ranked = [10, 9, 8, 7]
        for policy, nodes in (("free", FREE), ("costed", COSTED)):
            best_first = dict(zip(nodes, ranked, strict=True))
            until(lambda: tas.scores(namespace, policy, nodes) == best_first, f"{policy} is applied")  # noqa: B023
        with cluster.scheduler(extender(tas.url, names_only=True)):
            create_pods(cluster, namespace, "free", range(PODS))
            began = time.monotonic()
            for first in range(0, PODS, BATCH):
                create_pods(cluster, namespace, "costed", range(first, first + BATCH))
                known = first + BATCH
                until(lambda: counted(tas, namespace, "costed") == known, f"{known} pods are counted")  # noqa: B023
            seconds = time.monotonic() - began
            until(lambda: nodes_of(cluster, namespace, "free").total() == PODS, "all pods are placed")
        free, costed = nodes_of(cluster, namespace, "free"), nodes_of(cluster, namespace, "costed")
        measured(f"podCost: {PODS} pods on {dict(costed)} in {seconds:.1f} s; without on {dict(free)}")

        # Not exactly: a pod of another test may have a place on the best node.
        assert free.keys() <= set(FREE)
        assert ROOM - BATCH <= free[FREE[0]] <= ROOM
        assert costed.keys() == set(COSTED)
        # One batch may see the same values for all its pods, and go to one node.
        assert max(costed.values()) - min(costed.values()) <= BATCH + 1

        def no_pod_counts() -> bool:
            publish(tas)  # again and again: a sample of the second of the last binding does not end its cost
            return counted(tas, namespace, "costed") == 0

        until(no_pod_counts, "the samples show all pods")
        assert tas.scores(namespace, "costed", COSTED) == dict(zip(COSTED, ranked, strict=True))
