"""A second kube-scheduler as a Deployment, for clusters whose control plane others manage.

Only pods with its name in `schedulerName` use it (platform-aware-scheduling #10).
"""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from tas.configuring.configuration import with_extenders
from tas.configuring.control_planes import ROLES
from tas.configuring.editing import rendered
from tas.configuring.extenders import COMMENTS, Extender, Object
from tas.configuring.plan import digest
from tas.configuring.static_pod import CERTIFICATES, DIGEST
from tas.errors import InvalidInputError
from tas.values.names import is_dns_label

_FOLDER = "/etc/kube-scheduler"
_FILE = "scheduler-config.yaml"
_RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondScheduler:
    """A second scheduler.

    Attributes:
        name: Of all its objects, and its `schedulerName`.
        image: Of kube-scheduler, in the version of the cluster.
        secret: The Secret with `client.crt`, `client.key` and `ca.crt`, if an extender has `https://`.
    """

    name: str
    namespace: str
    image: str
    minor: int
    secret: str
    extenders: tuple[Extender, ...]

    def __post_init__(self) -> None:
        for flag, value in (("--name", self.name), ("--namespace", self.namespace), ("--tls-secret", self.secret)):
            if not is_dns_label(value):
                raise InvalidInputError("options", flag, value, "must be lower case letters, digits and dashes")
        if self.name in ("default-scheduler", "kube-scheduler"):
            raise InvalidInputError("options", "--name", self.name, "is the name of the cluster's own scheduler")


def manifests(scheduler: SecondScheduler) -> str:
    """The objects of a second scheduler, for `kubectl apply -f -`. Raises InvalidInputError."""
    config, _ = with_extenders(None, scheduler.minor, [each.entry() for each in scheduler.extenders], None)
    lease = {"leaderElect": True, "resourceName": scheduler.name, "resourceNamespace": scheduler.namespace}
    config = {"apiVersion": config["apiVersion"], "kind": config["kind"]} | {
        "leaderElection": lease,
        "profiles": [{"schedulerName": scheduler.name}],
        "extenders": config.get("extenders", []),
    }
    text = rendered(config, COMMENTS)
    name, namespace = scheduler.name, scheduler.namespace
    head: Object = {"name": name, "namespace": namespace}
    leases: list[object] = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [name],
            "verbs": ["get", "update"],
        },
    ]
    subject: Object = {"kind": "ServiceAccount", **head}
    objects: Sequence[Object] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head},
        _binding("ClusterRoleBinding", {"name": name}, "ClusterRole", "system:kube-scheduler", subject),
        _binding("ClusterRoleBinding", {"name": f"{name}-volumes"}, "ClusterRole", "system:volume-scheduler", subject),
        _binding(
            "RoleBinding",
            {"name": f"{name}-authentication", "namespace": "kube-system"},
            "Role",
            "extension-apiserver-authentication-reader",
            subject,
        ),
        # The built-in role allows only the lease of the cluster's own scheduler.
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": head, "rules": leases},
        _binding("RoleBinding", head, "Role", name, subject),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": {_FILE: text}},
        _deployment(scheduler, head, text),
    ]
    return "---\n".join(rendered(each) for each in objects)


def _binding(kind: str, metadata: Object, role_kind: str, role: str, subject: Object) -> Object:
    reference = {"apiGroup": _RBAC, "kind": role_kind, "name": role}
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": reference,
        "subjects": [subject],
    }


def _on_control_plane() -> Object:
    """Nodes of the control plane first, where there are some."""
    terms = [{"weight": 1, "preference": {"matchExpressions": [{"key": role, "operator": "Exists"}]}} for role in ROLES]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def _deployment(scheduler: SecondScheduler, head: Object, config: str) -> Object:
    labels = {"app.kubernetes.io/name": scheduler.name}
    mounts: list[object] = [{"name": "config", "mountPath": _FOLDER, "readOnly": True}]
    volumes: list[object] = [{"name": "config", "configMap": {"name": scheduler.name}}]
    if any(extender.is_https for extender in scheduler.extenders):
        mounts.append({"name": "certificates", "mountPath": CERTIFICATES, "readOnly": True})
        volumes.append({"name": "certificates", "secret": {"secretName": scheduler.secret}})
    probe = {"httpGet": {"path": "/healthz", "port": 10259, "scheme": "HTTPS"}}
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    container: Object = {
        "name": "kube-scheduler",
        "image": scheduler.image,
        "command": ["kube-scheduler", f"--config={posixpath.join(_FOLDER, _FILE)}"],
        "livenessProbe": probe | {"initialDelaySeconds": 15},
        "readinessProbe": probe,
        "resources": {"requests": {"cpu": "100m"}},
        "securityContext": security,
        "volumeMounts": mounts,
    }
    template: Object = {
        "metadata": {"labels": labels, "annotations": {DIGEST: digest([config.encode()])}},
        "spec": {
            "serviceAccountName": scheduler.name,
            "priorityClassName": "system-cluster-critical",
            "tolerations": [{"key": role, "effect": "NoSchedule"} for role in ROLES],
            "affinity": _on_control_plane(),
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65534},
            "containers": [container],
            "volumes": volumes,
        },
    }
    # Two replicas, of which one schedules: the other takes over.
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": head, "spec": spec}
