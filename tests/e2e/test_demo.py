"""`tas demo --kubeconfig` on the real control plane: the stories run, or change nothing where they cannot run."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.demo.stories import STORIES

from .cluster import NODES, Cluster, extender
from .controlplane import ADMIN_GROUP, Call
from .processes import free_ports, running, until
from .product import TAS, Product, environment, is_ready, product
from .test_gpu import entry

pytestmark = pytest.mark.nightly

TELEMETRY = [name for name, story in STORIES.items() if story.answering == "extender"]


WITHIN = "120s"
COMMAND_SECONDS = 240.0
"""Time limits of a step and of a story, on a busy machine."""


class Demo:
    """The command, run with its own user of the API server."""

    def __init__(self, cluster: Cluster, tas: Product, folder: Path) -> None:
        self._cluster = cluster
        self._tas = tas
        self._folder = folder
        self._kubeconfig = cluster.kubeconfig_for("demo", ADMIN_GROUP)
        self._mark = cluster.audit.mark()

    def __call__(self, story: str, *flags: str) -> subprocess.CompletedProcess[str]:
        address = self._tas.url.removeprefix("http://")
        health = self._tas.health.removeprefix("http://")
        where = ["--kubeconfig", str(self._kubeconfig), "--bus", self._tas.bus]
        command = [*TAS, "demo", story, *where, "--listen", address, "--extender-health", health, "--within", WITHIN]
        self._mark = self._cluster.audit.mark()
        return subprocess.run(
            [*command, *flags],
            env=environment(self._folder),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def acts(self) -> list[Call]:
        """The requests of the last run that are not reads."""
        calls = self._cluster.audit.calls(self._mark, user="demo")
        assert calls
        return [call for call in calls if call.verb not in ("get", "list")]


@pytest.fixture(scope="module")
def tas(cluster: Cluster, crd: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    # Policies of other tests use the same metrics, and the stories would refuse to run.
    cluster.kubectl("delete", "taspolicies", "--all", "--all-namespaces")
    with product(cluster, tmp_path_factory.mktemp("tas"), kubeconfig=cluster.kubeconfig) as running:
        yield running


@pytest.fixture
def demo(cluster: Cluster, tas: Product, tmp_path: Path) -> Demo:
    until(lambda: not deleting(cluster), "namespaces that other tests have deleted are gone")
    return Demo(cluster, tas, tmp_path)


def test_every_story_runs_and_leaves_the_cluster_as_before(
    cluster: Cluster, namespace: str, tas: Product, demo: Demo
) -> None:
    with cluster.scheduler(extender(tas.url, names_only=True)):
        cluster.create_pod(namespace, "app")
        cluster.placed(namespace, "app")
        before = state_of(cluster)
        for story in TELEMETRY:
            done = demo(story)
            assert done.returncode == 0, done.stdout + done.stderr
            assert f"about pod {namespace}/app\n" in done.stdout
            assert f"{story}: all steps succeeded\n" in done.stdout
            written = {call.uri.partition("?")[0] for call in demo.acts()}
            own = STORIES[story].namespace
            assert {uri for uri in written if not re.search(rf"/namespaces(/{own}(/|$)|$)", uri)} == set()
            assert state_of(cluster) == before


def test_without_the_extender_in_the_scheduler_a_story_changes_nothing(
    cluster: Cluster, namespace: str, tas: Product, demo: Demo
) -> None:
    with cluster.scheduler():
        cluster.create_pod(namespace, "app", managed=False)
        cluster.placed(namespace, "app")
        before = state_of(cluster)
        done = demo("health-metric")
        assert done.returncode == 1
        assert "nothing was changed: no evidence that the scheduler of" in done.stderr
        assert demo.acts() == []
        assert state_of(cluster) == before

        # With --probe the demo creates a pod, and deletes it.
        def says_why() -> bool:
            """Within 5 s the scheduler of a busy machine may not have tried the pod."""
            done = demo("health-metric", "--probe", "--within", "5s")
            assert done.returncode == 1
            assert state_of(cluster) == before
            return "FAILED    tas-demo-probe is Pending: 0/3 nodes are available: 3 Insufficient" in done.stdout

        until(says_why, "the demo says why the pod waits")


def test_with_probe_a_story_finds_a_scheduler_that_has_not_sent_a_request_yet(
    cluster: Cluster, tas: Product, demo: Demo
) -> None:
    before = state_of(cluster)
    with cluster.scheduler(extender(tas.url, names_only=True)):
        assert demo("memory").returncode == 1
        assert demo.acts() == []
        done = demo("memory", "--probe")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"tas-demo-probe is Pending: 0/\d+ nodes are available: \d Node violates", done.stdout)
    assert state_of(cluster) == before


def deleting(cluster: Cluster) -> set[str]:
    """The namespaces that are being deleted."""
    metadata = [each["metadata"] for each in cluster.api.get("/api/v1/namespaces")["items"]]
    return {each["name"] for each in metadata if "deletionTimestamp" in each}


def state_of(cluster: Cluster) -> dict[str, str]:
    """The uids of all objects that a story could create or delete, and the labels of nodes."""
    found = {
        f"{each['metadata'].get('namespace', '')}/{each['metadata']['name']}": each["metadata"]["uid"]
        for path in (
            "/api/v1/namespaces",
            "/api/v1/nodes",
            "/api/v1/pods",
            "/apis/telemetry.intel.com/v1alpha1/taspolicies",
        )
        for each in cluster.api.get(path)["items"]
    }
    for node in NODES:
        found[node] = str(cluster.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"])
    return found


def test_the_gpu_story_runs_on_nodes_that_it_creates_and_deletes(
    cluster: Cluster, tas: Product, demo: Demo, tmp_path: Path
) -> None:
    before = state_of(cluster)
    where = ["--kubeconfig", str(cluster.kubeconfig), "--bus", tas.bus]
    port, gpu_health, health = free_ports(3)
    gpu = [*TAS, "run", "gpu", *where, "--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{gpu_health}"]
    inventory = [*TAS, "run", "inventory", *where, "--health-listen", f"127.0.0.1:{health}"]
    done = demo("gpu")
    assert done.returncode == 1
    assert "nothing was changed: no worker gpu reports its health at" in done.stderr
    assert demo.acts() == []
    env = environment(tmp_path)
    with (
        running("inventory", inventory, folder=tmp_path, env=env),
        running("gpu", gpu, folder=tmp_path, env=env) as binder,
        cluster.scheduler(entry(f"http://127.0.0.1:{port}/scheduler")),
    ):
        until(lambda: is_ready(binder, gpu_health), "gpu is ready")
        done = demo("gpu", "--extender-health", f"127.0.0.1:{gpu_health}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "demo-app-4 stays Pending: Not enough GPU-resources" in done.stdout
    assert "gpu: all steps succeeded\n" in done.stdout
    own = STORIES["gpu"]
    nodes, namespace = "|".join(own.nodes), own.namespace
    outside = rf"/nodes$|/nodes/({nodes})(/status)?$|/namespaces(/{namespace}(/|$)|$)"
    assert {call.uri for call in demo.acts() if not re.search(outside, call.uri.partition("?")[0])} == set()
    assert state_of(cluster) == before
