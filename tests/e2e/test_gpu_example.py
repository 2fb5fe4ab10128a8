"""`deploy/examples/gpu` with real programs: who gets which card, and which pods the descheduler takes."""

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bus.connection import Bus
from bus.kinds import NODE_HOLDS
from tas.gpu.hold import Phase
from tas.gpu.names import CONTAINER_CARDS, EVICTION_LABEL, EVICTION_VALUE, TIMESTAMP
from tests.forks import ForkedProcess
from tests.integration.servers import Server, answered, eventually
from workers.process.manifests import read_yaml

from .api import ApiError, Object
from .chain import ROOT, descheduler, evictions
from .cluster import Cluster
from .processes import Process, free_ports, until
from .processes import running as running_process
from .product import environment, is_ready, product

EXAMPLE = ROOT / "deploy" / "examples" / "gpu"
NAMESPACE = "gpu-demo"
GPU_NODES = ("gpu-1", "gpu-2")
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ACCOUNT = "system:serviceaccount:telemetry-aware-scheduling:tas-"


@pytest.fixture(scope="module", autouse=True)
def nodes(cluster: Cluster, crd: None, product_namespace: str) -> Iterator[None]:
    """The nodes and the namespace of the example, with its policy."""
    cluster.apply(EXAMPLE / "nodes.yaml")
    cluster.apply(EXAMPLE / "policy.yaml")
    yield
    cluster.kubectl("delete", "-f", str(ROOT / "deploy" / "admission" / "gpu.yaml"), "--ignore-not-found")
    until(lambda: accepts_a_template(cluster), "the admission policies are gone, also for other tests")
    cluster.kubectl("delete", "-f", str(EXAMPLE / "policy.yaml"), "-f", str(EXAMPLE / "nodes.yaml"), "--wait=false")


def accepts_a_template(cluster: Cluster) -> bool:
    """Whether a workload may have a template with cards: the last policy of the file refuses it."""
    (deployment,) = [each for each in read_yaml((EXAMPLE / "workload.yaml").read_bytes()) if is_deployment(each)]
    assert isinstance(deployment, dict)
    template = deployment["spec"]["template"]
    template["metadata"]["annotations"] = {CONTAINER_CARDS: "card0"}
    deployment["metadata"]["namespace"] = "default"
    try:
        cluster.api.create("/apis/apps/v1/namespaces/default/deployments?dryRun=All", deployment)
    except ApiError as error:
        if error.status == 403:
            return False
        raise
    return True


def is_deployment(document: object) -> bool:
    return isinstance(document, dict) and document["kind"] == "Deployment"


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


