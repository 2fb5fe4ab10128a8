"""What a process shows to the bus, and how it recognizes the bus: files, read again for each connection."""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from bus.errors import AccessError
from tas.errors import line_of


class Contents(NamedTuple):
    """The bytes of the files; empty for a file that is not given."""

    credentials: bytes = b""
    token: bytes = b""
    cacert: bytes = b""
    cert: bytes = b""
    key: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The files of one moment as the client of NATS takes them.

    Attributes:
        user: Who this process is, for messages.
        name: The name of the user in its credentials; empty without.
        expires: When the credentials expire, in seconds since 1970; 0: never, or there are none.
        certificate_expires: When the first certificate of `cert` expires; 0: there is none, or its date is not known.
        needs_tls: Whether a server without TLS is refused.
    """

    contents: Contents = field(default_factory=Contents, repr=False)
    user: str = ""
    name: str = ""
    expires: float = 0.0
    certificate_expires: float = 0.0
    needs_tls: bool = False
    has_certificate: bool = False
    options: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def dates(self) -> dict[str, float]:
        """When the credentials (`bus`) and the certificate (`bus-cert`) expire; without what never does."""
        return {what: at for what, at in (("bus", self.expires), ("bus-cert", self.certificate_expires)) if at}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The files of one process; None: without.

    Attributes:
        credentials: The JWT and the seed of a user (`.creds`).
        token: One line with the token that the server demands.
        cacert: The authorities, in PEM, one of which has signed the certificate of the server. Default: the system's.
        cert: The certificate of this process in PEM, followed by those of its issuers.
        key: The private key of `cert` in PEM, not encrypted.
        find_token: Where the token is, without `token`: asked for each connection, since a server that starts later
            may have another file.
    """

    credentials: Path | None = None
    token: Path | None = None
    cacert: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    find_token: Callable[[], Path | None] | None = None

    @property
    def has_files(self) -> bool:
        """Whether there is a file that may change."""
        return any(getattr(self, name) is not None for name in Contents._fields)

    def read(self) -> Contents:
        """The files as they are now. Raises AccessError."""
        found = self._found()
        return Contents(*(_read(getattr(found, name)) for name in Contents._fields))

    def load(self) -> Loaded:
        """Reads the files. Raises AccessError if one cannot be used, or if they change meanwhile."""
        found = self._found()
        return found._load() if found.has_files else Loaded()

    def _found(self) -> "Access":
        """With the token where it is now."""
        if self.find_token is None or self.token is not None or self.credentials is not None:
            return self
        return replace(self, token=self.find_token(), find_token=None)

    def _load(self) -> Loaded:
        contents = self.read()
        options: dict[str, Any] = {}
        user, name, expires = "", "", 0.0
        if self.credentials is not None:
            from bus.rights.credentials import parse_credentials  # noqa: PLC0415 - its keys take 40 ms to import

            shown = parse_credentials(contents.credentials, str(self.credentials))
            options |= {"user_jwt_cb": shown.jwt.encode, "signature_cb": shown.sign}
            user, name, expires = f"the user {shown.name} of {self.credentials}", shown.name, shown.expires
        if self.token is not None:
            options["token"] = _token(contents.token, self.token)
            user = user or f"the token in {self.token}"
        needs_tls = self.cacert is not None or self.cert is not None
        if needs_tls:
            options["tls"] = self._tls()
        if self.read() != contents:
            raise AccessError("the files changed while they were read")
        certificate_expires = 0.0
        if contents.cert:
            from tas.certificates.findings import first_expiry_in  # noqa: PLC0415 - most processes show no certificate

            certificate_expires = first_expiry_in(contents.cert)
        return Loaded(
            contents=contents,
            user=user,
            name=name,
            expires=expires,
            certificate_expires=certificate_expires,
            needs_tls=needs_tls,
            has_certificate=self.cert is not None,
            options=options,
        )

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.cacert)
        except (OSError, ValueError) as error:
            raise AccessError(f"{self.cacert}: must have certificates in PEM: {_reason(error)}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password=lambda: "")  # else OpenSSL asks on the terminal
            except (OSError, ValueError) as error:
                what = self.cert if self.key is None else f"{self.cert} and {self.key}"
                raise AccessError(
                    f"{what}: must be a certificate and its unencrypted key in PEM: {_reason(error)}"
                ) from error
        return context


def _token(data: bytes, file: Path) -> str:
    text = data.decode("ascii", errors="replace").strip()
    if not text or not text.isprintable() or not text.isascii() or " " in text:
        raise AccessError(f"{file}: must be one line with a token of printable ASCII characters")
    return text


def _read(path: Path | None) -> bytes:
    try:
        return b"" if path is None else path.read_bytes()
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror}") from error


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


def refusal(
    error: Exception, loaded: Loaded, access: Access, *, address_has_user: bool, now: float | None = None
) -> str:
    """Why a connection was not made, and what to do, in one line."""
    text = line_of(str(error) or type(error).__name__, 300)
    hint = _hint(
        text.lower(), loaded, access, address_has_user=address_has_user, now=time.time() if now is None else now
    )
    return f"{text}: {hint}" if hint else text


def is_refused(reason: str) -> bool:
    """Whether the server does not accept who connects, in the words of `refusal`: another attempt changes nothing."""
    text = reason.lower()
    return "authorization violation" in text or "authentication expired" in text


def _hint(text: str, loaded: Loaded, access: Access, *, address_has_user: bool, now: float) -> str:
    if is_refused(text):
        return _hint_of_credentials(loaded, access, address_has_user=address_has_user, now=now)
    known = "the authorities of the system" if access.cacert is None else f"those in {access.cacert}"
    hints = {
        "certificate verify failed": f"the server's certificate must name its host, and be signed by one of {known}",
        "unknown ca": f"the server does not know the issuer of the certificate in {access.cert}",
        "certificate expired": f"the certificate in {access.cert} has expired",
        "after it got a certificate": f"the server does not accept the certificate in {access.cert}",
        "maximum account active connections": "all users of this account together have as many as its JWT allows",
        "maximum connections": "the server has as many clients as its max_connections allows",
    }
    return next((hint for part, hint in hints.items() if part in text.replace("_", " ")), "")


def _hint_of_credentials(loaded: Loaded, access: Access, *, address_has_user: bool, now: float) -> str:
    if loaded.expires and loaded.expires <= now:
        return f"{loaded.user} expired {now - loaded.expires:.0f} s ago: put new credentials into the file"
    if access.credentials is not None:
        return (
            f"the server does not accept {loaded.user}: it does not know the account or the key that signed it, or the "
            "user was revoked: make new credentials, or give the server the account"
        )
    if loaded.user or address_has_user:
        return f"the server does not accept {loaded.user or 'the user or the token in the address'}"
    return "the server demands credentials, and none are given"
