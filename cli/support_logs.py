"""The logs of the pods of this product, for `tas support`: the end of each, and that of the container before it."""

from pathlib import Path
from typing import NamedTuple

from cli.doctor.cluster_read import ADMINISTRATOR
from tas.values.nouns import counted
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConfigurationError, KubernetesError
from workers.kubernetes.resources import LABELLED_PODS

SELECTOR = "app.kubernetes.io/name=tas-on-nats"
"""The label that the chart and the manifests give to each pod, those of nats-server as well."""

MAX_PODS = 24
LINES = 2000
LOG_BYTES = 1 << 20
"""The API server stops there, so lines beyond it are missing at the end: 2,000 lines are seldom half of it."""


class PodLogs(NamedTuple):
    """The logs by name of the file, and what could not be had, each with the reason."""

    files: dict[str, bytes]
    lacking: dict[str, str]


async def logs_of_pods(kubeconfig: Path | None) -> PodLogs:
    """Reads at most `MAX_PODS` pods, in the order of their names, with two requests for each; None: as in a pod."""
    found = PodLogs({}, {})
    try:
        async with KubernetesClient.connect(kubeconfig, worker="support") as client:
            pods = (await client.list(LABELLED_PODS, label_selector=SELECTOR)).items
            names = sorted((pod.metadata.namespace, pod.metadata.name) for pod in pods)
            for namespace, name in names[:MAX_PODS]:
                await _add(client, namespace, name, found)
    except (ConfigurationError, KubernetesError) as error:
        found.lacking["logs"] = f"{error}; {ADMINISTRATOR}"
        return found
    if not names:
        found.lacking["logs"] = f"no pod of the cluster has the label {SELECTOR}"
    elif len(names) > MAX_PODS:
        found.lacking["logs"] = f"those of {counted(len(names) - MAX_PODS, 'more pod')}"
    return found


async def _add(client: KubernetesClient, namespace: str, name: str, found: PodLogs) -> None:
    file = f"logs/{namespace}-{name}.log"
    try:
        found.files[file] = await _log(client, namespace, name, "")
    except KubernetesError as error:
        found.lacking[file] = str(error)
        return
    try:  # why a container ended is in the log of the one before; most pods have none
        found.files[f"logs/{namespace}-{name}.previous.log"] = await _log(client, namespace, name, "&previous=true")
    except KubernetesError:
        return


async def _log(client: KubernetesClient, namespace: str, name: str, more: str) -> bytes:
    query = f"timestamps=true&tailLines={LINES}&limitBytes={LOG_BYTES}{more}"
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/log?{query}"
    return await client.read(LABELLED_PODS, path, max_bytes=2 * LOG_BYTES)