async def test_a_pod_leaves_a_card_that_is_too_hot_and_its_replacement_gets_another(
    cluster: Cluster, bus: Bus, server: Server, tmp_path: Path
) -> None:
    for file in ("rbac/gpu.yaml", "rbac/inventory.yaml", "rbac/evictions.yaml", "admission/gpu.yaml"):
        cluster.apply(ROOT / "deploy" / file)
    (folder := tmp_path / "tas").mkdir()
    with (
        product(cluster, folder, kubeconfig=cluster.kubeconfig, bus=server.url) as tas,
        worker(cluster, server, tmp_path, "inventory", "--new-bus-wait", "0s"),
        worker(cluster, server, tmp_path, "evictions") as one_replica,
        worker(cluster, server, tmp_path, "evictions", replica=2) as other_replica,
        worker(cluster, server, tmp_path, "gpu", "--listen", f"127.0.0.1:{(port := free_ports(1)[0])}"),
        cluster.scheduler(*extenders(f"http://127.0.0.1:{port}/scheduler")),
    ):
        tas.publish({node: {"gpu_card0_temperature": 60, "gpu_card1_temperature": 60} for node in GPU_NODES})
        cluster.apply(one_on_each_card())
        await eventually(lambda: len(running(cluster)) == 2)
        (leaves, pod), (stays, _) = running(cluster).items()
        node, card = place(pod)
        replicas = (one_replica, other_replica)
        before: list[int] = []

        def changes() -> list[int]:
            return [each.log.read_text().count("eviction_label_set") for each in replicas]

        async def costs_little() -> bool:
            """The node and the pod are read once for each of the two changes, by one of the two replicas.

            Unless the other one has taken over in between, as it may on a busy machine.
            """
            before[:] = changes()
            mark = cluster.audit.mark()

            def calls() -> Counter[tuple[str, int]]:
                found = cluster.audit.calls(mark, user=f"{ACCOUNT}evictions")
                return Counter((call.verb, call.status) for call in found)

            tas.publish({node: {f"gpu_{card}_temperature": 99}})
            await eventually(lambda: labelled(cluster) == {leaves})
            tas.publish({node: {f"gpu_{card}_temperature": 60}})
            await eventually(lambda: not labelled(cluster))
            # The effect of a patch may be visible before its entry in the log.
            await eventually(lambda: calls()["patch", 200] >= 2)
            assert set(running(cluster)) == {leaves, stays}
            return calls() == {("get", 200): 4, ("patch", 200): 2}

        await eventually(costs_little)
        (working,) = [each for each, now, then in zip(replicas, changes(), before, strict=True) if now > then]
        working.kill()  # the other one does what is to be done from now on
        mark = cluster.audit.mark()

        with descheduler(cluster, EXAMPLE / "descheduler.yaml") as evicting:

            def cycles() -> int:
                return evicting.log.read_text().count("Number of evictions")

            ended = until(cycles, "a cycle has ended")
            until(lambda: cycles() > ended + 1, "two more cycles have ended")
            assert set(running(cluster)) == {leaves, stays}
            # The pod leaves when it is known that no other one may have its card.
            evicting.send(signal.SIGSTOP)
            tas.publish({node: {f"gpu_{card}_temperature": 99}})
            await eventually(lambda: "emptied by gpu-health" in tas.tas("get", "gpus"))
            evicting.send(signal.SIGCONT)
            await eventually(lambda: len(running(cluster)) == 2 and leaves not in running(cluster))
            ended = cycles()
            until(lambda: cycles() > ended + 1, "two more cycles have ended")
            assert evictions(cluster, mark) == {f"{PODS}/{leaves}/eviction"}
        assert stays in running(cluster)
        assert (node, card) not in cards(cluster)
        assert len(cards(cluster)) == 2
        assert not labelled(cluster)


async def test_a_hot_card_gets_no_new_pod_and_nobody_else_gives_cards(
    cluster: Cluster, bus: Bus, server: Server, tmp_path: Path
) -> None:
    for file in ("rbac/gpu.yaml", "rbac/inventory.yaml", "admission/gpu.yaml"):
        cluster.apply(ROOT / "deploy" / file)
    (folder := tmp_path / "tas").mkdir()
    # No Binding was sent before, so the holds need not wait for one.
    with (
        product(cluster, folder, kubeconfig=cluster.kubeconfig, bus=server.url) as tas,
        worker(cluster, server, tmp_path, "inventory", "--new-bus-wait", "0s"),
        worker(cluster, server, tmp_path, "gpu", "--listen", f"127.0.0.1:{(port := free_ports(1)[0])}"),
        cluster.scheduler(*extenders(f"http://127.0.0.1:{port}/scheduler")),
    ):
        tas.publish({node: {"gpu_card0_temperature": 60, "gpu_card1_temperature": 60} for node in GPU_NODES})
        # By the totals of the nodes, each has room for three such pods. But none fits beside another on a card.
        cluster.apply(one_on_each_card())
        cluster.kubectl("scale", "-n", NAMESPACE, "deployment/gpu-app", "--replicas=5")
        await eventually(lambda: len(running(cluster)) == 4)
        await eventually(lambda: "Not enough GPU-resources" in "".join(why_pending(cluster)))
        assert cards(cluster) == {(node, card): 1 for node in GPU_NODES for card in ("card0", "card1")}
        pods = running(cluster)
        assert len({annotations(pod)[TIMESTAMP] for pod in pods.values()}) == 4
        forged = {"metadata": {"annotations": {TIMESTAMP: "1"}}}
        with pytest.raises(ApiError, match="only the binder of GPU cards"):
            cluster.api.patch(f"{PODS}/{next(iter(pods))}", forged)
        holds = {uid: phase for node in GPU_NODES for uid, phase in (await held(bus, node)).items()}
        assert holds == {pod["metadata"]["uid"]: Phase.BOUND for pod in pods.values()}

        tas.publish({"gpu-2": {"gpu_card1_temperature": 90}})
        await eventually(lambda: "disabled by gpu-health" in tas.tas("get", "gpus"))
        leaves = next(
            name
            for name, pod in pods.items()
            if pod["spec"]["nodeName"] == "gpu-2" and annotations(pod)[CONTAINER_CARDS] == "card1"
        )
        cluster.api.delete(f"{PODS}/{leaves}")
        # The card is free by its amounts, and two pods wait for one. Another card gets a pod at once.
        await eventually(lambda: len(why_pending(cluster)) == 2)
        other = next(name for name in pods if name != leaves)
        place = pods[other]["spec"]["nodeName"], annotations(pods[other])[CONTAINER_CARDS]
        cluster.api.delete(f"{PODS}/{other}")
        await eventually(lambda: len(running(cluster)) == 3 and other not in running(cluster))
        assert cards(cluster)[place] == 1
        assert cards(cluster)["gpu-2", "card1"] == 0

        tas.publish({"gpu-2": {"gpu_card1_temperature": 60}})
        await eventually(lambda: "disabled" not in tas.tas("get", "gpus"))
        # When the label went, the scheduler tried the pods, perhaps before `gpu` knew. Then `inventory` wakes them.
        await eventually(lambda: cards(cluster)["gpu-2", "card1"] == 1)
        shown = tas.tas("get", "gpus")
    assert "disabled" not in shown
    assert shown.count("gpu-demo/gpu-app-") == 4


