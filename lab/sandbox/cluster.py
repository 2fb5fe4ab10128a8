"""The verbs on objects, with the checks of the API server. HTTP, the scheduler and tests use this class."""

import copy
import json
import random
import string
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from lab.sandbox.errors import (
    Cause,
    PageNotFoundError,
    StatusError,
    already_exists,
    budget_exceeded,
    conflict,
    invalid,
    not_found,
    uid_conflict,
)
from lab.sandbox.managed_fields import managed_fields
from lab.sandbox.resources import (
    BUDGETS,
    CRDS,
    DEPLOYMENTS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    TASPOLICIES,
    Object,
    Resource,
)
from lab.sandbox.store import Store, key_of
from lab.sandbox.tables import Column, columns_of
from lab.sandbox.validation import check, must_be_object

Clock = Callable[[], datetime]

CRD_NAME = TASPOLICIES.qualified
WRITABLE = ("labels", "annotations", "ownerReferences", "finalizers")
"""The fields of metadata that a client may write; the server sets the others."""
POD_SPEC_IS_FIXED = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)

NODE_INFO = (
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
)
"""The fields of `status.nodeInfo` of a node: always there, though they may be empty. Clients require them."""

EVENT_AGE = timedelta(hours=1)
"""How long an Event is kept: the default of `--event-ttl` of kube-apiserver."""


def utc_now() -> datetime:
    """The current time."""
    return datetime.now(UTC)


