"""What a user says of sources beyond their addresses: which series a metric is, and how a server is talked to.

The words for talking to a server are those of Prometheus' own configuration files (`basic_auth`, `authorization`,
`tls_config`), so that a block can be copied from one.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from tas.errors import InvalidInputError
from tas.names import is_metric_name
from tas.sources.series import LabelName, Mappings, MetricMapping

T = TypeVar("T")

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
_Secret = Annotated[str, msgspec.Meta(max_length=4096)]


class BasicAuth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name and a password, the latter perhaps in a file that is read each time."""

    username: _Text
    password: _Secret = ""
    password_file: _Text | None = None

    def __post_init__(self) -> None:
        if ":" in self.username:
            raise ValueError("username must not hold a colon (RFC 7617)")
        if self.password and self.password_file:
            raise ValueError("password must not stand beside password_file")


class Authorization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header `Authorization`: a type and credentials, perhaps in a file that is read each time."""

    type: _Text = "Bearer"
    credentials: _Secret = ""
    credentials_file: _Text | None = None

    def __post_init__(self) -> None:
        if bool(self.credentials) == bool(self.credentials_file):
            raise ValueError("either credentials or credentials_file must be given")


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which server is trusted, and who we are to it. Without `ca_file` the system's authorities are trusted."""

    ca_file: _Text | None = None
    cert_file: _Text | None = None
    key_file: _Text | None = None
    server_name: _Text | None = None
    insecure_skip_verify: bool = False

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file must be given together")


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one source is talked to."""

    basic_auth: BasicAuth | None = None
    authorization: Authorization | None = None
    tls_config: TlsConfig | None = None

    def __post_init__(self) -> None:
        if self.basic_auth is not None and self.authorization is not None:
            raise ValueError("authorization must not stand beside basic_auth")


class SourceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that a user said; `http` by the name of the source."""

    mappings: Mappings = Mappings()
    http: Mapping[str, HttpConfig] = {}


class SourceConfigError(ValueError):
    """A configuration that cannot be, with what is wrong in each part of it."""

    def __init__(self, mistakes: tuple[InvalidInputError, ...]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = mistakes


def parse_source_config(origin: str, document: object, *, sources: Collection[str]) -> SourceConfig:
    """The configuration that a document means, as decoded from YAML.

    `origin` is what its user calls it, `sources` are the names of those that run: only they can be told how to ask.

    Raises:
        SourceConfigError: naming the first mistake of each entry by its field.
    """
    reader = _Reader(origin)
    fields = reader.known(document, ("metrics", "node_label", "sources"))
    label = fields.get("node_label")
    no_source = f"is no source that is asked: must be one of {', '.join(sorted(sources))}"
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
    """Takes values for what they should be, and keeps what is wrong with those that are not."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self.mistakes: list[InvalidInputError] = []

    def known(self, document: object, names: tuple[str, ...]) -> dict[str, Any]:
        """The document's fields; an unknown one is a mistake: it would do nothing, and nobody would see."""
        if document is None:
            return {}
        told = ", ".join(names)
        if not isinstance(document, dict):
            self._mistake("document", document, f"must be an object with the fields {told}")
            return {}
        for name in document.keys() - set(names):
            self._mistake(name, document[name], f"is not known: must be one of {told}")
        return document

    def entries(
        self, field: str, value: object, kind: type[T], is_name: Callable[[str], bool], otherwise: str
    ) -> Iterator[tuple[str, T]]:
        """The entries of an object, each read for itself."""
        if value is None:
            return
        if not isinstance(value, dict):
            self._mistake(field, value, "must be an object")
            return
        for name, entry in value.items():
            if not is_name(name):
                self._mistake(field, name, otherwise)
            elif (read := self.converted(f"{field}.{name}", entry, kind)) is not None:
                yield name, read

    def converted(self, field: str, value: object, kind: Any) -> Any:
        """`value` as a `kind`, or None after it was found wrong."""
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
    """What stands at a path such as `.tls_config.ca_file`; never a secret."""
    for name in re.findall(r"\.(\w+)", path):
        if name in ("password", "credentials"):
            return "a secret"
        value = value.get(name) if isinstance(value, dict) else value
    if isinstance(value, dict):
        return f"an object of {', '.join(sorted(map(str, value)))}"
    return value
