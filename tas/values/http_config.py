"""The HTTP settings of one server, with the names of Prometheus configuration files.

So a block (`basic_auth`, `authorization`, `tls_config`) can be copied from such a file.
"""

from typing import Annotated

import msgspec

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
_Secret = Annotated[str, msgspec.Meta(max_length=4096)]


class BasicAuth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name and a password; `password_file` is read for each request."""

    username: _Text
    password: _Secret = ""
    password_file: _Text | None = None

    def __post_init__(self) -> None:
        if ":" in self.username:
            raise ValueError("username must not contain a colon (RFC 7617)")
        if self.password and self.password_file:
            raise ValueError("password and password_file must not both be given")


class Authorization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header `Authorization`: a type and credentials; `credentials_file` is read for each request."""

    type: _Text = "Bearer"
    credentials: _Secret = ""
    credentials_file: _Text | None = None

    def __post_init__(self) -> None:
        if bool(self.credentials) == bool(self.credentials_file):
            raise ValueError("exactly one of credentials and credentials_file must be given")


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The certificates of a connection: `ca_file` verifies the server (default: the system's authorities)."""

    ca_file: _Text | None = None
    cert_file: _Text | None = None
    key_file: _Text | None = None
    server_name: _Text | None = None
    insecure_skip_verify: bool = False

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file must be given together")


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP settings of one server: a source or a sink."""

    basic_auth: BasicAuth | None = None
    authorization: Authorization | None = None
    tls_config: TlsConfig | None = None

    def __post_init__(self) -> None:
        if self.basic_auth is not None and self.authorization is not None:
            raise ValueError("authorization and basic_auth must not both be given")