class Cluster:
    """The objects of a cluster. Every method raises StatusError where the API server answers with an error.

    Attributes:
        starts_pods: Whether a bound pod is Running at once, since the sandbox has no kubelet. Else it stays Pending.
    """

    def __init__(self, *, now: Clock = utc_now) -> None:
        self.starts_pods = True
        self.store = Store()
        self._now = now
        self._events: deque[tuple[datetime, Object]] = deque()

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """The object; 404 NotFound if it does not exist."""
        self.must_serve(resource)
        found = self.store.get(resource, namespace, name)
        if found is None:
            raise not_found(resource, name)
        return found

    def create(self, resource: Resource, namespace: str, body: object, *, manager: str) -> Object:
        """Creates an object; 409 AlreadyExists, 422 Invalid, 404 if its namespace does not exist."""
        self.must_serve(resource)
        sent = must_be_object(copy.deepcopy(body))
        _must_be_of_kind(resource, sent)
        metadata = must_be_object(sent.get("metadata") or {})
        if metadata.get("namespace", namespace) != namespace:
            message = "the namespace of the provided object does not match the namespace sent on the request"
            raise StatusError(400, message)
        if namespace and self.store.get(NAMESPACES, "", namespace) is None:
            raise not_found(NAMESPACES, namespace)
        name = str(metadata.get("name") or _generated(metadata.get("generateName")))
        new: Object = {"metadata": self._new_metadata(resource, namespace, name)}
        new["metadata"] |= {key: metadata[key] for key in WRITABLE if metadata.get(key)}
        new |= {key: value for key, value in sent.items() if key not in ("kind", "apiVersion", "metadata")}
        self._complete(resource, new)
        check(resource, new)
        if self.store.get(resource, namespace, name) is not None:
            raise already_exists(resource, name)
        self._sign(resource, {"metadata": {}}, new, manager=manager, status=False)
        stored = self.store.put(resource, new)
        if resource is EVENTS:
            self._expire_events(stored)
        return stored

    def patch(
        self, resource: Resource, namespace: str, name: str, patch: object, *, manager: str, status: bool = False
    ) -> Object:
        """The object after a merge patch (RFC 7386), with `status` of its status; not written if nothing differs.

        409 if the patch has another resourceVersion; 422 if the patch has another uid or the result is invalid.
        """
        old = self.get(resource, namespace, name)
        if not isinstance(patch, dict):
            raise StatusError(400, "error decoding patch: json: cannot unmarshal into a map")
        patched = merge_patch(old, patch)
        metadata = must_be_object(patched.get("metadata"))
        # In a patch of a custom resource's status the server ignores all metadata except the version.
        self._guard(resource, old, metadata, uid=not (status and resource.is_custom))
        new = _patched_object(resource, old, patched, status=status)
        check(resource, new)
        if resource is PODS and new["spec"] != old["spec"]:
            raise invalid(
                resource, name, [Cause(field="spec", message=POD_SPEC_IS_FIXED, reason="FieldValueForbidden")]
            )
        if _is_same(new, old):
            return old
        if resource.has_generation and not _is_same(new.get("spec"), old.get("spec")):
            new["metadata"]["generation"] += 1
        self._sign(resource, old, new, manager=manager, status=status)
        return self.store.put(resource, new)

    def delete(self, resource: Resource, namespace: str, name: str, *, uid: str | None = None) -> Object:
        """Deletes an object at once and returns its last state; 409 if `uid` is not that of the object.

        The contents of a deleted namespace and the objects of a deleted CustomResourceDefinition are deleted, too.
        """
        old = self.get(resource, namespace, name)
        if uid is not None and uid != old["metadata"]["uid"]:
            raise uid_conflict(resource, name, requested=uid, current=old["metadata"]["uid"])
        if resource is NAMESPACES:
            for content in (PODS, BUDGETS, DEPLOYMENTS, TASPOLICIES):
                self._delete_all(content, name)
        if resource is CRDS and name == CRD_NAME:
            self._delete_all(TASPOLICIES)
        return self.store.remove(resource, old)

    def bind(self, namespace: str, name: str, body: object, *, manager: str) -> None:
        """Binds a pod to a node."""
        pod = self.get(PODS, namespace, name)
        binding = must_be_object(body)
        if binding.get("metadata", {}).get("name") != name:
            raise StatusError(400, "name in URL does not match name in Binding object")
        uid = binding["metadata"].get("uid")
        if uid and uid != (current := pod["metadata"]["uid"]):
            wrong = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {current}"
            raise conflict(PODS, name, f"StorageError: invalid object, Code: 4, AdditionalErrorMsg: {wrong}")
        if node := pod["spec"].get("nodeName"):
            message = f'pod {name} is already assigned to node "{node}"'
            error = conflict(PODS, name, message)
            error.message = error.message.replace("on pods", "on pods/binding", 1)
            raise error
        spec = pod["spec"] | {"nodeName": binding["target"]["name"]}
        bound = pod | {"spec": spec, "status": with_condition(pod["status"], self._condition("PodScheduled"))}
        bound["metadata"] = dict(bound["metadata"])
        if annotations := binding["metadata"].get("annotations"):
            bound["metadata"]["annotations"] = bound["metadata"].get("annotations", {}) | annotations
        self._sign(PODS, pod, bound, manager=manager, status=False)
        bound = self.store.put(PODS, bound)
        if not self.starts_pods:
            return
        status = bound["status"] | {"phase": "Running", "startTime": self.time()}
        for kind in ("Initialized", "Ready", "ContainersReady"):
            status = with_condition(status, self._condition(kind))
        self.store.put(PODS, bound | {"status": status})

    def evict(self, namespace: str, name: str) -> None:
        """Deletes a pod at once; 429 if a disruption budget with `minAvailable` needs the pod.

        The sandbox counts the healthy pods itself, at the time of the eviction; it reads `matchLabels` of the selector
        and an integer `minAvailable`.
        """
        pod = self.get(PODS, namespace, name)
        for budget in self.store.items(BUDGETS, namespace) if _is_ready(pod) else ():
            selected = budget["spec"]["selector"]["matchLabels"].items()
            if not selected <= pod["metadata"].get("labels", {}).items():
                continue
            healthy = sum(
                _is_ready(each) and selected <= each["metadata"].get("labels", {}).items()
                for each in self.store.items(PODS, namespace)
            )
            if healthy <= (needed := budget["spec"]["minAvailable"]):
                raise budget_exceeded(budget["metadata"]["name"], needed=needed, healthy=healthy)
        self.delete(PODS, namespace, name)

    def scale(self, namespace: str, name: str) -> Object:
        """The `Scale` of a Deployment."""
        deployment = self.get(DEPLOYMENTS, namespace, name)
        metadata = deployment["metadata"]
        labels = deployment["spec"]["selector"]["matchLabels"]
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {
                key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            },
            "spec": {"replicas": deployment["spec"]["replicas"]},
            "status": {"replicas": 0, "selector": ",".join(f"{key}={value}" for key, value in labels.items())},
        }

    def rescale(self, namespace: str, name: str, patch: object, *, manager: str) -> None:
        """A merge patch of the replicas in the `Scale` of a Deployment. Raises as `patch` does."""
        replicas = must_be_object(must_be_object(patch).get("spec", {}))
        metadata = must_be_object(patch).get("metadata", {})
        change = {"metadata": metadata, "spec": {key: replicas[key] for key in ("replicas",) if key in replicas}}
        self.patch(DEPLOYMENTS, namespace, name, change, manager=manager)

    def serves(self, resource: Resource) -> bool:
        """Whether the resource is served: false while its CustomResourceDefinition does not exist."""
        return not resource.is_custom or self.store.get(CRDS, "", CRD_NAME) is not None

    def columns(self, resource: Resource) -> Sequence[Column]:
        """The columns of the resource's tables."""
        return columns_of(resource, self.store.get(CRDS, "", resource.qualified) if resource.is_custom else None)

    def must_serve(self, resource: Resource) -> None:
        """Raises PageNotFoundError while the CustomResourceDefinition of the resource does not exist."""
        if not self.serves(resource):
            raise PageNotFoundError

    def now(self) -> datetime:
        """The current time of the cluster."""
        return self._now()

    def time(self) -> str:
        """The current time in the format of timestamps in metadata."""
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def micro_time(self) -> str:
        """The current time in the format of `eventTime`: clients drop events with another format."""
        return self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _expire_events(self, created: Object) -> None:
        now = self._now()
        self._events.append((now, created))
        while now - self._events[0][0] > EVENT_AGE:
            _, old = self._events.popleft()
            current = self.store.get(EVENTS, *key_of(old))
            if current is not None and current["metadata"]["uid"] == old["metadata"]["uid"]:
                self.store.remove(EVENTS, current)

    def _delete_all(self, resource: Resource, namespace: str = "") -> None:
        for each in self.store.items(resource, namespace):
            self.store.remove(resource, each)

    def _new_metadata(self, resource: Resource, namespace: str, name: str) -> Object:
        metadata: Object = {"name": name}
        if namespace:
            metadata["namespace"] = namespace
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.time()}
        return metadata | ({"generation": 1} if resource.has_generation else {})

    def _complete(self, resource: Resource, new: Object) -> None:
        """Adds the fields that the server sets in a new object, as far as the product or tests read them."""
        if resource is NODES:
            new.setdefault("spec", {})
            status = new.setdefault("status", {})
            status.setdefault("capacity", {})
            status["allocatable"] = dict(status["capacity"]) | status.get("allocatable", {})
            status["nodeInfo"] = dict.fromkeys(NODE_INFO, "") | status.get("nodeInfo", {})
            new["status"] = with_condition(status, self._condition("Ready", reason="KubeletReady"))
        elif resource is PODS:
            new["spec"] = {"schedulerName": "default-scheduler", "restartPolicy": "Always"} | new.get("spec", {})
            for container in new["spec"].get("containers") or []:
                resources = container.get("resources", {})
                if "limits" in resources:
                    resources["requests"] = resources["limits"] | resources.get("requests", {})
            new["status"] = {"phase": "Pending"}
        elif resource is NAMESPACES:
            name = {"kubernetes.io/metadata.name": new["metadata"]["name"]}
            new["metadata"]["labels"] = new["metadata"].get("labels", {}) | name
            new |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
        elif resource is CRDS:
            new["status"] = with_condition({}, self._condition("Established", reason="InitialNamesAccepted"))
        elif resource.has_status:
            new.pop("status", None)
        if resource is DEPLOYMENTS:
            new["spec"] = {"replicas": 1} | must_be_object(new.get("spec"))

    def _guard(self, resource: Resource, old: Object, patched: Object, *, uid: bool) -> None:
        """Rejects a patch whose metadata has another name, uid or version. Absent and null fields are allowed."""
        name = old["metadata"]["name"]
        if patched.get("name") != name:
            message = f"the name of the object ({patched.get('name')}) does not match the name on the URL ({name})"
            raise StatusError(400, message)
        version = patched.get("resourceVersion")
        if version is not None and version != old["metadata"]["resourceVersion"]:
            if not str(version).isdigit():
                raise StatusError(500, f'strconv.ParseUint: parsing "{version}": invalid syntax', reason="")
            raise conflict(resource, name)
        if uid and patched.get("uid") not in (None, old["metadata"]["uid"]):
            message = f'Invalid value: "{patched["uid"]}": field is immutable'
            raise invalid(resource, name, [Cause(field="metadata.uid", message=message)])

    def _sign(self, resource: Resource, old: Object, new: Object, *, manager: str, status: bool) -> None:
        entries = managed_fields(
            old, new, manager=manager, api_version=resource.group_version, time=self.time(), status=status
        )
        new["metadata"]["managedFields"] = entries

    def _condition(self, kind: str, *, reason: str = "") -> Object:
        condition = {"type": kind, "status": "True", "lastTransitionTime": self.time()}
        return condition | ({"reason": reason} if reason else {})


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: maps are merged, null deletes a key, other values replace. Neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def with_condition(status: Object, condition: Object) -> Object:
    """The status with this condition instead of the previous condition of the same type."""
    others = [other for other in status.get("conditions", []) if other["type"] != condition["type"]]
    return status | {"conditions": [*others, condition]}


