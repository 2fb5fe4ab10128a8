"""The addresses of a host, as the scheduler finds them: by the DNS of the cluster."""

import secrets
import socket
from pathlib import Path
from typing import NamedTuple

from bus.trying import Tries
from workers.process.manifests import MAX_BYTES, ManifestError, read_yaml

KUBELET = Path("/var/lib/kubelet/config.yaml")
_PORT = 53
_SECONDS = 2.0
_TRIES = Tries((TimeoutError,), times=2)
MAX_ANSWER = 4096
"""The most bytes of an answer that are read."""


class ClusterDns(NamedTuple):
    """The DNS of the cluster: its address, and the domain of the cluster."""

    address: str
    domain: str = "cluster.local"
    port: int = _PORT


class UnresolvedError(Exception):
    """The name has no address; the message says who says so."""


class SilentError(UnresolvedError):
    """The DNS of the cluster does not answer, so that it is not known whether the name has an address."""


def of_kubelet(path: Path = KUBELET) -> ClusterDns | None:
    """The DNS that the kubelet of this node gives to pods; None if it cannot be told."""
    try:
        with path.open("rb") as file:
            document = next(iter(read_yaml(file.read(MAX_BYTES + 1))), None)
    except (OSError, ManifestError):
        return None
    servers = document.get("clusterDNS") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(servers, list) or not servers:
        return None
    return ClusterDns(str(servers[0]), str(document.get("clusterDomain") or "cluster.local"))


def resolved(host: str, dns: ClusterDns | None) -> str:
    """An address of a host: from the DNS of the cluster, else from this machine. Raises UnresolvedError."""
    from tas.configuring.dns import AAAA, A, DnsError, candidates  # here: few commands ask, and dnspython is large

    try:
        if dns is None:
            return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        for name in candidates(host, dns.domain):
            for kind in (A, AAAA):
                if found := _asked(name, kind, dns):
                    return found[0]
    except DnsError as error:
        raise UnresolvedError(str(error)) from error
    except TimeoutError as error:
        raise SilentError(f"no answer within {_TRIES.times * _SECONDS:g} s") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise (UnresolvedError if dns is None else SilentError)(reason) from error
    raise UnresolvedError("there is no such name")


def _asked(name: str, kind: int, dns: ClusterDns) -> list[str]:
    from tas.configuring.dns import addresses, question

    family = socket.AF_INET6 if ":" in dns.address else socket.AF_INET
    number = secrets.randbelow(1 << 16)  # the same for each try: a slow server answers the first one during the second
    with socket.socket(family, socket.SOCK_DGRAM) as udp:
        udp.settimeout(_SECONDS)
        udp.connect((dns.address, dns.port))

        def once() -> list[str]:
            udp.send(question(name, kind, number))
            return addresses(udp.recv(MAX_ANSWER), number)

        return _TRIES.blocking(once)
