"""The schedulers of all control plane nodes, as the API server shows them."""

from collections.abc import Iterable
from pathlib import Path

import click

from cli.as_json import print_json
from cli.configure.errors import EXIT_DIFFERENCES
from cli.output import echo
from tas.configuring.control_planes import ROLES, SchedulerState, differences
from tas.configuring.static_pod import DIGEST
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConfigurationError, KubernetesError
from workers.kubernetes.resources import FULL_NODES, PODS, NodeObject

SCHEDULERS = "component=kube-scheduler"
NAMESPACE = "kube-system"


async def scheduler_states(client: KubernetesClient, nodes: Iterable[NodeObject]) -> list[SchedulerState]:
    """The schedulers of the control plane nodes among `nodes`. Raises KubernetesError."""
    pods = await client.list(PODS, label_selector=SCHEDULERS)
    by_node = {pod.spec.node_name: pod for pod in pods.items if pod.metadata.namespace == NAMESPACE}
    states: list[SchedulerState] = []
    for node in sorted(node.metadata.name for node in nodes if set(ROLES) & set(node.metadata.labels)):
        pod = by_node.get(node)
        if pod is None:
            states.append(SchedulerState(node=node, digest=None, ready=None))
            continue
        ready = any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)
        states.append(SchedulerState(node=node, digest=pod.metadata.annotations.get(DIGEST), ready=ready))
    return states


async def show_status(kubeconfig: Path, *, as_json: bool) -> int:
    """Prints the schedulers and how they differ; returns the exit code. Raises click.ClickException."""
    try:
        async with KubernetesClient.connect(kubeconfig, worker="configure") as client:
            states = await scheduler_states(client, (await client.list(FULL_NODES)).items)
    except (ConfigurationError, KubernetesError) as error:
        raise click.ClickException(str(error)) from error
    found = differences(states)
    if as_json:
        nodes = [{"node": state.node, "state": state.shown, "digest": state.digest} for state in states]
        print_json({"nodes": nodes, "differences": found})
        return EXIT_DIFFERENCES if found else 0
    for state in states:
        echo(f"{state.node}  {state.shown}  {state.digest or '-'}")
    for difference in found:
        echo(difference, err=True)
    return EXIT_DIFFERENCES if found else 0
