"""The entries of `extenders` that this product writes, and how they join a KubeSchedulerConfiguration.

The rules of kube-scheduler for entries are facts.md c6 to c10.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tas.configuring.versions import GROUP, LAST_POLICY, OLDEST, api_version, reads
from tas.errors import InvalidInputError
from tas.values.duration import parse_duration
from tas.values.names import is_label_key

KIND = "KubeSchedulerConfiguration"
SUBJECT = "scheduler configuration"
TELEMETRY_RESOURCE = "telemetry/scheduling"
GPU_RESOURCES = ("gpu.intel.com/i915", "gpu.intel.com/xe")
DEFAULT_WEIGHT = 5
POLICY_NAME = "scheduler-extender-policy"
POLICY_NAMESPACE = "kube-system"

Object = dict[str, object]

_URL = re.compile(r"(?P<server>https?://(?P<host>[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?)(?P<path>/[^?#\s]*)?")


class ExtenderKind(StrEnum):
    """Whom the scheduler asks: for telemetry (TAS), or for GPUs (GAS)."""

    TELEMETRY = "telemetry"
    GPU = "gpu"


URLS = {
    ExtenderKind.TELEMETRY: "https://tas-service.telemetry-aware-scheduling.svc.cluster.local:9001",
    ExtenderKind.GPU: "https://gas-service.default.svc.cluster.local:9001",
}
"""The default URL of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extender:
    """An extender that the scheduler is to ask.

    Attributes:
        url: `http://` or `https://`, a host and a port. Without a path, the path is `/scheduler`.
        weight: Only a telemetry extender gives scores.
        resources: The scheduler asks only for pods that request one of them.
        certificates: Where the scheduler finds `client.crt`, `client.key` and `ca.crt`, if the URL is `https://`.
    """

    kind: ExtenderKind
    url: str
    resources: tuple[str, ...]
    weight: int = DEFAULT_WEIGHT
    http_timeout: str = "1s"
    ignorable: bool = True
    names_only: bool = True
    certificates: str = "/host/certs"

    def __post_init__(self) -> None:
        if _URL.fullmatch(self.url) is None:
            raise InvalidInputError("options", f"--{self.kind}-url", self.url, "must be http(s)://HOST:PORT")
        if self.weight < 1:
            raise InvalidInputError("options", "--weight", self.weight, "must be at least 1 (facts.md c7)")
        if parse_duration(self.http_timeout) <= 0:
            raise InvalidInputError("options", "--http-timeout", self.http_timeout, "must be more than 0")

    @property
    def is_https(self) -> bool:
        """Whether certificates are needed."""
        return self.url.startswith("https://")

    @property
    def needs_cluster_dns(self) -> bool:
        """Whether only the DNS of the cluster may know the host: it is neither an address nor this machine."""
        host = self._parts()["host"]
        return host != "localhost" and not re.fullmatch(r"[0-9.]+|\[.*", host)

    def _parts(self) -> re.Match[str]:
        found = _URL.fullmatch(self.url)
        assert found is not None
        return found

    def entry(self) -> Object:
        """The entry of `extenders`."""
        parts = self._parts()
        path = (parts["path"] or "").rstrip("/") or "/scheduler"
        entry: Object = {"urlPrefix": f"{parts['server']}{path}", "filterVerb": "filter"}
        if self.kind is ExtenderKind.TELEMETRY:
            entry |= {"prioritizeVerb": "prioritize", "preemptVerb": "preempt", "weight": self.weight}
        else:
            entry["bindVerb"] = "bind"
        ignored = self.kind is ExtenderKind.TELEMETRY
        entry |= {
            "enableHTTPS": self.is_https,
            "nodeCacheCapable": self.names_only,
            "httpTimeout": self.http_timeout,
            "ignorable": self.ignorable,
            "managedResources": [{"name": name, "ignoredByScheduler": ignored} for name in self.resources],
        }
        if self.is_https:
            folder = self.certificates
            entry["tlsConfig"] = {
                "insecure": False,
                "certFile": f"{folder}/client.crt",
                "keyFile": f"{folder}/client.key",
                "caFile": f"{folder}/ca.crt",
            }
        return entry


COMMENTS = {
    "weight": "x 10 points for each step of a score; the scheduler's own plugins have 1200 in all",
    "nodeCacheCapable": "names only: whole nodes cost the scheduler much time",
    "ignorable": "true: without an answer pods are placed without this extender; false: they wait",
    "caFile": "without it the scheduler accepts any server",
}
"""The reasons of values, written beside them in new entries."""


