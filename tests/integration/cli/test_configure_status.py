"""`tas configure status` reads the schedulers of the control plane from the API server."""

from pathlib import Path

import pytest

from lab.sandbox.resources import PODS
from tas.configuring.static_pod import DIGEST
from tests.integration.cli.tas import Tas
from tests.sandbox import Sandbox

LABEL = "node-role.kubernetes.io/control-plane"


def create_scheduler(sandbox: Sandbox, node: str, annotations: dict[str, str]) -> None:
    pod = {
        "metadata": {
            "name": f"kube-scheduler-{node}",
            "labels": {"component": "kube-scheduler"},
            "annotations": annotations,
        },
        "spec": {"nodeName": node, "containers": [{"name": "kube-scheduler", "image": "kube-scheduler"}]},
    }
    sandbox.cluster.create(PODS, "kube-system", pod, manager="test")
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    sandbox.cluster.patch(PODS, "kube-system", f"kube-scheduler-{node}", ready, manager="test", status=True)


@pytest.mark.long
async def test_status_names_the_node_that_is_not_configured(tmp_path: Path) -> None:
    async with Sandbox.start(nodes=["worker"]) as sandbox:
        tas = Tas(tmp_path / "home")
        kubeconfig = str(sandbox.kubeconfig(tmp_path / "kubeconfig"))
        for node in ("cp-1", "cp-2"):
            sandbox.add_node(node, labels={LABEL: ""})
        create_scheduler(sandbox, "cp-1", {DIGEST: "sha256:1"})
        create_scheduler(sandbox, "cp-2", {})
        done = await tas("configure", "status", "--kubeconfig", kubeconfig)
        assert done.code == 3
        assert done.out.splitlines()[0] == "cp-1  configured  sha256:1"
        assert "cp-2: not configured" in done.err
        sandbox.cluster.patch(
            PODS, "kube-system", "kube-scheduler-cp-2", {"metadata": {"annotations": {DIGEST: "sha256:1"}}}, manager="t"
        )
        assert (await tas("configure", "status", "--kubeconfig", kubeconfig)).code == 0
