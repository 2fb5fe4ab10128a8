"""The files with which a server or a client uses TLS."""

from dataclasses import dataclass
from pathlib import Path


class TlsError(Exception):
    """The files cannot be used; the message names the flag and the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: the server's chain, leaf first, its unencrypted key, and the authorities of clients.

    Attributes:
        cacert: None: clients need no certificate.
        prefix: Of the flags that name the files, as in `--remote-write-cert`.
    """

    cert: Path
    key: Path
    cacert: Path | None
    prefix: str = ""

    def read(self) -> tuple[bytes, bytes, bytes]:
        """The contents of all three; nothing in place of an absent `cacert`. Raises TlsError."""
        return self._content("cert", self.cert), self._content("key", self.key), self._content("cacert", self.cacert)

    def shown(self, name: str) -> str:
        """A file in messages: its flag and its path."""
        return f"--{self.prefix}{name} {getattr(self, name)}"

    def _content(self, name: str, path: Path | None) -> bytes:
        try:
            return b"" if path is None else path.read_bytes()
        except OSError as error:
            raise TlsError(f"{self.shown(name)}: {error.strerror}") from error
