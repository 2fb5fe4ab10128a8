"""Files of the originals that are no configuration of a scheduler: a Policy is read, all others are named.

A Policy, in a ConfigMap or as it is, has the same extenders in another spelling (kube-scheduler read it until 1.22).
"""

from collections.abc import Callable, Iterator, Sequence

from tas.configuring.configuration import KIND, SUBJECT
from tas.configuring.extenders import Object
from tas.errors import InvalidInputError
from tas.values.duration import format_duration

POLICY = "Policy"

_SPELLING = {"enableHttps": "enableHTTPS"}
_VERBS = ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb")
_TAKEN = ("kind", "apiVersion", "extenders")

_COMING_FROM = "docs/reference/coming-from.md"
_RIGHTS = f"the rights of this product are in deploy/rbac/: {_COMING_FROM}"
_CLUSTER_API = f"tas configure kubeadm writes what belongs into its files, flags and patches: {_COMING_FROM}"
_INSTEAD = {
    "Deployment": f"the command of the container is tas run all (for GAS: tas run gpu), then its flags: {_COMING_FROM}",
    "ClusterRole": _RIGHTS,
    "ClusterRoleBinding": _RIGHTS,
    "ServiceAccount": _RIGHTS,
    "Service": f"it stays as it is, and kubectl applies it: {_COMING_FROM}",
    "TASPolicy": "it stays as it is, and kubectl applies it; tas policy lint checks it",
    "CustomResourceDefinition": "tas crd prints that of this product: tas crd | kubectl apply -f -",
    "DeschedulerPolicy": "it is for the descheduler; docs/how-to/moving-pods.md has it for the versions of today",
    "KubeadmControlPlane": _CLUSTER_API,
    "KubeadmControlPlaneTemplate": _CLUSTER_API,
}
"""What takes the place of an object of the originals that `-f` cannot use."""

_PATCHES = {
    "/spec/dnsPolicy": "tas configure sets dnsPolicy in the manifest, and tas configure kubeadm writes this patch",
    "/status/capacity/telemetry~1scheduling": "tas run resources keeps this resource on all nodes",
}
"""What takes the place of the JSON patches of the originals, by the path in the patch."""

Parse = Callable[[str, str], Sequence[object]]
"""Reads the documents of a text in YAML or JSON; its second argument is the field that has the text, for errors."""


def configuration_of_original(documents: Sequence[object], parse: Parse) -> tuple[Object, list[str]] | None:
    """The extenders of a Policy as a configuration without `apiVersion`, and notices for people.

    None if the file is for others to judge, as a configuration. `parse` may raise what its caller catches.

    Raises:
        InvalidInputError: if this is another file of the originals: the reason names what takes its place.
    """
    if any(isinstance(each, dict) and each.get("kind") == KIND for each in documents):
        return None
    policies = [policy for document in documents for policy in _policies(document, parse)]
    if len(policies) == 1:
        return _converted(*policies[0])
    if policies:
        raise InvalidInputError("-f", "kind", [name for name, _ in policies], "must have one Policy")
    for document in documents:
        if (instead := _instead(document)) is not None:
            field, value, reason = instead
            raise InvalidInputError("-f", field, value, f"is no configuration of a scheduler: {reason}")
    return None


def _policies(document: object, parse: Parse) -> Iterator[tuple[str, Object]]:
    """The Policies of a document, each with a name for people."""
    if not isinstance(document, dict):
        return
    if document.get("kind") == POLICY:
        yield POLICY, document
    data = document.get("data")
    if document.get("kind") != "ConfigMap" or not isinstance(data, dict):
        return
    for key, text in data.items():
        values = parse(text, f"data.{key}") if isinstance(text, str) and POLICY in text else ()
        for value in values:
            if isinstance(value, dict) and value.get("kind") == POLICY:
                yield f"{key} of a ConfigMap", value


def _converted(name: str, policy: Object) -> tuple[Object, list[str]]:
    extenders = policy.get("extenders") or []
    if not isinstance(extenders, list):
        raise InvalidInputError(SUBJECT, "extenders", extenders, "must be a list")
    notices = [f"-f: a Policy ({name}): kube-scheduler reads none since 1.23, so its extenders become a configuration"]
    if left := sorted(policy.keys() - set(_TAKEN)):
        notices.append(f"-f: not taken from the Policy: {', '.join(left)}: today these are profiles of the scheduler")
    entries = [_entry(each, f"extenders[{at}]") for at, each in enumerate(extenders)]
    return {"kind": KIND, "extenders": entries}, notices


def _entry(entry: object, place: str) -> Object:
    if not isinstance(entry, dict):
        raise InvalidInputError(SUBJECT, place, entry, "must be an object")
    without = {"apiVersion", *(verb for verb in _VERBS if entry.get(verb) == "")}
    new: Object = {str(_SPELLING.get(key, key)): value for key, value in entry.items() if key not in without}
    timeout = new.get("httpTimeout")
    if isinstance(timeout, int) and not isinstance(timeout, bool) and 0 < timeout < 1 << 63:  # nanoseconds in a Policy
        new["httpTimeout"] = format_duration(timeout / 1e9)
    return new


def _instead(document: object) -> tuple[str, object, str] | None:
    if isinstance(document, list):
        paths = [str(each.get("path")) for each in document if isinstance(each, dict)]
        return next((("path", path, _PATCHES[path]) for path in paths if path in _PATCHES), None)
    kind = document.get("kind") if isinstance(document, dict) else None
    return ("kind", kind, _INSTEAD[kind]) if isinstance(kind, str) and kind in _INSTEAD else None
