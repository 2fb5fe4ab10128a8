"""The entries of `extenders` that this product writes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tas.errors import InvalidInputError
from tas.values.duration import parse_duration

TELEMETRY_RESOURCE = "telemetry/scheduling"
GPU_RESOURCES = ("gpu.intel.com/i915", "gpu.intel.com/xe")
DEFAULT_WEIGHT = 5

Object = dict[str, object]

_URL = re.compile(r"(?P<server>https?://(?P<host>[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?)(?P<path>/[^?#\s]*)?")


class ExtenderKind(StrEnum):
    """Whom the scheduler asks: for telemetry (TAS), for GPUs (GAS), or agents."""

    TELEMETRY = "telemetry"
    GPU = "gpu"
    AGENTS = "agents"


URLS = {
    ExtenderKind.TELEMETRY: "https://tas-service.telemetry-aware-scheduling.svc.cluster.local:9001",
    ExtenderKind.GPU: "https://gas-service.default.svc.cluster.local:9001",
    ExtenderKind.AGENTS: "http://127.0.0.1:9030",
}
"""The default URL of each kind."""

HTTP_TIMEOUTS = {ExtenderKind.TELEMETRY: "1s", ExtenderKind.GPU: "5s", ExtenderKind.AGENTS: "2s"}
"""How long the scheduler waits by default. A bind for GPU cards includes a request to the API server."""

IGNORABLE = {ExtenderKind.TELEMETRY: True, ExtenderKind.GPU: False, ExtenderKind.AGENTS: True}
"""By default pods wait for GPU cards: else the scheduler binds a pod itself that `bind` refused, without cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extender:
    """An extender that the scheduler is to ask.

    Attributes:
        url: `http://` or `https://`, a host and a port. Without a path, the path is `/scheduler`.
        weight: Of its scores.
        resources: The scheduler asks only for pods that request one of them; without any, for all pods.
        http_timeout: None: as in `HTTP_TIMEOUTS`.
        ignorable: None: as in `IGNORABLE`.
        certificates: Where the scheduler finds `client.crt`, `client.key` and `ca.crt`, if the URL is `https://`.
        verbs: The verbs of the entry, with their paths after the URL; None: those of the kind.
    """

    kind: ExtenderKind
    url: str
    resources: tuple[str, ...]
    weight: int = DEFAULT_WEIGHT
    http_timeout: str | None = None
    ignorable: bool | None = None
    names_only: bool = True
    certificates: str = "/host/certs"
    verbs: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if _URL.fullmatch(self.url) is None:
            raise InvalidInputError("options", f"--{self.kind}-url", self.url, "must be http(s)://HOST:PORT")
        if is_api_proxy(self.url):
            reason = "is a proxy of an API server: no client certificate passes it. Give the Service itself"
            raise InvalidInputError("options", f"--{self.kind}-url", self.url, reason)
        if self.weight < 1:
            raise InvalidInputError("options", "--weight", self.weight, "must be at least 1 (facts.md c7)")
        if self.http_timeout is not None and parse_duration(self.http_timeout) <= 0:
            raise InvalidInputError("options", "--http-timeout", self.http_timeout, "must be more than 0")

    @property
    def is_https(self) -> bool:
        """Whether certificates are needed."""
        return self.url.startswith("https://")

    def entry(self) -> Object:
        """The entry of `extenders`."""
        parts = _URL.fullmatch(self.url)
        assert parts is not None
        path = (parts["path"] or "").rstrip("/") or "/scheduler"
        ignored = self.kind is ExtenderKind.TELEMETRY
        last = {"preemptVerb": "preempt"} if self.kind is ExtenderKind.TELEMETRY else {"bindVerb": "bind"}
        verbs = {"filterVerb": "filter", "prioritizeVerb": "prioritize", **last} if self.verbs is None else self.verbs
        entry: Object = {
            "urlPrefix": f"{parts['server']}{path}",
            **verbs,
            "weight": self.weight,
            "enableHTTPS": self.is_https,
            "nodeCacheCapable": self.names_only,
            "httpTimeout": self.http_timeout or HTTP_TIMEOUTS[self.kind],
            "ignorable": IGNORABLE[self.kind] if self.ignorable is None else self.ignorable,
        }
        if self.resources:
            entry["managedResources"] = [{"name": name, "ignoredByScheduler": ignored} for name in self.resources]
        if self.is_https:
            folder = self.certificates
            entry["tlsConfig"] = {
                "insecure": False,
                "certFile": f"{folder}/client.crt",
                "keyFile": f"{folder}/client.key",
                "caFile": f"{folder}/ca.crt",
            }
        return entry


def is_api_proxy(url: str) -> bool:
    """Whether a URL leads through an API server."""
    return re.search(r"/api/v1/namespaces/[^/]+/(services|pods)/[^/]+/proxy(/|$)", url) is not None


def service_of(url: object) -> tuple[str, str] | None:
    """The name and the namespace of the Service of a URL `name.namespace.svc...`; None: it has another host."""
    found = re.match(r"https?://([a-z0-9-]+)\.([a-z0-9-]+)\.svc[.:/]", str(url))
    return None if found is None else (found[1], found[2])


def needs_cluster_dns(entry: Object) -> bool:
    """Whether only the DNS of the cluster may know the host of an entry: it is neither an address nor this machine."""
    parts = _URL.fullmatch(str(entry.get("urlPrefix")))
    return parts is None or not re.fullmatch(r"localhost|[0-9.]+|\[.*", parts["host"])


def needs_certificates(entry: Object, folder: str) -> bool:
    """Whether an entry uses files of a folder of the container."""
    tls = entry.get("tlsConfig")
    files = [tls.get(name) for name in ("certFile", "keyFile", "caFile")] if isinstance(tls, dict) else []
    return any(str(file).startswith(f"{folder}/") for file in files)


COMMENTS = {
    "weight": "x 10 points for each step of a score; the scheduler's own plugins have 1200 in all",
    "nodeCacheCapable": "true: names only; whole nodes cost the scheduler much time",
    "ignorable": "true: without an answer pods are placed without this extender; false: they wait",
    "caFile": "without it the scheduler accepts any server",
}
"""The reasons of values, written beside them in new entries."""
