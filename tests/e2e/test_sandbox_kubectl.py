"""kubectl with the sandbox: the commands of a user of the demo."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.crd import crd_manifest
from lab.sandbox.resources import NODES, PODS, TASPOLICIES
from tests.integration.servers import eventually
from tests.sandbox import Sandbox

from . import binaries
from .conftest import find_binaries
from .processes import clean_environment

POLICY = Path(__file__).parents[2] / "deploy" / "policies" / "demo-policy.yaml"
SECONDS = 100.0
"""Time limit of a command, on a busy machine."""

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeSelector: {disk: fast}
  containers: [{name: main, image: pause}]
"""


@dataclass
class Kubectl:
    """kubectl with a kubeconfig of a sandbox, and this sandbox."""

    binary: Path
    home: Path
    kubeconfig: Path
    sandbox: Sandbox

    async def __call__(self, *arguments: str, stdin: str = "") -> str:
        """The output of kubectl.

        Raises:
            RuntimeError: With its error output.
        """
        process = await self._started(*arguments)
        async with asyncio.timeout(SECONDS):
            output, errors = await process.communicate(stdin.encode())
        if process.returncode:
            raise RuntimeError(errors.decode())
        return output.decode()

    @asynccontextmanager
    async def lines(self, *arguments: str) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of kubectl, which is ended with the body."""
        process = await self._started(*arguments)

        async def read() -> AsyncIterator[str]:
            assert process.stdout is not None
            async with asyncio.timeout(SECONDS):
                while line := await process.stdout.readline():
                    yield line.decode()

        try:
            yield read()
        finally:
            process.kill()
            await process.communicate()

    async def _started(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            str(self.binary),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=clean_environment(HOME=str(self.home), KUBECONFIG=str(self.kubeconfig)),
        )


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    found = find_binaries()
    if found is None:
        pytest.skip(binaries.MISSING)
    async with Sandbox.start(nodes=["node-1", "node-2"]) as sandbox:
        yield Kubectl(found["kubectl"], tmp_path, sandbox.kubeconfig(tmp_path / "kubeconfig"), sandbox)


async def test_nodes_are_shown_and_labelled(kubectl: Kubectl) -> None:
    assert await kubectl("get", "nodes", "--output=name") == "node/node-1\nnode/node-2\n"
    assert "node-2" in await kubectl("get", "nodes")
    await kubectl("label", "node", "node-1", "demo-policy=violating", "other=label")
    assert await kubectl("get", "nodes", "-l", "demo-policy=violating", "--output=name") == "node/node-1\n"
    with pytest.raises(RuntimeError, match="--overwrite is false"):
        await kubectl("label", "node", "node-1", "demo-policy=other")
    await kubectl("label", "node", "node-1", "demo-policy-", "other=value", "--overwrite")
    labels = kubectl.sandbox.cluster.get(NODES, "", "node-1")["metadata"]["labels"]
    assert labels == {"kubernetes.io/hostname": "node-1", "other": "value"}
    await kubectl("annotate", "node", "node-1", "note=some words")
    assert await kubectl("get", "node", "node-1", "--output=jsonpath={.metadata.annotations.note}") == "some words"


async def test_lists_have_the_columns_of_a_real_cluster(kubectl: Kubectl) -> None:
    async def shown(*arguments: str) -> list[list[str]]:
        return [line.split() for line in (await kubectl("get", *arguments)).splitlines()]

    head, first, _ = await shown("nodes")
    assert head == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert (first[:3], first[4]) == (["node-1", "Ready", "<none>"], "v1.36.0+sandbox")
    await kubectl("apply", "--validate=false", "--filename=-", stdin=POLICY.read_text())
    status = {
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "MetricsSeen", "status": "False"}],
        "violating": 2,
        "message": "as it is",
    }
    kubectl.sandbox.cluster.patch(
        TASPOLICIES, "default", "demo-policy", {"status": status}, manager="test", status=True
    )
    head, row = await shown("taspolicies")
    assert head == ["NAME", "READY", "METRICS", "VIOLATING", "AGE"]
    assert row[:4] == ["demo-policy", "True", "False", "2"]
    head, row = await shown("taspolicies", "--output=wide", "--all-namespaces")
    assert head == ["NAMESPACE", "NAME", "READY", "METRICS", "VIOLATING", "AGE", "MESSAGE"]
    assert (row[0], row[-3:]) == ("default", ["as", "it", "is"])
    assert await shown("nodes", "--sort-by=.metadata.name", "--no-headers", "--selector=kubernetes.io/hostname=node-2")
    async with kubectl.sandbox.scheduler():
        await kubectl("apply", "--validate=false", "--filename=-", stdin=POD)
        await kubectl("wait", "pod/web", "--for=condition=PodScheduled=false", "--timeout=60s")
        assert (await shown("pods"))[1][:4] == ["web", "0/1", "Pending", "0"]
        await kubectl("label", "node", "node-2", "disk=fast")
        await kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
        assert (await shown("pods"))[1][:4] == ["web", "1/1", "Running", "0"]
    reasons = {row[2] for row in (await shown("events"))[1:]}
    assert {"FailedScheduling", "Scheduled"} <= reasons
    assert (await shown("namespace", "default"))[1][:2] == ["default", "Active"]


async def test_a_watch_has_the_columns_of_a_list(kubectl: Kubectl) -> None:
    async with kubectl.lines("get", "nodes", "--watch") as lines:
        await eventually(lambda: kubectl.sandbox.watches > 0)
        kubectl.sandbox.cluster.patch(NODES, "", "node-2", {"spec": {"unschedulable": True}}, manager="test")
        head, *rows = [(await anext(lines)).split() for _ in range(4)]
    assert head == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert [row[:2] for row in rows] == [
        ["node-1", "Ready"],
        ["node-2", "Ready"],
        ["node-2", "Ready,SchedulingDisabled"],
    ]


async def test_a_cordoned_or_tainted_node_gets_no_pod(kubectl: Kubectl) -> None:
    async with kubectl.sandbox.scheduler():
        await kubectl("cordon", "node-1")
        await kubectl("taint", "node", "node-2", "example.com/broken=yes:NoSchedule")
        assert "SchedulingDisabled" in await kubectl("get", "node", "node-1")
        pod = POD.replace("nodeSelector: {disk: fast}", "restartPolicy: Always")
        await kubectl("apply", "--validate=false", "--filename=-", stdin=pod)
        await kubectl("wait", "pod/web", "--for=condition=PodScheduled=false", "--timeout=60s")
        described = await kubectl("describe", "pod", "web")
        assert "1 node(s) had untolerated taint(s), 1 node(s) were unschedulable" in described
        await kubectl("taint", "node", "node-2", "example.com/broken-")
        await kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
        assert await kubectl("get", "pod", "web", "--output=jsonpath={.spec.nodeName}") == "node-2"
        await kubectl("uncordon", "node-1")
        await kubectl("drain", "node-2", "--force", "--timeout=60s")
    assert kubectl.sandbox.cluster.store.items(PODS) == []


async def test_nodes_are_deleted_and_missing_objects_are_reported_by_name(kubectl: Kubectl) -> None:
    await kubectl("delete", "node", "node-2")
    assert await kubectl("get", "nodes", "--output=name") == "node/node-1\n"
    for verb in ("get", "delete", "describe"):
        with pytest.raises(RuntimeError, match=r'NotFound.*nodes "node-2" not found'):
            await kubectl(verb, "node", "node-2")


async def test_policies_are_applied_changed_and_deleted(kubectl: Kubectl) -> None:
    manifest = POLICY.read_text()
    apply = ("apply", "--validate=false", "--filename=-")
    assert "demo-policy created" in await kubectl(*apply, stdin=manifest)
    assert "demo-policy unchanged" in await kubectl(*apply, stdin=manifest)
    assert "demo-policy configured" in await kubectl(*apply, stdin=manifest.replace("target: 2", "target: 3"))
    stored = kubectl.sandbox.cluster.get(TASPOLICIES, "default", "demo-policy")
    assert stored["spec"]["strategies"]["deschedule"]["rules"][0]["target"] == 3
    assert stored["metadata"]["generation"] == 2
    assert "demo-policy" in await kubectl("get", "taspolicies", "--all-namespaces")
    await kubectl("delete", "taspolicy", "demo-policy")
    with pytest.raises(RuntimeError, match=r'taspolicies.telemetry.intel.com "demo-policy" not found'):
        await kubectl("get", "taspolicy", "demo-policy")
    assert await kubectl("get", "taspolicies", "--output=name") == ""


async def test_applying_the_crd_again_changes_no_policy(kubectl: Kubectl) -> None:
    await kubectl("apply", "--validate=false", "--filename=-", stdin=POLICY.read_text())
    await kubectl("apply", "--validate=false", "--filename=-", stdin=crd_manifest())
    await kubectl("wait", "--for=condition=Established", "crd/taspolicies.telemetry.intel.com", "--timeout=60s")
    assert "demo-policy" in await kubectl("get", "taspolicies", "--output=name")


async def test_a_waiting_pod_has_its_reason_and_is_placed_and_deleted(kubectl: Kubectl) -> None:
    async with kubectl.sandbox.scheduler():
        await kubectl("apply", "--validate=false", "--filename=-", stdin=POD)
        await kubectl("wait", "pod/web", "--for=condition=PodScheduled=false", "--timeout=60s")
        assert "0/2 nodes are available: 2 node(s) didn't match" in await kubectl("describe", "pod", "web")
        await kubectl("label", "node", "node-2", "disk=fast")
        await kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
        assert await kubectl("get", "pod", "web", "--output=jsonpath={.spec.nodeName}") == "node-2"
    await kubectl("delete", "pod", "web")
    assert kubectl.sandbox.cluster.store.items(PODS) == []


async def test_kubectl_create_creates_a_namespace(kubectl: Kubectl) -> None:
    assert "namespace/mine created" in await kubectl("create", "namespace", "mine")
    with pytest.raises(RuntimeError, match='namespaces "mine" already exists'):
        await kubectl("create", "namespace", "mine")
    await kubectl("apply", "--namespace=mine", "--validate=false", "--filename=-", stdin=POD)
    assert await kubectl("get", "pods", "--all-namespaces", "--output=name") == "pod/web\n"


async def test_a_namespace_is_applied_and_deleted_with_its_pods(kubectl: Kubectl) -> None:
    namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: mine}}"
    await kubectl("apply", "--validate=false", "--filename=-", stdin=namespace)
    await kubectl("apply", "--namespace=mine", "--validate=false", "--filename=-", stdin=POD)
    assert await kubectl("get", "pods", "--all-namespaces", "--output=name") == "pod/web\n"
    await kubectl("delete", "namespace", "mine")
    assert await kubectl("get", "pods", "--all-namespaces", "--output=name") == ""
