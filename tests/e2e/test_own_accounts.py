"""Each worker with the token of its own account, under the admission policies: all works, and no right is unused.

The rights that the API server saw in use, by its audit log, are those of the table of `test_rights.py`: no account has
one that its worker did not need here, and no request was refused.
"""

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from bus.connection import Bus
from tas.enforcing.waking import ANNOTATION
from tests.forks import ForkedProcess
from tests.integration.servers import Server
from tests.kubernetes.admin import Admin

from .adapter import AggregatedAdapter
from .admission import ACCOUNT, FOLDER, Attempt, refusal
from .api import Object
from .cluster import POLICY_LABEL, RESOURCE, Cluster, extender
from .fire.stage import BRAKE_OFF
from .processes import Process, free_ports, running, until
from .product import environment, is_ready
from .test_rights import NAMESPACE, granted, used, wait_for_rights

NODES = ("owned-1", "owned-2", "owned-3")
FIRST, *OTHERS = NODES
LATE = "owned-4"
SELECTOR = {"owned": "yes"}
GUARD, REPLACED = "owned-guard", "owned-replaced"
MARK = f"telemetry.aware.scheduling/{REPLACED}"
METRIC = "health_metric"
SINKS = """
sinks:
  cluster: {type: kubernetes-events, wait: 1s, interval: 1s}
"""
SOURCES = ("--source", "custom-metrics", "--source", "metrics-server", "--period", "500ms")
OVERWRITE = ("--overwrite-labels", REPLACED)
FLAGS: Mapping[str, tuple[str, ...]] = {
    "watch": (),
    "labels": (*BRAKE_OFF, *OVERWRITE),
    "marks": (),
    "resources": ("--node-resource", "1000"),
    "collect": SOURCES,
    "notify": ("--sinks", "sinks.yaml"),
}
"""The workers with an account, and their flags."""

WITHOUT_ACCOUNT = ("materialize", "evaluate", "events")


@pytest.fixture(scope="module", autouse=True)
def guarded(cluster: Cluster, crd: None, product_namespace: str) -> Iterator[None]:
    """All roles and admission policies. Those of nodes name the label that `--overwrite-labels` names."""
    for file in sorted((FOLDER.parent / "rbac").glob("*.yaml")):
        cluster.apply(file)
    wait_for_rights(cluster)
    nodes = (FOLDER / "nodes.yaml").read_text()
    assert nodes.count("\"['']\"") == 1
    manifests = [nodes.replace("\"['']\"", f"\"['{REPLACED}']\""), (FOLDER / "policies.yaml").read_text()]
    cluster.create_nodes(*NODES, labels=SELECTOR)
    for manifest in manifests:
        cluster.apply(manifest)
    cordon = Attempt(f"{ACCOUNT}tas-labels", "PATCH", f"/api/v1/nodes/{FIRST}", {"spec": {"unschedulable": True}})
    until(partial(refusal, cluster, cordon), "the policies are in force")
    yield
    for manifest in manifests:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=manifest)
    until(lambda: not refusal(cluster, cordon), "the policies are gone, also for other tests")
    cluster.delete_nodes(*NODES)
    cluster.remove_resource()


@pytest.mark.parametrize("together", [False, True], ids=["each-worker", "run-all"])
async def test_the_loop_works_with_the_rights_of_the_table_and_uses_all_of_them(
    *, cluster: Cluster, admin: Admin, bus: Bus, server: Server, namespace: str, tmp_path: Path, together: bool
) -> None:
    (tmp_path / "sinks.yaml").write_text(SINKS)
    mark = cluster.audit.mark()
    async with AggregatedAdapter.start(admin, tmp_path) as adapter:
        await adapter.serve("v1beta2", usage=True)
        await asyncio.to_thread(play, cluster, adapter, server.url, namespace, tmp_path, mark=mark, together=together)
    accounts = {"tas-all"} if together else {f"tas-{worker}" for worker in FLAGS}
    for account in sorted(accounts):
        calls = cluster.audit.calls(mark, user=f"{ACCOUNT}{account}")
        assert [call for call in calls if call.status in (401, 403, 422)] == []
        assert {call.namespace for call in calls if call.resource == "events"} <= {"default"}
        assert used(cluster, mark, account) == granted(account), account
    others = {call.user for call in cluster.audit.calls(mark) if call.user.startswith(ACCOUNT)}
    assert others == {f"{ACCOUNT}{account}" for account in accounts}


