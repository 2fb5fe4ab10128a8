"""The configuration of sources beyond their addresses: the series of each metric, and the HTTP settings of each server.

The HTTP settings have the names of Prometheus configuration files (`basic_auth`, `authorization`, `tls_config`), so
that a block can be copied from such a file.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from tas.errors import InvalidInputError, Unquoted
from tas.sources.series import LabelName, Mappings, MetricMapping
from tas.values.names import is_metric_name

T = TypeVar("T")

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
    """The HTTP settings of one source."""

    basic_auth: BasicAuth | None = None
    authorization: Authorization | None = None
    tls_config: TlsConfig | None = None

    def __post_init__(self) -> None:
        if self.basic_auth is not None and self.authorization is not None:
            raise ValueError("authorization and basic_auth must not both be given")


class SourceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration; `http` maps the name of a source to its settings."""

    mappings: Mappings = Mappings()
    http: Mapping[str, HttpConfig] = {}


class SourceConfigError(ValueError):
    """An invalid configuration, with one mistake for each wrong entry."""

    def __init__(self, mistakes: tuple[InvalidInputError, ...]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = mistakes


def parse_source_config(origin: str, document: object, *, sources: Collection[str]) -> SourceConfig:
    """The configuration in a document, as decoded from YAML.

    `origin` is the name of the document in errors. `sources` are the names of the running sources that are polled over
    HTTP: only they can have HTTP settings.
    Raises SourceConfigError with the first mistake of each entry, named by its field.
    """
    reader = _Reader(origin)
    fields = reader.known(document, ("metrics", "node_label", "sources"))
    label = fields.get("node_label")
    no_source = f"is not a polled source: must be one of {', '.join(sorted(sources))}"
    config = SourceConfig(
        mappings=Mappings(
            metrics=dict(
                reader.entries(
                    "metrics", fields.get("metrics"), MetricMapping, is_metric_name, "must be a metric's name"
                )
            ),
            node_label=None if label is None else reader.converted("node_label", label, LabelName),
        ),
        http=dict(reader.entries("sources", fields.get("sources"), HttpConfig, sources.__contains__, no_source)),
    )
    if reader.mistakes:
        raise SourceConfigError(tuple(reader.mistakes))
    return config


class _Reader:
    """Converts values to their types, and collects the mistakes of those that are invalid."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self.mistakes: list[InvalidInputError] = []

    def known(self, document: object, names: tuple[str, ...]) -> dict[str, Any]:
        """The document's fields; an unknown field is a mistake, since it would be ignored silently."""
        if document is None:
            return {}
        allowed = ", ".join(names)
        if not isinstance(document, dict):
            self._mistake("document", Unquoted(document), f"must be an object with the fields {allowed}")
            return {}
        for name in document.keys() - set(names):
            self._mistake(name, Unquoted(document[name]), f"is not a known field: must be one of {allowed}")
        return document

    def entries(
        self, field: str, value: object, kind: type[T], is_name: Callable[[str], bool], otherwise: str
    ) -> Iterator[tuple[str, T]]:
        """The valid entries of an object; each other entry is a mistake."""
        if value is None:
            return
        if not isinstance(value, dict):
            self._mistake(field, value, "must be an object")
            return
        for name, entry in value.items():
            if not is_name(name):
                self._mistake(field, name, otherwise)
            elif (converted := self.converted(f"{field}.{name}", entry, kind)) is not None:
                yield name, converted

    def converted(self, field: str, value: object, kind: Any) -> Any:
        """`value` as a `kind`; None, and a mistake, if it is invalid."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `$")
            path = path.removesuffix("`")
            self._mistake(f"{field}{path}", _at(value, path), reason)
            return None

    def _mistake(self, field: str, value: object, reason: str) -> None:
        self.mistakes.append(InvalidInputError(self._origin, field, value, reason))


def _at(value: object, path: str) -> object:
    """The value at a path such as `.tls_config.ca_file`, without secrets."""
    for name in re.findall(r"\.(\w+)", path):
        if name in ("password", "credentials"):
            return "a secret"
        value = value.get(name) if isinstance(value, dict) else value
    if isinstance(value, dict):
        return f"an object of {', '.join(sorted(map(str, value)))}"
    return value
