"""A cluster as a test uses it: creates nodes and pods, runs a scheduler, and waits for effects."""

import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

from .api import Api, ApiError, Object
from .controlplane import AuditLog, Call, ControlPlane
from .processes import Process, clean_environment, until

NODES = ("node-1", "node-2", "node-3")
"""The nodes of all tests."""

RESOURCE = "telemetry/scheduling"
POLICY_LABEL = "telemetry-policy"


def extender(url: str, *, names_only: bool, **overrides: object) -> Object:
    """An entry of `extenders` in a scheduler's configuration, as docs/start/scheduler.md has it.

    Args:
        url: The extender's URL, without a path.
        names_only: `nodeCacheCapable`: the scheduler sends only the names of nodes, not whole nodes.
        overrides: Additional fields, or other values of these.
    """
    return {
        "urlPrefix": url,
        "filterVerb": "scheduler/filter",
        "prioritizeVerb": "scheduler/prioritize",
        "weight": 100,  # the in-tree plugins add up to 1,200 points, one step of an extender is weight * 10
        "nodeCacheCapable": names_only,
        "enableHTTPS": False,
        "httpTimeout": "10s",
        "ignorable": False,
        "managedResources": [{"name": RESOURCE, "ignoredByScheduler": True}],
    } | overrides


class Cluster:
    """A running control plane, and what a test can do with it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._namespaces = 0
        self._touches = 0

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of an administrator."""
        return self._plane.admin

    @property
    def api(self) -> Api:
        """The API server, as an administrator."""
        return self._plane.api

    @property
    def url(self) -> str:
        """The URL of the API server."""
        return self._plane.url

    @property
    def audit(self) -> AuditLog:
        """All requests that the API server has answered."""
        return self._plane.audit

    @property
    def folder(self) -> Path:
        """The folder of all files of this run; its folder `logs` is kept if a test fails."""
        return self._plane.folder

    @property
    def programs(self) -> Mapping[str, Path]:
        """The binary of each real program, by name."""
        return self._plane.binaries

    @property
    def processes(self) -> list[Process]:
        """All processes started so far, also ended ones."""
        return self._plane.started

    def kubeconfig_for(self, user: str, *groups: str) -> Path:
        """A kubeconfig of another user, with the rights that RBAC grants."""
        return self._plane.kubeconfig(user, *groups)

    def account(self, namespace: str, name: str) -> Path:
        """A kubeconfig with a token of a ServiceAccount."""
        return self._plane.account(namespace, name)

    def scheduler(
        self, *extenders: Mapping[str, object], port: int = 0, **configuration: object
    ) -> AbstractContextManager[Process]:
        """Runs a kube-scheduler with these extenders; it is ready within the context. `port` is that of its metrics."""
        return self._plane.scheduler(extenders, configuration, port=port)

    def metrics(self, port: int) -> str:
        """The metrics of a server of this control plane at this port, in the exposition format."""
        server = self._plane.client(port)

        def answered() -> str:
            try:
                return str(server.get("/metrics")["text"])
            except ApiError as error:
                if error.status != 403:  # it asks the API server who we are, and a busy one may answer too late
                    raise
                return ""

        try:
            return until(answered, f"the server at port {port} knows who asks for its metrics")
        finally:
            server.close()

    @property
    def kubectl_binary(self) -> Path:
        """The program kubectl, for commands as a user enters them."""
        return self._plane.binaries["kubectl"]

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """The output of kubectl, run as an administrator.

        Raises:
            RuntimeError: With its error output.
        """
        done = subprocess.run(
            [str(self.kubectl_binary), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=clean_environment(HOME=str(self.folder), KUBECONFIG=str(self.kubeconfig)),
            timeout=100,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def apply(self, manifest: str | Path) -> None:
        """Applies YAML or JSON, given as text or as a file; any number of objects."""
        self.kubectl("apply", "-f", "-", stdin=manifest.read_text() if isinstance(manifest, Path) else manifest)

    def create_nodes(self, *names: str, labels: Mapping[str, str] | None = None) -> None:
        """Creates simulated nodes of equal size, and waits until they are Ready."""
        capacity = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        for name in names:
            self.api.create(
                "/api/v1/nodes",
                {
                    "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | dict(labels or {})},
                    "status": {"capacity": capacity, "allocatable": capacity},
                },
            )
        for name in names:
            until(partial(self._is_ready, name), f"node {name} is Ready")

    def labels_of_nodes(self) -> dict[str, dict[str, str]]:
        """The labels of each node."""
        heads = [node["metadata"] for node in self.api.get("/api/v1/nodes")["items"]]
        return {head["name"]: head.get("labels", {}) for head in heads}

    def delete_nodes(self, *names: str) -> None:
        """Deletes nodes; the garbage collector deletes their pods."""
        for name in names:
            self.api.delete(f"/api/v1/nodes/{name}")

    def create_namespace(self, name: str | None = None) -> str:
        """Creates a namespace, with an unused name by default, and waits until pods can be created in it."""
        self._namespaces += 1
        name = name or f"e2e-{self._namespaces}"
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        until(
            lambda: self._exists(f"/api/v1/namespaces/{name}/serviceaccounts/default"), f"pods can be created in {name}"
        )
        return name

    def create_pod(
        self,
        namespace: str,
        name: str,
        *,
        policy: str | None = None,
        labels: Mapping[str, str] | None = None,
        managed: bool = True,
        **spec: object,
    ) -> Object:
        """A pod for the scheduler.

        Args:
            policy: The value of its label `telemetry-policy`.
            labels: Its other labels.
            managed: Whether it has the limit for which the scheduler calls the extender.
            spec: Other fields of its spec.
        """
        container: Object = {"name": "main", "image": "pause"}
        if managed:
            container["resources"] = {"limits": {RESOURCE: "1"}}
        metadata: Object = {"name": name, "labels": dict(labels or {})}
        if policy is not None:
            metadata["labels"][POLICY_LABEL] = policy
        return self.api.create(
            f"/api/v1/namespaces/{namespace}/pods", {"metadata": metadata, "spec": {"containers": [container]} | spec}
        )

    def bind(self, namespace: str, pod: str, node: str) -> None:
        """Binds a pod to a node, as a scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self.api.create(
            f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", {"metadata": {"name": pod}, "target": target}
        )

    def delete_pods(self, namespace: str) -> None:
        """Deletes every pod of a namespace, and what would create new ones: a later scheduler must not see them."""
        kinds = ("apis/apps/v1/{}/deployments", "apis/apps/v1/{}/replicasets", "api/v1/{}/pods")
        for kind in kinds:
            path = "/" + kind.format(f"namespaces/{namespace}")
            self.api.delete(path)
            until(partial(self._is_empty, path), f"{path} is empty")

    def placed(self, namespace: str, pod: str) -> str:
        """Waits until the scheduler has placed a pod, and returns the node."""
        what = f"pod {namespace}/{pod} is placed"
        try:
            return until(lambda: self.node_of(namespace, pod), what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; its condition: {self.why_pending(namespace, pod)!r}") from error

    def rejected(self, namespace: str, pod: str, *, containing: str = "") -> str:
        """Waits until the scheduler has rejected a pod with a message that contains this text, and returns the message.

        The message is that of the pod's condition, which is always the newest. A repeated event only raises a count.
        """
        what = f"pod {namespace}/{pod} is rejected with {containing!r}"

        def message() -> str | None:
            found = self.why_pending(namespace, pod)
            return found if containing in found else None

        try:
            return until(message, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; its condition: {self.why_pending(namespace, pod)!r}") from error

    def why_pending(self, namespace: str, pod: str) -> str:
        """The message of the pod's condition; empty if the scheduler has not rejected the pod."""
        for condition in self._pod(namespace, pod)["status"].get("conditions", []):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition["message"])
        return ""

    def events(self, namespace: str, pod: str, *, reason: str) -> list[str]:
        """Waits until a pod has an event with this reason, and returns the messages of all of them."""

        def messages() -> list[str]:
            selector = f"involvedObject.name={pod},reason={reason}"
            found = self.api.get(f"/api/v1/namespaces/{namespace}/events", fieldSelector=selector)
            return [str(event["message"]) for event in found["items"]]

        return until(messages, f"pod {namespace}/{pod} has an event {reason}")

    def node_of(self, namespace: str, pod: str) -> str | None:
        """The node of a pod, or None."""
        node: str | None = self._pod(namespace, pod)["spec"].get("nodeName")
        return node

    def is_running(self, namespace: str, pod: str) -> bool:
        """Whether a pod exists, runs, and is not being deleted."""
        try:
            found = self._pod(namespace, pod)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        running: bool = found["status"].get("phase") == "Running"
        return running and "deletionTimestamp" not in found["metadata"]

    def touch_node(self, name: str) -> None:
        """Changes an annotation of a node: the scheduler then retries the pods that an extender rejected."""
        self._touches += 1
        self.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"e2e/touched": str(self._touches)}}})

    def remove_resource(self) -> None:
        """Removes the resource of the worker `resources`, which has ended, from the nodes of all tests."""
        for node in NODES:
            self.touch_node(node)  # so that a late patch of the worker conflicts
            nothing = {RESOURCE: None}
            self.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": nothing, "allocatable": nothing}})

    def delete_policies(self, namespace: str) -> None:
        """Deletes every policy of a namespace, if policies are served."""
        with suppress(ApiError):
            self.api.delete(f"/apis/telemetry.intel.com/v1alpha1/namespaces/{namespace}/taspolicies")

    def bindings(self, since: int, namespace: str, pod: str) -> list[Call]:
        """The requests after a mark of the audit log that bind this pod. The effect may be visible before the entry."""
        uri = f"/api/v1/namespaces/{namespace}/pods/{pod}/binding"
        return [call for call in self.audit.calls(since) if call.uri.partition("?")[0] == uri]

    def _pod(self, namespace: str, pod: str) -> Object:
        return self.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")

    def _is_ready(self, node: str) -> bool:
        conditions = self.api.get(f"/api/v1/nodes/{node}")["status"].get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def _is_empty(self, collection: str) -> bool:
        return not self.api.get(collection)["items"]

    def _exists(self, path: str) -> bool:
        try:
            self.api.get(path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True
