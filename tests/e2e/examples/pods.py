"""The pods of an example."""

from tests.e2e.api import Object
from tests.e2e.cluster import Cluster


def places(cluster: Cluster, namespace: str) -> list[str | None]:
    """The node of each pod that runs and is not being deleted, sorted."""
    return sorted(pod["spec"]["nodeName"] for pod in _pods(cluster, namespace) if pod["status"]["phase"] == "Running")


def rejections(cluster: Cluster, namespace: str) -> list[str]:
    """The message of each pod that the scheduler has rejected."""
    return [
        condition["message"]
        for pod in _pods(cluster, namespace)
        for condition in pod["status"].get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]


def _pods(cluster: Cluster, namespace: str) -> list[Object]:
    pods = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
