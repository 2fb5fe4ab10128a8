"""Texts for strangers: without secrets, and with a number in place of each address.

A secret is recognized by its value (those that this machine has in files), by its form (a token of three parts, a seed
of NATS, a block in PEM, a user in a URL), or by the name before it (`token: …`, `password=…`). Of a URL only scheme and
port are left: paths and queries of webhooks are secrets, too. Equal addresses get equal numbers, so that a reader can
still see what belongs together. Addresses of the machine itself stay.
"""

import ipaddress
import re
from collections.abc import Iterable

SECRET = "REDACTED"  # noqa: S105 - stands for one
SHORTEST = 6
"""A shorter text is no secret: else each word of a file would be one."""

_PEM = re.compile(r"-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|\Z)", re.DOTALL)
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]+){1,4}")
_SEED = re.compile(r"\bS[UAONCX][A-Z2-7]{50,60}\b")
_AUTHORIZATION = re.compile(r"\b(bearer|basic)(\s+)[^\s\"',;]+", re.IGNORECASE)
_NAMED = re.compile(
    r"((?:token|passw(?:or)?d|secret|api[_-]?key|private[_-]?key|authorization|credential)s?"
    r"[\\\"']*\s*[:=]\s*[\\\"']*)(?!(?:bearer|basic)\b)([^\s\"',;&}\]\\]+)",
    re.IGNORECASE,
)
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{0,20})://([^\s\"'<>;)\]}|\\]+)")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)")
_DASHED = re.compile(r"\bip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}\b")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:\.\d{1,3}){0,3}(?![\w:])")
_HOST_PORT = re.compile(r"(?<![\w./-])(?:[A-Za-z0-9-]{1,63}\.){1,20}[A-Za-z][A-Za-z0-9-]{0,62}(?=:\d{2,5}\b)")
_PORT = re.compile(r":(\d{1,5})$")


class Redactor:
    """Redacts texts that belong together."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets`: texts that must not be in any result, whatever their form."""
        self._secrets = sorted({each for each in secrets if len(each) >= SHORTEST}, key=len, reverse=True)
        self._numbers: dict[str, int] = {}

    def redacted(self, text: str) -> str:
        """The text without secrets and addresses."""
        for secret in self._secrets:
            text = text.replace(secret, SECRET)
        text = _PEM.sub(SECRET, text)
        text = _SEED.sub(SECRET, _JWT.sub(SECRET, text))
        text = _AUTHORIZATION.sub(lambda found: f"{found[1]}{found[2]}{SECRET}", text)
        text = _URL.sub(lambda found: self._url(found[1], found[2]), text)
        text = _NAMED.sub(lambda found: f"{found[1]}{SECRET}", text)
        text = _IPV4.sub(lambda found: self._ip(found[0]), text)
        text = _DASHED.sub(lambda found: self._address(found[0]), text)
        text = _IPV6.sub(lambda found: self._ip(found[0]), text)
        return _HOST_PORT.sub(lambda found: self._address(found[0]), text)

    def _url(self, scheme: str, rest: str) -> str:
        """Scheme, number and port of each server; the addresses of a NATS cluster are separated by commas."""
        return f"{scheme}://" + ",".join(map(self._authority, rest.split(",")))

    def _authority(self, text: str) -> str:
        if not text:
            return text
        host = re.split(r"[/?#]", text.rpartition("://")[2].rpartition("@")[2], maxsplit=1)[0]
        port = _PORT.search(host)
        name = host.removesuffix(port[0]) if port is not None else host
        return self._address(name.strip("[]")) + ("" if port is None else port[0])

    def _ip(self, text: str) -> str:
        try:
            ipaddress.ip_address(text)
        except ValueError:
            return text  # a time, or a version
        return self._address(text)

    def _address(self, text: str) -> str:
        if text in ("localhost", "") or text.startswith("address-"):
            return text
        try:
            found = ipaddress.ip_address(text)
        except ValueError:
            pass
        else:
            if found.is_loopback or found.is_unspecified:
                return text
        return f"address-{self._numbers.setdefault(text.lower(), len(self._numbers) + 1)}"
