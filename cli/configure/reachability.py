"""Does the scheduler reach an extender: its name, its port, its certificate?"""

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from cli.configure.cluster_dns import ClusterDns, SilentError, UnresolvedError, resolved
from tas.diagnosis.url import url_of

_SECONDS = 5.0


class Unreached(NamedTuple):
    """Why an extender is not reached; `unresolved`: its name has no address."""

    reason: str
    unresolved: bool = False


def why_not_reached(url: str, dns: ClusterDns | None, certificates: Mapping[str, bytes]) -> Unreached | None:
    """Why the scheduler does not reach an extender; None: it does.

    Args:
        url: The `urlPrefix` of the extender.
        dns: The DNS of the cluster; None: the one of this machine is asked.
        certificates: The files of the scheduler by name: the extender is verified by them.
    """
    parts = url_of(url)
    if parts is None:
        return Unreached("is no URL")
    host = parts.host
    try:
        address = host if _is_address(host) or parts.is_loopback else resolved(host, dns)
    except UnresolvedError as error:
        server = "this machine" if dns is None else f"the DNS of the cluster at {dns.address}"
        says = f": {server} does not answer" if isinstance(error, SilentError) else f" is not known to {server}"
        return Unreached(f"{host}{says}: {error}", unresolved=True)
    try:
        with socket.create_connection((address, parts.port), _SECONDS) as plain:
            if parts.scheme == "http":
                return _answer_of(plain, host)
            with _context(certificates).wrap_socket(plain, server_hostname=host) as verified:
                return _answer_of(verified, host)
    except ssl.SSLCertVerificationError as error:
        return Unreached(f"its certificate is not accepted: {error.verify_message}")
    except (OSError, HTTPException) as error:
        return Unreached(str(getattr(error, "strerror", None) or error))


def _answer_of(connection: socket.socket, host: str) -> Unreached | None:
    """Only the answer to a request shows whether the extender accepts the certificate of the scheduler."""
    http = HTTPConnection(host)
    http.sock = connection
    http.request("GET", "/version")
    status = http.getresponse().status
    return Unreached("it refuses the certificate of the scheduler: code 403") if status == 403 else None


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def _context(certificates: Mapping[str, bytes]) -> ssl.SSLContext:
    """As the scheduler verifies: the names of the certificate count, and any certificate of the file is trusted."""
    context = ssl.create_default_context(cadata=certificates["ca.crt"].decode("ascii", "replace"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    with TemporaryDirectory() as folder:  # OpenSSL reads them from files only; mode 0700
        cert, key = Path(folder) / "cert", Path(folder) / "key"
        cert.write_bytes(certificates["client.crt"])
        key.write_bytes(certificates["client.key"])
        context.load_cert_chain(cert, key)
    return context