def passing(port: int, namespace: str) -> set[str]:
    """The nodes on which the extender lets a pod of the policy be placed."""
    pod = {"metadata": {"name": "asked", "namespace": namespace, "labels": {POLICY_LABEL: GUARD}}}
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": NODES}).encode()
    request = Request(f"http://127.0.0.1:{port}/scheduler/filter", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as response:
        return set(json.load(response)["NodeNames"] or ())


def woken_at(cluster: Cluster) -> str | None:
    """The annotation by which `labels` wakes pods that wait for the node."""
    found: str | None = cluster.api.get(f"/api/v1/nodes/{FIRST}")["metadata"].get("annotations", {}).get(ANNOTATION)
    return found


@contextmanager
def late_node(cluster: Cluster) -> Iterator[None]:
    """A node that joins while all runs: `watch` asks for its addresses."""
    cluster.create_nodes(LATE)
    yield
    cluster.delete_nodes(LATE)


def play(
    cluster: Cluster, adapter: AggregatedAdapter, url: str, namespace: str, folder: Path, *, mark: int, together: bool
) -> None:
    """From a metric to labels, marks, events and pods; `url` is that of the bus, `mark` one of the audit log."""
    (port,) = free_ports(1)
    listen = ("--listen", f"127.0.0.1:{port}")

    def labels(node: str) -> dict[str, str]:
        found: dict[str, str] = cluster.labels_of_nodes()[node]
        return found

    def health(**values: int) -> None:
        for node in NODES:
            adapter.metrics.set(METRIC, node, str(values.get(node.replace("-", "_"), values.get("others", 0))))
            adapter.metrics.use(node, cpu="1", memory="1Gi")

    cluster.api.patch(f"/api/v1/nodes/{FIRST}", {"metadata": {"labels": {REPLACED: "somebody", GUARD: None}}})
    health(owned_1=2)
    workers = all_in_one(cluster, listen) if together else one_by_one(cluster, listen)
    with (
        processes(cluster, url, folder, workers),
        cluster.scheduler(extender(f"http://127.0.0.1:{port}", names_only=True)),
        late_node(cluster),
    ):
        for name, strategies in POLICIES.items():
            create_policy(cluster, namespace, name, strategies)
        wanted = {GUARD: "violating", REPLACED: "violating"}
        until(lambda: wanted.items() <= labels(FIRST).items(), "the labels are set, also instead of somebody's value")
        until(lambda: (taint(cluster), condition(cluster)) == ("PreferNoSchedule", "True"), "the node has the marks")
        until(lambda: reasons(cluster, "default", FIRST) >= {"LabelOverwritten", "NodeViolatesPolicy"}, "events exist")
        until(lambda: violating(cluster, namespace) == 1, "the policy has a status")
        until(lambda: {offered(cluster, node) for node in NODES} == {"1k"}, "the nodes offer the resource")
        # The extender is a process of its own: it may learn later than `labels` of a violation.
        until(lambda: passing(port, namespace) == set(OTHERS), "the extender knows which node violates the policy")
        cluster.create_pod(namespace, "web", policy=GUARD, nodeSelector=SELECTOR)
        assert cluster.placed(namespace, "web") in OTHERS

        health(others=2)
        until(lambda: all(labels(node).get(GUARD) for node in NODES), "all nodes violate the policy")
        until(lambda: not passing(port, namespace), "the extender knows that all nodes violate the policy")
        cluster.create_pod(namespace, "late", policy=GUARD, nodeSelector=SELECTOR)
        cluster.rejected(namespace, "late", containing=f"Node violates {GUARD}")
        before = woken_at(cluster)
        health(owned_1=0, others=2)
        assert cluster.placed(namespace, "late") == FIRST
        # The patch of another worker may have woken the scheduler just before.
        until(lambda: woken_at(cluster) not in (None, before), "labels has woken the scheduler")
        until(lambda: not {GUARD, REPLACED} & labels(FIRST).keys(), "the labels are gone")
        until(lambda: (taint(cluster), condition(cluster)) == (None, "False"), "the marks are gone")

        # A worker reads a node only if somebody else has changed it just before the patch.
        writers = {"all"} if together else {"labels", "marks"}
        with touching(cluster, FIRST):
            for value in (2, 0) * 20:
                health(owned_1=value, others=2)
                until(partial(follows, cluster, violating=value == 2), f"label and taint follow the value {value}")
                if value == 0 and all(("get", "nodes") in used(cluster, mark, f"tas-{each}") for each in writers):
                    break
        until(lambda: has_series(cluster, FIRST), "the Event of the violation has a series")

        # What a deleted policy leaves goes by a list of policies.
        health(others=2)
        until(lambda: taint(cluster) and labels(FIRST).get(REPLACED), "the node has label and mark again")
        cluster.delete_policies(namespace)
        until(lambda: not {GUARD, REPLACED} & labels(FIRST).keys(), "the labels of the deleted policies are gone")
        until(lambda: (taint(cluster), condition(cluster)) == (None, None), "their marks, too")
        cluster.delete_pods(namespace)


RULE = {"metricname": METRIC, "operator": "Equals", "target": 2}
POLICIES: Mapping[str, Object] = {
    GUARD: {
        "dontschedule": {"rules": [RULE]},
        "deschedule": {"rules": [RULE]},
        # Only metrics-server is asked for this one.
        "scheduleonmetric": {"rules": [{"metricname": "cpu", "operator": "LessThan", "source": "metrics-server"}]},
    },
    REPLACED: {"deschedule": {"rules": [RULE], "taint": {"effect": "PreferNoSchedule"}, "nodeCondition": True}},
}


def create_policy(cluster: Cluster, namespace: str, name: str, strategies: Object) -> None:
    policy = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"matchLabels": SELECTOR}, "strategies": strategies},
    }
    cluster.api.create(f"/apis/telemetry.intel.com/v1alpha1/namespaces/{namespace}/taspolicies", policy)