def one_on_each_card() -> str:
    """The workload with pods of which none fits beside another on a card."""
    workload = (EXAMPLE / "workload.yaml").read_text()
    assert "millicores: 500" in workload
    return workload.replace("millicores: 500", "millicores: 600")


def labelled(cluster: Cluster) -> set[str]:
    """The pods with the eviction label."""
    found = {
        each["metadata"]["name"]: each["metadata"]["labels"].get(EVICTION_LABEL)
        for each in cluster.api.get(PODS)["items"]
        if "deletionTimestamp" not in each["metadata"]
    }
    assert set(found.values()) <= {None, EVICTION_VALUE}
    return {name for name, value in found.items() if value is not None}


def place(pod: Object) -> tuple[str, str]:
    """The node of a pod, and its card."""
    return pod["spec"]["nodeName"], annotations(pod)[CONTAINER_CARDS]


def cards(cluster: Cluster) -> Counter[tuple[str, str]]:
    """How many running pods have each card, by node and name."""
    return Counter(map(place, running(cluster).values()))


@contextmanager
def worker(
    cluster: Cluster,
    server: Server,
    folder: Path,
    name: str,
    *flags: str,
    replica: int = 1,
    kubeconfig: Path | None = None,
) -> Iterator[Process]:
    """Runs a worker with the token of its account, or with this `kubeconfig`."""
    kubeconfig = kubeconfig or cluster.account("telemetry-aware-scheduling", f"tas-{name}")
    (health,) = free_ports(1)
    flags = ("--kubeconfig", str(kubeconfig), "--health-listen", f"127.0.0.1:{health}", *flags)
    command = ["-m", "cli", "run", name, "--bus", server.url, *flags]
    label, env = f"tas-{name}-{replica}", environment(folder)
    with running_process(label, command, folder=cluster.folder, env=env, kind=ForkedProcess) as process:
        cluster.processes.append(process)
        until(lambda: is_ready(process, health), f"{name} is ready")
        yield process


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


async def held(bus: Bus, node: str) -> dict[str, Phase]:
    """How far each pod of a node has come, by its uid, when all are bound."""

    found: dict[str, Phase] = {}

    async def phases() -> dict[str, Phase]:
        record = (await answered(partial(NODE_HOLDS.get, bus, node))).readable()
        assert record is not None
        return {uid: each.phase for uid, each in record.pods.items()}

    async def are_bound() -> bool:
        nonlocal found
        found = await phases()
        return set(found.values()) == {Phase.BOUND}

    await eventually(are_bound)
    return found


def why_pending(cluster: Cluster) -> list[str]:
    """The messages of the pods that the scheduler has rejected."""
    return [
        condition["message"]
        for pod in cluster.api.get(PODS)["items"]
        for condition in pod["status"].get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
