"""`deploy/examples/gpu` with real programs: the descheduler takes only pods with the label of the product."""

from collections.abc import Iterator

import pytest

from tas.devices.names import EVICTION_LABEL, EVICTION_VALUE

from .api import Object
from .chain import ROOT, descheduler, evictions
from .cluster import Cluster
from .processes import until

EXAMPLE = ROOT / "deploy" / "examples" / "gpu"
NAMESPACE = "gpu-demo"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture
def nodes(cluster: Cluster, crd: None) -> Iterator[None]:
    """The nodes and the namespace of the example, with its policy."""
    cluster.apply(EXAMPLE / "nodes.yaml")
    cluster.apply(EXAMPLE / "policy.yaml")
    yield
    cluster.kubectl("delete", "-f", str(EXAMPLE / "workload.yaml"), "--ignore-not-found")
    cluster.kubectl("delete", "-f", str(EXAMPLE / "policy.yaml"), "-f", str(EXAMPLE / "nodes.yaml"), "--wait=false")


def running(cluster: Cluster) -> dict[str, Object]:
    """The pods of the workload that run and are not being deleted, by name."""
    return {
        each["metadata"]["name"]: each
        for each in cluster.api.get(PODS)["items"]
        if each["status"].get("phase") == "Running" and "deletionTimestamp" not in each["metadata"]
    }


def test_the_descheduler_evicts_the_pods_with_the_label_alone(cluster: Cluster, nodes: None) -> None:
    with cluster.scheduler():
        cluster.apply(EXAMPLE / "workload.yaml")
        until(lambda: len(running(cluster)) == 2, "both pods run")
        leaves, stays = running(cluster)
        # Only the two nodes of the example offer the resources.
        assert {pod["spec"]["nodeName"] for pod in running(cluster).values()} <= {"gpu-1", "gpu-2"}
        mark = cluster.audit.mark()
        with descheduler(cluster, EXAMPLE / "descheduler.yaml") as evicting:

            def cycles() -> int:
                return evicting.log.read_text().count("Number of evictions")

            before = until(cycles, "a cycle has ended")
            until(lambda: cycles() > before + 1, "two more cycles have ended")
            assert set(running(cluster)) == {leaves, stays}
            cluster.api.patch(f"{PODS}/{leaves}", {"metadata": {"labels": {EVICTION_LABEL: EVICTION_VALUE}}})
            until(lambda: len(running(cluster)) == 2 and leaves not in running(cluster), "the pod is replaced")
            before = cycles()
            until(lambda: cycles() > before + 1, "two more cycles have ended")
            assert evictions(cluster, mark) == {f"{PODS}/{leaves}/eviction"}
            assert stays in running(cluster)