def _is_ready(pod: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


def _is_same(left: object, right: object) -> bool:
    """Whether two values are the same JSON: for Python, 1, 1.0 and true are equal."""
    return left == right and json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _patched_object(resource: Resource, old: Object, patched: Object, *, status: bool) -> Object:
    """The new object: with `status` only the status changes, else all but the status.

    Labels change in both cases, except in the status of custom resources.
    """
    metadata = dict(old["metadata"])
    if not (status and resource.is_custom):
        for key in WRITABLE:
            metadata.pop(key, None)
            if value := patched["metadata"].get(key):
                metadata[key] = value
    new = copy.deepcopy(old if status else patched)
    for key in ("kind", "apiVersion"):
        new.pop(key, None)
    if resource.has_status:
        new.pop("status", None)
        source = patched if status else old
        if "status" in source:
            new["status"] = copy.deepcopy(source["status"])
    return new | {"metadata": copy.deepcopy(metadata)}


def _must_be_of_kind(resource: Resource, sent: Object) -> None:
    kind, version = sent.get("kind"), sent.get("apiVersion")
    if resource.is_custom and not (kind and version):
        missing = "Kind" if not kind else "apiVersion"
        message = (
            f"the object provided is unrecognized (must be of type {resource.kind}): Object '{missing}' is missing"
        )
        raise StatusError(400, message)
    if resource.is_custom and kind != resource.kind:
        name = str(must_be_object(sent.get("metadata") or {}).get("name", ""))
        raise invalid(
            resource, name, [Cause(field="kind", message=f'Invalid value: "{kind}": must be {resource.kind}')]
        )
    if kind not in (None, resource.kind) or version not in (None, resource.group_version):
        raise StatusError(400, f"{kind} in version {version!r} cannot be handled as a {resource.kind}")


def _generated(prefix: object) -> str:
    return f"{prefix}{''.join(random.choices(string.ascii_lowercase, k=5))}" if prefix else ""  # noqa: S311
