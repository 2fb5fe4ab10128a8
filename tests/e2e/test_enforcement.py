"""The whole product labels nodes that violate policies, and wakes waiting pods."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.subjects import samples_subject
from tests.integration.servers import answered

from .cluster import NODES, Cluster, extender
from .processes import until
from .product import Product, product

POLICY = "demo-policy"
MANIFEST = """
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata:
  name: {name}
  namespace: {namespace}
spec:
  strategies:
    dontschedule:
      rules:
        - {{metricname: health_metric, operator: GreaterThan, target: 0}}
    deschedule:
      rules:
        - {{metricname: health_metric, operator: Equals, target: 2}}
"""

STRICT = "strict-policy"
STRICT_MANIFEST = """
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata:
  name: {name}
  namespace: {namespace}
spec:
  strategies:
    dontschedule:
      onStale: fail
      rules:
        - {{metricname: strict_metric, operator: GreaterThan, target: 0}}
"""


@pytest.fixture
def tas(cluster: Cluster, kubeconfig: Path, tmp_path: Path, namespace: str) -> Iterator[Product]:
    """The product on the cluster, with a policy that kubectl applied."""
    with product(cluster, tmp_path, kubeconfig=kubeconfig) as running:
        cluster.apply(MANIFEST.format(name=POLICY, namespace=namespace))
        yield running
        cluster.kubectl("delete", "taspolicy", POLICY, "--namespace", namespace)
        until(lambda: not labelled(cluster), "the labels of the deleted policy are removed")


def labelled(cluster: Cluster) -> set[str]:
    """The nodes with the policy's label."""
    nodes = cluster.api.get("/api/v1/nodes", labelSelector=f"{POLICY}=violating")["items"]
    return {node["metadata"]["name"] for node in nodes}


def test_labels_follow_samples_and_are_removed_with_the_policy(cluster: Cluster, namespace: str, tas: Product) -> None:
    tas.publish({"node-1": {"health_metric": 2}, "node-2": {"health_metric": 1}, "node-3": {"health_metric": 0}})
    until(lambda: labelled(cluster) == {"node-1"}, "the node that violates is labelled")
    tas.publish({"node-1": {"health_metric": 0}, "node-2": {"health_metric": 2}})
    until(lambda: labelled(cluster) == {"node-2"}, "the label follows")

    def is_shown() -> bool:
        table = cluster.kubectl("get", "taspolicies", "--namespace", namespace, "--no-headers")
        return table.split()[:4] == [POLICY, "True", "True", "1"]

    until(is_shown, "kubectl shows the status")
    # The fixture deletes the policy, and waits until its label is removed.


async def woken_after(
    cluster: Cluster, namespace: str, tas: Product, *, policy: str, reason: str, metric: str
) -> float:
    """Seconds from the sample with which a node passes until a pod that was rejected for `reason` is placed."""
    until(lambda: tas.passes(namespace, policy, NODES) == set(), "every node is rejected")
    with cluster.scheduler(extender(tas.url, names_only=True)):
        cluster.create_pod(namespace, "waits", policy=policy)
        cluster.rejected(namespace, "waits", containing=reason)
        async with Bus.connect(tas.bus, name="source", streams=()) as bus:
            await bus.wait_connected()
            sample = b'{"metrics": {"%s": "0"}}' % metric.encode()
            began = time.monotonic()
            await answered(partial(bus.publish, SAMPLES, samples_subject("node-2", "cli"), sample))
            # Without a wake the scheduler retries the pod after 5 minutes, later than this test waits.
            assert cluster.placed(namespace, "waits") == "node-2"
            return time.monotonic() - began


async def test_a_pod_that_all_nodes_rejected_is_woken_by_a_recovery(
    cluster: Cluster, namespace: str, tas: Product, measured: Callable[[str], None]
) -> None:
    tas.publish({node: {"health_metric": 1} for node in NODES})
    took = await woken_after(cluster, namespace, tas, policy=POLICY, reason="health_metric", metric="health_metric")
    measured(f"wake: a pod that all nodes rejected is placed {took:.2f} s after a node's recovery (goal 2 s)")


async def test_a_pod_that_waits_because_there_are_no_samples_is_woken_by_the_first_sample(
    cluster: Cluster, namespace: str, tas: Product, measured: Callable[[str], None]
) -> None:
    cluster.apply(STRICT_MANIFEST.format(name=STRICT, namespace=namespace))
    took = await woken_after(
        cluster, namespace, tas, policy=STRICT, reason="no fresh sample of strict_metric", metric="strict_metric"
    )
    measured(f"wake: a pod that waited without samples is placed {took:.2f} s after the first sample")
    cluster.kubectl("delete", "taspolicy", STRICT, "--namespace", namespace)


BRAKED = "braked-policy"
BRAKED_MANIFEST = """
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata:
  name: {name}
  namespace: {namespace}
spec:
  breaker: {{maxNodes: {most}}}
  strategies:
    deschedule:
      rules:
        - {{metricname: braked_metric, operator: Equals, target: 1}}
"""


def test_a_tripped_breaker_freezes_labels_until_a_reset(
    cluster: Cluster, kubeconfig: Path, tmp_path: Path, namespace: str
) -> None:
    def braked() -> set[str]:
        nodes = cluster.api.get("/api/v1/nodes", labelSelector=f"{BRAKED}=violating")["items"]
        return {node["metadata"]["name"] for node in nodes}

    def is_tripped() -> bool:
        columns = "jsonpath={.status.conditions[?(@.type=='Ready')].reason}"
        return (
            cluster.kubectl("get", "taspolicy", BRAKED, "--namespace", namespace, "--output", columns)
            == "BreakerTripped"
        )

    def is_observed() -> bool:
        """Whether the status is that of the newest spec."""
        found = cluster.api.get(f"/apis/telemetry.intel.com/v1alpha1/namespaces/{namespace}/taspolicies/{BRAKED}")
        observed: bool = found["status"].get("observedGeneration") == found["metadata"]["generation"]
        return observed

    with product(cluster, tmp_path, kubeconfig=kubeconfig) as tas:
        cluster.apply(BRAKED_MANIFEST.format(name=BRAKED, namespace=namespace, most=1))
        tas.publish({"node-1": {"braked_metric": 1}})
        until(lambda: braked() == {"node-1"}, "the first node is labelled")
        tas.publish({"node-1": {"braked_metric": 0}, "node-2": {"braked_metric": 1}, "node-3": {"braked_metric": 1}})
        until(is_tripped, "the status says that the breaker has tripped")
        assert len(braked()) <= 1
        cluster.apply(BRAKED_MANIFEST.format(name=BRAKED, namespace=namespace, most=2))
        until(is_observed, "the new limit is in force, or the breaker would trip again")
        assert "is reset" in tas.tas("reset", f"{namespace}/{BRAKED}")
        until(lambda: braked() == {"node-2", "node-3"}, "after the reset labels follow the verdicts of now")
        cluster.kubectl("delete", "taspolicy", BRAKED, "--namespace", namespace)
        until(lambda: not braked(), "the labels of the deleted policy are removed")
