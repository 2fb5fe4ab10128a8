"""TLS of our servers: loading the files, the names of clients, and the reasons of refusals.

`tls_files.py` reads the files, `x509.py` the certificates in them. `certificates.py` follows the files, and
`connections.py` manages the connections.
"""

import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from workers.http.tls_files import TlsError, TlsFiles

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy and authenticated encryption, with RSA or EC keys. All TLS 1.3 ciphers have both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTls:
    """What is loaded of the files: the context, by their contents.

    `authorities` are the certificates that sign trusted clients, as DER. `expires` has for each file, by its flag
    without dashes, when its first certificate expires, in seconds since 1970; `authorities_until` is when the last
    authority expires, `server_until` when the server's own certificate does: others of its chain may be superfluous.
    `begins` has for each file, as messages name it, from when it can be used: the whole chain of the server, and one of
    the authorities.
    """

    context: ssl.SSLContext
    contents: tuple[bytes, bytes, bytes]
    authorities: frozenset[bytes]
    expires: Mapping[str, float]
    authorities_until: float
    server_until: float
    begins: Mapping[str, float]

    def expiry(self, file: str, now: float) -> float:
        """When a file expires. An authority that has expired does not count while another one is valid.

        Who replaces an authority trusts both for some time, and may leave the old one there.
        """
        first = self.expires[file]
        return self.authorities_until if file.endswith("cacert") and first <= now else first

    def early(self, now: float) -> str | None:
        """The first file that cannot be used before a later time than `now`, as messages name it; None: all can."""
        return next((file for file, begins in self.begins.items() if begins > now), None)

    def until(self, file: str, now: float) -> float:
        """Until when a file can be used."""
        return self.expiry(file, now) if file.endswith("cacert") else self.server_until

    def expired(self, now: float) -> str | None:
        """The first file that cannot be used any more at `now`, by its flag without dashes; None: all can."""
        return next((file for file in self.expires if self.until(file, now) <= now), None)

    def is_valid(self, now: float) -> bool:
        """Whether the certificates of every file can be used at `now`."""
        return self.early(now) is None and self.expired(now) is None

    def may_have_signed(self, presented: bytes, now: float) -> bool:
        """Whether an authority has signed a certificate (DER) that OpenSSL found to be expired.

        While no authority has expired, OpenSSL has verified the signatures before. Otherwise the authority itself must
        have signed the certificate: intermediate ones of a stranger are not read.
        """
        from workers.http.x509 import is_signed_by_one  # noqa: PLC0415 - loaded with the context

        has_expired = any(first <= now for file, first in self.expires.items() if file.endswith("cacert"))
        return not has_expired or is_signed_by_one(presented, self.authorities)


def load_tls(files: TlsFiles) -> LoadedTls:
    """What the current files have.

    Raises TlsError if the files cannot be read, do not belong together, or changed while being read.
    """
    # Imported here, with cryptography: 40 ms and 10 MB, and most processes serve without TLS.
    from tas.certificates.findings import first_expiry  # noqa: PLC0415
    from workers.http.x509 import certificates_of, der_of, last_expiry, starts_of  # noqa: PLC0415

    contents = files.read()
    chain, authorities = certificates_of(contents, files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = ssl.CERT_NONE if files.cacert is None else ssl.CERT_REQUIRED
    # Any certificate of the file is a trust anchor, also an intermediate one: as in Go, and so in the original.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # No tickets, so that no session is resumed: each connection presents a certificate, checked against the current
    # authorities. With TLS 1.2 OpenSSL still resumes a session of this context by its number, and Python cannot forbid
    # it: the certificate of that session was checked against the same authorities, and it is refused once it expires.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.sslobject_class = _Handshake
    _capture_certificates(context)
    try:
        context.load_cert_chain(files.cert, files.key, password=lambda: "")  # else OpenSSL asks on the terminal
    except (OSError, ValueError) as error:
        raise TlsError(f"{files.shown('cert')} and {files.shown('key')}: {_reason(error)}") from error
    try:
        if files.cacert is not None:
            context.load_verify_locations(files.cacert)
    except OSError as error:
        raise TlsError(f"{files.shown('cacert')}: {_reason(error)}") from error
    if files.read() != contents:
        raise TlsError("the files changed while they were read")
    return LoadedTls(
        context=context,
        contents=contents,
        authorities=frozenset(map(der_of, authorities)),
        expires={
            f"{files.prefix}{name}": first_expiry(certificates)
            for name, certificates in (("cert", chain), ("cacert", authorities))
            if certificates
        },
        authorities_until=last_expiry(authorities),
        server_until=first_expiry(chain[:1]),
        begins={
            files.shown("cert"): max(starts_of(chain)),
            **({files.shown("cacert"): min(starts_of(authorities))} if authorities else {}),
        },
    )


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


PeerCertificate = Mapping[str, Any]
"""A verified certificate in the form of `ssl.SSLSocket.getpeercert`."""


def names_of(certificate: PeerCertificate) -> list[str]:
    """The common name and each alternative name (DNS, URI, e-mail, address), without repetition."""
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    alternative = [value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str)]
    return list(dict.fromkeys([*common, *alternative]))