def one_by_one(cluster: Cluster, listen: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The flags of each worker, with the token of its account."""
    own = {
        worker: ("--kubeconfig", str(cluster.account(NAMESPACE, f"tas-{worker}")), *flags)
        for worker, flags in FLAGS.items()
    }
    return own | dict.fromkeys(WITHOUT_ACCOUNT, ()) | {"extender": listen}


def all_in_one(cluster: Cluster, listen: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    flags = (each for flags in FLAGS.values() for each in flags)
    return {"all": ("--kubeconfig", str(cluster.account(NAMESPACE, "tas-all")), *listen, *flags)}


@contextmanager
def processes(cluster: Cluster, url: str, folder: Path, workers: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Runs the workers side by side until the end."""
    with ExitStack() as stack:
        started: list[tuple[Process, int]] = []
        for name, flags in workers.items():
            (health,) = free_ports(1)
            command = ["-m", "cli", "run", name, "--bus", url, "--health-listen", f"127.0.0.1:{health}", *flags]
            paths = [str(folder / each) if each == "sinks.yaml" else each for each in command]
            label = f"tas-{name}-{len(cluster.processes)}"
            process = stack.enter_context(
                running(label, paths, folder=cluster.folder, env=environment(folder), kind=ForkedProcess)
            )
            cluster.processes.append(process)
            started.append((process, health))
        for process, health in started:
            until(partial(is_ready, process, health), f"{process.name} is ready")
        logs = [process.log for process, _ in started]
        until(partial(takes_events, logs), "notify takes events")  # a new sink does not get what was before
        yield


def takes_events(logs: Sequence[Path]) -> bool:
    """Whether `notify` has its consumer of events."""
    return any(b'"holder":"notify-cluster"' in log.read_bytes() for log in logs)


@contextmanager
def touching(cluster: Cluster, node: str) -> Iterator[None]:
    """Changes an annotation of a node nearly all the time: in the pauses also a slow machine reads and patches it."""
    ended = threading.Event()

    def touch() -> None:
        pauses = itertools.cycle([0.003] * 10 + [0.1])
        while not ended.wait(next(pauses)):
            cluster.touch_node(node)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def taint(cluster: Cluster) -> str | None:
    """The effect of the taint of the first node."""
    taints = cluster.api.get(f"/api/v1/nodes/{FIRST}")["spec"].get("taints", [])
    return next((each["effect"] for each in taints if each["key"] == MARK), None)


def follows(cluster: Cluster, *, violating: bool) -> bool:
    labels = cluster.labels_of_nodes()[FIRST]
    return (labels.get(GUARD) == "violating", taint(cluster) is not None) == (violating, violating)


def condition(cluster: Cluster) -> str | None:
    """The status of the condition of the first node."""
    conditions = cluster.api.get(f"/api/v1/nodes/{FIRST}")["status"]["conditions"]
    return next((each["status"] for each in conditions if each["type"] == MARK), None)


def offered(cluster: Cluster, node: str) -> str | None:
    amount: str | None = cluster.api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"].get(RESOURCE)
    return amount


def violating(cluster: Cluster, namespace: str) -> int | None:
    path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{namespace}/taspolicies/{GUARD}"
    number: int | None = cluster.api.get(path).get("status", {}).get("violating")
    return number


def events(cluster: Cluster, namespace: str, name: str) -> list[Object]:
    found = cluster.api.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    return [each for each in found if each["regarding"]["name"] == name]


def reasons(cluster: Cluster, namespace: str, name: str) -> set[str]:
    return {each["reason"] for each in events(cluster, namespace, name)}


def has_series(cluster: Cluster, node: str) -> bool:
    return any(
        each["reason"] == "NodeViolatesPolicy" and each.get("series") for each in events(cluster, "default", node)
    )
