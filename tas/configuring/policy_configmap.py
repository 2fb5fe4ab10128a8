"""The Policy that schedulers of Kubernetes 1.19 to 1.22 read from a ConfigMap, in place of a configuration."""

import json
from collections.abc import Sequence

from tas.configuring.extenders import Extender, Object
from tas.configuring.versions import LAST_POLICY, OLDEST
from tas.errors import InvalidInputError
from tas.values.duration import parse_duration

POLICY_NAME = "scheduler-extender-policy"
POLICY_NAMESPACE = "kube-system"


def policy_config_map(extenders: Sequence[Extender], minor: int) -> list[Object]:
    """The Policy of Kubernetes 1.19 to 1.22 in a ConfigMap, and the right of the scheduler to get it.

    Raises InvalidInputError for another minor version.
    """
    if not OLDEST <= minor <= LAST_POLICY:
        reason = f"kube-scheduler 1.{minor} reads no Policy: only 1.{OLDEST} to 1.{LAST_POLICY}"
        raise InvalidInputError("options", "--policy-configmap", True, reason)  # noqa: FBT003 - the value of the flag
    policy = {"kind": "Policy", "apiVersion": "v1", "extenders": [_legacy(each.entry()) for each in extenders]}
    head = {"name": POLICY_NAME, "namespace": POLICY_NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": POLICY_NAME}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-scheduler"}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [POLICY_NAME], "verbs": ["get"]}
    rbac = "rbac.authorization.k8s.io/v1"
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": {"policy.cfg": _indented(policy)}},
        {"apiVersion": rbac, "kind": "Role", "metadata": head, "rules": [rule]},
        {"apiVersion": rbac, "kind": "RoleBinding", "metadata": head, "roleRef": role, "subjects": [user]},
    ]


def _legacy(entry: Object) -> Object:
    """An entry in the spelling of the Policy: enableHttps, and httpTimeout in nanoseconds."""
    names = {"enableHTTPS": "enableHttps"}
    timeout = round(parse_duration(str(entry["httpTimeout"])) * 1e9)
    return {names.get(key, key): timeout if key == "httpTimeout" else value for key, value in entry.items()}


def _indented(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