def expires_of(certificate: PeerCertificate) -> float:
    """When the certificate expires, in seconds since 1970."""
    return ssl.cert_time_to_seconds(certificate["notAfter"])


def is_allowed(certificate: PeerCertificate, allowed: Collection[str]) -> bool:
    """Whether one of its names is in `allowed`; an empty `allowed` admits every trusted certificate."""
    return not allowed or any(name in allowed for name in names_of(certificate))


_REASONS = {10: "expired", 9: "not_yet_valid", 26: "wrong_purpose"}
"""Reasons for OpenSSL's X509_V_ERR_… codes; all other codes mean an untrusted certificate."""

REFUSALS = (*_REASONS.values(), "untrusted", "name", "no_certificate", "protocol", "handshake", "gone")
"""Every reason of a refusal."""

_PROTOCOL = ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "HTTP_REQUEST", "WRONG_VERSION_NUMBER", "VERSION_TOO_LOW")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a client was refused: `reason` for metrics, `text` for a person, and the client's names, unverified."""

    reason: str
    text: str
    client: str


def refusal(error: Exception) -> Refusal:
    """The refusal of a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = _REASONS.get(error.verify_code, "untrusted")
        return Refusal(reason=reason, text=error.verify_message, client=getattr(error, "client", ""))
    if isinstance(error, ssl.SSLError):
        code = error.reason or str(error)
        if code == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return Refusal(reason="no_certificate", text="the client presented no certificate", client="")
        reason = "protocol" if code in _PROTOCOL else "handshake"
        return Refusal(reason=reason, text=code.replace("_", " ").lower(), client="")
    if isinstance(error, UnreadableNameError) or not isinstance(error, OSError):
        return Refusal(reason="handshake", text=f"{type(error).__name__}: {error}", client="")
    return Refusal(reason="gone", text=str(error) or type(error).__name__, client="")


class UnreadableNameError(OSError):
    """Python cannot read a name of a certificate. Of an error that is no OSError, asyncio logs a traceback."""


class _Handshake(ssl.SSLObject):
    """TLS of one connection; the error of a refused certificate carries this certificate and the names in it."""

    presented: bytes = b""

    def do_handshake(self) -> None:
        """Adds `client` and `presented` to the error of a refused certificate."""
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            from workers.http.x509 import names_in  # noqa: PLC0415 - loaded with the context of this handshake

            error.client = names_in(self.presented)  # type: ignore[attr-defined]
            error.presented = self.presented  # type: ignore[attr-defined]
            raise
        self.context = _WITHOUT_CALLBACK  # no callbacks after the handshake: they cost 12 µs per request

    def getpeercert(self, binary_form: bool = False) -> Any:  # noqa: FBT001, FBT002 - as in `ssl`
        """As in `ssl`. Raises UnreadableNameError."""
        try:
            return super().getpeercert(binary_form)
        except UnicodeDecodeError as error:
            raise UnreadableNameError(str(error)) from error


_WITHOUT_CALLBACK = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
_WITHOUT_CALLBACK.verify_mode = ssl.CERT_REQUIRED  # `getpeercert` reads this to decide whether it returns the fields

_CERTIFICATE = 11
"""The type of the handshake message that carries certificates (RFC 8446, 4.4.2)."""

_TLS_1_3 = 0x0304


def _capture_certificates(context: ssl.SSLContext) -> None:
    """Stores the presented certificate in `_Handshake`, by a debugging hook of Python where it exists.

    OpenSSL discards a refused certificate, and a log line without the client's name does not help an operator.
    """
    if hasattr(context, "_msg_callback"):
        context._msg_callback = _capture


def _capture(connection: object, direction: str, version: int, _content: int, kind: int, message: bytes) -> None:
    if kind == _CERTIFICATE and direction == "read" and isinstance(connection, _Handshake):
        connection.presented = _first_certificate(message[4:], with_context=version >= _TLS_1_3)


def _first_certificate(body: bytes, *, with_context: bool) -> bytes:
    """The DER of the first certificate in the list of a Certificate message; in TLS 1.3 a context precedes the list."""
    if with_context:
        body = body[1 + body[0] :]
    return body[6 : 6 + int.from_bytes(body[3:6])]
