"""The files of `deploy/admission` on a real API server: in force within a context, and what they answer to whom."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

from .api import MERGE_PATCH, ApiError, Object
from .cluster import Cluster
from .processes import until

FOLDER = Path(__file__).parents[2] / "deploy" / "admission"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
ACCOUNT = "system:serviceaccount:telemetry-aware-scheduling:"


class Attempt(NamedTuple):
    """A request of a user whom RBAC allows everything."""

    user: str
    method: str
    path: str
    body: Object | None = None


def refusal(cluster: Cluster, attempt: Attempt) -> str:
    """The message of the refusal; empty if the request is accepted. It changes nothing."""
    headers = {"Impersonate-User": attempt.user, "Impersonate-Group": "system:masters"}
    kind = MERGE_PATCH if attempt.method == "PATCH" else "application/json"
    path = f"{attempt.path}?dryRun=All"
    try:
        cluster.api.request(attempt.method, path, attempt.body, content_type=kind, headers=headers)
    except ApiError as error:
        if error.status not in (403, 422):
            raise
        return str(error)
    return ""


def keep_parameters(cluster: Cluster) -> None:
    """Creates a policy that matches nothing and has a ConfigMap as its parameter, for as long as the cluster runs.

    When the last binding with such a parameter is deleted, the API server stops to read ConfigMaps for policies until
    it starts again, so that the same policies would refuse everything in the next test (kubernetes/kubernetes#130887).
    """
    name = {"name": "tests-keep-parameters"}
    rule = {"apiGroups": ["none.example.com"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["nothing"]}
    spec = {
        "failurePolicy": "Ignore",
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "true"}],
    }
    parameter = {"name": "kube-root-ca.crt", "namespace": "default", "parameterNotFoundAction": "Allow"}
    binding = {"policyName": name["name"], "validationActions": ["Audit"], "paramRef": parameter}
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": name}
    cluster.api.create(POLICIES, head | {"kind": "ValidatingAdmissionPolicy", "spec": spec})
    bindings = POLICIES.replace("policies", "policybindings")
    cluster.api.create(bindings, head | {"kind": "ValidatingAdmissionPolicyBinding", "spec": binding})


@contextmanager
def admission(cluster: Cluster, file: str, probes: Mapping[str, Attempt]) -> Iterator[None]:
    """Applies a file, waits until each of its policies refuses its probe, and deletes the policies at the end."""
    documents = list(yaml.safe_load_all((FOLDER / file).read_text()))
    policies = [each["metadata"]["name"] for each in documents if each["kind"] == "ValidatingAdmissionPolicy"]
    assert set(policies) == probes.keys()

    def refusals() -> dict[str, str]:
        found = {name: refusal(cluster, attempt) for name, attempt in probes.items()}
        return {name: text for name, text in found.items() if f"'{name}'" in text}

    def refusing() -> set[str]:
        # Until the API server knows the parameters of a policy, the policy refuses everything.
        return {name for name, text in refusals().items() if "no params found" not in text}

    cluster.apply(FOLDER / file)
    try:
        until(lambda: refusing() == probes.keys(), f"{file} is in force")
        for name in policies:
            _check(cluster, name)
        yield
    finally:
        cluster.kubectl("delete", "-f", str(FOLDER / file))
        until(lambda: not refusals(), f"{file} is gone, also for other tests")


def _check(cluster: Cluster, name: str) -> None:
    """The expressions have the right types, and the policy fails closed."""

    def checked() -> Object | None:
        found = cluster.api.get(f"{POLICIES}/{name}")
        is_checked = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
        return found if is_checked else None

    policy = until(checked, f"the types of {name} are checked")
    assert policy["status"].get("typeChecking", {}) == {}
    assert policy["spec"]["failurePolicy"] == "Fail"
