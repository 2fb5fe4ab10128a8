"""The Service of the extender: where it can be reached by who does not use the DNS of the cluster."""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from tas.diagnosis.finding import Missing, command
from tas.diagnosis.url import Url

_NAME = re.compile(r"(?P<name>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)\.svc(\..+)?")
HEADLESS = "None"


class ServiceName(NamedTuple):
    """The name of a Service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class NoService(NamedTuple):
    """Why nobody can reach the extender by this Service."""

    reason: str


class ServiceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A Service as the API server has it.

    Attributes:
        external: The name to which an ExternalName leads; empty for another type.
        address: Its cluster IP; `None` as a text for a headless one.
        ports: Its ports.
        ready: The addresses of its ready endpoints; Missing if they cannot be read.
    """

    external: str = ""
    address: str = ""
    ports: Collection[int] = ()
    ready: Sequence[str] | Missing = ()


def service_of(host: str) -> ServiceName | None:
    """The Service that a name in the DNS of a cluster means; None for any other name."""
    found = _NAME.fullmatch(host)
    return None if found is None else ServiceName(found["namespace"], found["name"])


def reached_at(name: ServiceName, port: int, facts: ServiceFacts | None) -> str | NoService | Missing:
    """The name or address at which a port of a Service is reached; `facts` is None without such a Service."""
    if facts is None:
        return NoService(f"the cluster has no Service {name}")
    if facts.external:
        return facts.external
    if isinstance(facts.ready, Missing):
        return facts.ready
    if not facts.ready:
        return NoService(f"the Service {name} has no ready endpoint")
    is_headless = facts.address == HEADLESS  # then its ports mean nothing
    if not is_headless and port not in facts.ports:
        known = ", ".join(map(str, sorted(facts.ports)))
        return NoService(f"the Service {name} has no port {port}, but {known}")
    return facts.ready[0] if is_headless else facts.address


def from_elsewhere(name: ServiceName, url: Url) -> tuple[str, str]:
    """What makes the Service reachable from a machine outside of the cluster, in words, and a command."""
    mend = (
        f"run tas doctor on a control plane node; or add the line '127.0.0.1 {url.host}' to /etc/hosts for the time of "
        "the check, and run this beside it"
    )
    run = command("kubectl", "--namespace", name.namespace, "port-forward", f"service/{name.name}", str(url.port))
    return mend, run
