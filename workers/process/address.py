"""An address to listen on."""

from dataclasses import dataclass
from ipaddress import ip_address


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine, or this pod, can reach the address."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """The address of `127.0.0.1:9001`, `[::1]:9001` or `:9001` (every interface). Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("expected HOST:PORT with a port from 0 to 65535")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("an IPv6 address must be in brackets: [::1]:9001")
        if any(character.isspace() or character == "/" for character in host):
            raise ValueError("expected HOST:PORT, not a URL")
        return cls(host or "0.0.0.0", int(port))  # noqa: S104 - `:PORT` means every interface