def with_extenders(
    document: object, minor: int, extenders: Sequence[Extender], kubeconfig: str | None
) -> tuple[Object, list[str]]:
    """A scheduler configuration in which each extender occurs once, and notices for people.

    Args:
        document: The configuration so far, as in JSON; None: there is none.
        minor: The minor version of the scheduler.
        extenders: Added, or updated in place. All other entries and fields stay.
        kubeconfig: The credentials of the scheduler, if the configuration names none.

    Raises:
        InvalidInputError: if the document is no configuration, or the scheduler would refuse the result.
    """
    preferred = api_version(minor)
    old = {"apiVersion": preferred, "kind": KIND} if document is None else _checked_kind(document)
    new = dict(old)
    notices: list[str] = []
    if not reads(minor, old["apiVersion"]):
        if str(old["apiVersion"]).startswith(f"{GROUP}/v1alpha"):
            raise InvalidInputError(SUBJECT, "apiVersion", old["apiVersion"], "cannot be converted: has other fields")
        notices.append(f"apiVersion {old['apiVersion']} is not read by kube-scheduler 1.{minor}: {preferred}")
        new["apiVersion"] = preferred
    if kubeconfig is not None:
        connection = _mapping(new, "clientConnection")
        if not connection.get("kubeconfig"):
            new["clientConnection"] = {"kubeconfig": kubeconfig} | {
                key: value for key, value in connection.items() if key != "kubeconfig"
            }
    entries = [_as_object(entry, f"extenders[{at}]") for at, entry in enumerate(_list(new, "extenders"))]
    for extender in extenders:
        entries = _joined(entries, extender)
    if entries:
        new["extenders"] = entries
    notices += _check(new)
    return new, notices


def _joined(entries: list[Object], extender: Extender) -> list[Object]:
    ours = extender.entry()
    # The resource identifies the extender; an entry for all pods is identified by its URL.
    same = [at for at, entry in enumerate(entries) if set(_resources(entry)) & set(extender.resources)]
    same = same or [at for at, entry in enumerate(entries) if entry.get("urlPrefix") == ours["urlPrefix"]]
    if not same:
        return [*entries, ours]
    if len(same) > 1:
        raise InvalidInputError(SUBJECT, f"extenders[{same[1]}]", extender.kind, "a second entry for this extender")
    before = entries[same[0]]
    # Fields of others stay, except certificates: they belong to the URL.
    after = {key: value for key, value in before.items() if key != "tlsConfig" or key in ours} | ours
    return [*entries[: same[0]], after, *entries[same[0] + 1 :]]


def _check(document: Object) -> list[str]:
    """Notices; raises InvalidInputError for what kube-scheduler refuses."""
    version = str(document["apiVersion"]).rpartition("/")[2]
    for field in ("healthzBindAddress", "metricsBindAddress"):
        if field in document and version in ("v1", "v1beta3"):
            raise InvalidInputError(SUBJECT, field, document[field], f"does not exist in {version}: delete it")
    notices: list[str] = []
    binder: str | None = None
    owners: dict[str, str] = {}
    for at, value in enumerate(_list(document, "extenders")):
        place = f"extenders[{at}]"
        entry = _as_object(value, place)
        _check_entry(entry, place)
        if entry.get("bindVerb"):
            if binder is not None:
                reason = f"{binder} has a bindVerb already: only one extender can bind"
                raise InvalidInputError(SUBJECT, f"{place}.bindVerb", entry["bindVerb"], reason)
            binder = place
        for name in _resources(entry):
            if owners.setdefault(name, place) != place:
                reason = f"{owners[name]} has this resource already"
                raise InvalidInputError(SUBJECT, f"{place}.managedResources", name, reason)
        tls = _as_object(entry.get("tlsConfig") or {}, f"{place}.tlsConfig")
        if entry.get("enableHTTPS") and not (tls.get("caFile") or tls.get("caData")):
            notices.append(f"{place} has no caFile: the scheduler accepts any server there")
    return notices


def _check_entry(entry: Object, place: str) -> None:
    if "enableHttps" in entry:
        raise InvalidInputError(SUBJECT, f"{place}.enableHttps", entry["enableHttps"], "is spelled enableHTTPS")
    weight = entry.get("weight", 0)
    if entry.get("prioritizeVerb") and not (isinstance(weight, int) and weight > 0):
        raise InvalidInputError(SUBJECT, f"{place}.weight", weight, "must be at least 1 with a prioritizeVerb")
    for name in _resources(entry):
        if not _is_extended_resource(name):
            raise InvalidInputError(SUBJECT, f"{place}.managedResources", name, "is no extended resource")


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


def _checked_kind(document: object) -> Object:
    if not isinstance(document, dict):
        raise InvalidInputError(SUBJECT, "kind", document, f"must be a {KIND}")
    if document.get("kind") != KIND or not str(document.get("apiVersion")).startswith(f"{GROUP}/"):
        found = f"{document.get('apiVersion')}, {document.get('kind')}"
        raise InvalidInputError(SUBJECT, "kind", found, f"must be a {KIND} of {GROUP}")
    return document


def _resources(entry: Mapping[str, object]) -> Iterator[str]:
    managed = entry.get("managedResources") or []
    for resource in managed if isinstance(managed, list) else []:
        if isinstance(resource, dict) and isinstance(resource.get("name"), str):
            yield resource["name"]


def _is_extended_resource(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    return bool(slash) and is_label_key(name) and "kubernetes.io" not in domain and not name.startswith("requests.")


def _mapping(parent: Object, key: str) -> Object:
    value = parent.get(key)
    return {} if value is None else _as_object(value, key)


def _list(parent: Object, key: str) -> list[object]:
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidInputError(SUBJECT, key, value, "must be a list")
    return value


def _as_object(value: object, place: str) -> Object:
    if not isinstance(value, dict):
        raise InvalidInputError(SUBJECT, place, value, "must be a mapping")
    return value
