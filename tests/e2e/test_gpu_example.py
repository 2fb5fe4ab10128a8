"""`deploy/examples/gpu` with real programs: who gets which card, and which pods the descheduler takes."""

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bus.buckets import HOLDS
from bus.connection import Bus
from bus.kinds import NODE_HOLDS, NODE_INVENTORY
from bus.records.devices import NodeHold, NodeInventory
from tas.devices.hold import Phase
from tas.devices.inventory import read_inventory
from tas.devices.names import CONTAINER_CARDS, EVICTION_LABEL, EVICTION_VALUE, TIMESTAMP
from tests.integration.servers import Server, answered, eventually
from workers.following.synced import write_synced
from workers.process.manifests import read_yaml

from .api import ApiError, Object
from .chain import ROOT, descheduler, evictions
from .cluster import Cluster
from .processes import free_ports, until
from .processes import running as running_process
from .product import TAS, environment, is_ready

EXAMPLE = ROOT / "deploy" / "examples" / "gpu"
NAMESPACE = "gpu-demo"
ACCOUNT = "system:serviceaccount:telemetry-aware-scheduling:tas-gpu"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture(scope="module", autouse=True)
def nodes(cluster: Cluster, crd: None, product_namespace: str) -> Iterator[None]:
    """The nodes and the namespace of the example, with its policy."""
    cluster.apply(EXAMPLE / "nodes.yaml")
    cluster.apply(EXAMPLE / "policy.yaml")
    yield
    cluster.kubectl("delete", "-f", str(EXAMPLE / "policy.yaml"), "-f", str(EXAMPLE / "nodes.yaml"), "--wait=false")


@pytest.fixture(autouse=True)
def workload(cluster: Cluster) -> Iterator[None]:
    """The workload, which a test applies, is deleted afterwards, with its pods."""
    yield
    cluster.kubectl("delete", "-f", str(EXAMPLE / "workload.yaml"), "--ignore-not-found")
    cluster.delete_pods(NAMESPACE)


def running(cluster: Cluster) -> dict[str, Object]:
    """The pods of the workload that run and are not being deleted, by name."""
    return {
        each["metadata"]["name"]: each
        for each in cluster.api.get(PODS)["items"]
        if each["status"].get("phase") == "Running" and "deletionTimestamp" not in each["metadata"]
    }


def test_the_descheduler_evicts_the_pods_with_the_label_alone(cluster: Cluster) -> None:
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


async def test_the_binder_gives_each_pod_a_card_with_room_and_nobody_else_can(
    cluster: Cluster, bus: Bus, server: Server, tmp_path: Path
) -> None:
    for file in ("rbac/gpu.yaml", "admission/gpu.yaml"):
        cluster.apply(ROOT / "deploy" / file)
    try:
        uids = await publish(cluster, bus)
        kubeconfig = cluster.kubeconfig_for(ACCOUNT, "system:serviceaccounts", "system:authenticated")
        port, health = free_ports(2)
        addresses = ("--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{health}")
        command = [*TAS, "run", "gpu", "--bus", server.url, "--kubeconfig", str(kubeconfig), *addresses]
        with running_process("tas-gpu", command, folder=cluster.folder, env=environment(tmp_path)) as binder:
            cluster.processes.append(binder)
            await eventually(lambda: is_ready(binder, health))
            with cluster.scheduler(*extenders(f"http://127.0.0.1:{port}/scheduler")):
                # By the totals of the nodes, each has room for three such pods. But none fits beside another on a card.
                workload = (EXAMPLE / "workload.yaml").read_text()
                assert "millicores: 500" in workload
                cluster.apply(workload.replace("millicores: 500", "millicores: 600"))
                cluster.kubectl("scale", "-n", NAMESPACE, "deployment/gpu-app", "--replicas=5")
                await eventually(lambda: len(running(cluster)) == 4)
                await eventually(lambda: "Not enough GPU-resources" in "".join(why_pending(cluster)))
                found = list(running(cluster).values())
                cards = Counter((pod["spec"]["nodeName"], annotations(pod)[CONTAINER_CARDS]) for pod in found)
                assert cards == {(node, card): 1 for node in uids for card in ("card0", "card1")}
                assert len({annotations(pod)[TIMESTAMP] for pod in found}) == 4
                forged = {"metadata": {"annotations": {TIMESTAMP: "1"}}}
                with pytest.raises(ApiError, match="only the binder of GPU cards"):
                    cluster.api.patch(f"{PODS}/{found[0]['metadata']['name']}", forged)
                holds = {node: await held(bus, node) for node in uids}
        assert {phase for hold in holds.values() for phase in hold.values()} == {Phase.BOUND}
        assert {uid for hold in holds.values() for uid in hold} == {pod["metadata"]["uid"] for pod in found}
    finally:
        cluster.kubectl("delete", "-f", str(ROOT / "deploy" / "admission" / "gpu.yaml"))


def annotations(pod: Object) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"]["annotations"]
    return found


def extenders(url: str) -> list[Object]:
    """Both entries of the scheduler's configuration of the example, that of the GPU extender with this URL.

    Nobody listens for the other one, which is only asked for pods that request `telemetry/scheduling`.
    """
    (document,) = read_yaml((EXAMPLE / "scheduler.yaml").read_bytes())
    assert isinstance(document, dict)
    return [each | ({"urlPrefix": url} if "bindVerb" in each else {}) for each in document["extenders"]]


async def publish(cluster: Cluster, bus: Bus) -> dict[str, str]:
    """Writes the records of the nodes as `inventory` does; returns the uid of each node."""
    uids = {}
    for name in ("gpu-1", "gpu-2"):
        node = cluster.api.get(f"/api/v1/nodes/{name}")
        uids[name] = node["metadata"]["uid"]
        inventory = read_inventory(node["metadata"]["labels"], node["status"]["allocatable"])
        assert len(inventory.cards) == 2
        read_at = time.monotonic()
        record = NodeInventory(uid=uids[name], inventory=inventory)
        await NODE_INVENTORY.put(bus, name, record, revision=0, read_at=read_at)
        await NODE_HOLDS.put(bus, name, NodeHold(uid=uids[name]), revision=0, read_at=read_at)
    epoch = await answered(partial(bus.epoch, HOLDS))
    await write_synced(bus, HOLDS, epoch, count=len(uids), writer="test", cluster=True)
    return uids


async def held(bus: Bus, node: str) -> dict[str, Phase]:
    """How far each pod of a node has come, by its uid, when all are bound."""

    async def phases() -> dict[str, Phase]:
        record = (await answered(partial(NODE_HOLDS.get, bus, node))).readable()
        assert record is not None
        return {uid: each.phase for uid, each in record.pods.items()}

    async def are_bound() -> bool:
        return set((await phases()).values()) == {Phase.BOUND}

    await eventually(are_bound)
    return await phases()


def why_pending(cluster: Cluster) -> list[str]:
    """The messages of the pods that the scheduler has rejected."""
    return [
        condition["message"]
        for pod in cluster.api.get(PODS)["items"]
        for condition in pod["status"].get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
