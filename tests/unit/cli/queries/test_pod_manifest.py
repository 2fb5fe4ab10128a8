"""What a manifest says about the GPU cards of its pods."""

import click
import pytest

from cli.queries.pod_manifest import DescribedPod, pod_of_manifest
from tas.enforcing.pod import PodKey
from tas.gpu.claim import ContainerRequest, DevicePod

KEY = PodKey("default", "web")
I915 = "gpu.intel.com/i915"
TEMPLATE = """
metadata: {labels: {telemetry-policy: p}, annotations: {gas-deny: card0}}
spec:
  initContainers: [{name: first}]
  containers:
    - {name: c, resources: {requests: {cpu: 100m}, limits: {gpu.intel.com/i915: 1, gpu.intel.com/memory.max: 4Gi}}}
"""
CONTAINER = ContainerRequest(name="c", requests={"cpu": "100m"}, limits={I915: "1", "gpu.intel.com/memory.max": "4Gi"})


def nested(*fields: str) -> str:
    """A workload with the template below these fields."""
    lines, indent = [], ""
    for field in fields:
        lines.append(f"{indent}{field}:")
        indent += "  "
    return "\n".join([*lines, *(indent + line for line in TEMPLATE.splitlines())])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(TEMPLATE, id="Pod"),
        pytest.param(nested("spec", "template"), id="Deployment"),
        pytest.param(nested("spec", "jobTemplate", "spec", "template"), id="CronJob"),
        pytest.param("kind: Service\nspec: {ports: []}\n---\n" + nested("spec", "template"), id="second-document"),
    ],
)
def test_a_pod_or_the_template_of_a_workload_is_read(text: str) -> None:
    pod = DevicePod(
        key=KEY,
        uid="",
        containers=(CONTAINER,),
        init_containers=(ContainerRequest(name="first"),),
        annotations={"gas-deny": "card0"},
    )
    assert pod_of_manifest(KEY, text.encode()) == DescribedPod(pod, "p")


def test_the_uid_is_that_of_the_pod_itself_and_not_of_its_workload() -> None:
    pod = "metadata: {uid: u}\nspec: {containers: []}"
    assert pod_of_manifest(KEY, pod.encode()).pod.uid == "u"
    workload = "metadata: {uid: w}\n" + nested("spec", "template")
    assert pod_of_manifest(KEY, workload.encode()).pod.uid == ""


@pytest.mark.parametrize("text", ["", "7", "spec: 7", "spec: {template: 7}", "spec: {jobTemplate: {spec: {}}}"])
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(click.ClickException, match="neither a pod nor a workload with a template of pods"):
        pod_of_manifest(KEY, text.encode())
