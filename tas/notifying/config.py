"""The settings of sinks: the file of `tas run notify --sinks`. It belongs to the operator, never to a policy."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from tas.errors import shortened
from tas.events.event import Event
from tas.notifying.notices import KINDS, is_about, kind_of
from tas.values.document import DocumentReader
from tas.values.duration import parse_duration
from tas.values.http_config import HttpConfig
from tas.values.names import is_source_name

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
_NOT_EMPTY = msgspec.Meta(min_length=1)
"""Of a list that selects events: an empty one would select none, for ever."""

_Kinds = Annotated[tuple[str, ...], _NOT_EMPTY] | None
"""The kinds of events that a sink gets; None: those of `DEFAULT_KINDS`, for CloudEvents all."""

_PolicyName = Annotated[str, msgspec.Meta(pattern="^[a-z0-9-]+/[a-z0-9.-]+$")]
_Policies = Annotated[tuple[_PolicyName, ...], _NOT_EMPTY] | None
"""The policies whose events a sink gets, as `namespace/name`; None: all. See `is_about`."""

_LabelName = Annotated[str, msgspec.Meta(pattern="^[a-zA-Z_][a-zA-Z0-9_]{0,99}$")]

_URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[1-9][0-9]{0,4})?(?:[/?][!-~]*)?")

MAX_SINKS = 32
"""So many durable consumers of EVENTS may the credentials of `notify` create."""

DEFAULT_KINDS = frozenset({"violation", "metric", "source", "policy", "breaker", "pause", "gap"})
"""The kinds of events that a sink gets if its settings name none. A sink for CloudEvents gets all."""


class KubernetesEventsConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="kubernetes-events"
):
    """Kubernetes Events on nodes and policies; those of policies are grouped."""

    events: _Kinds = None
    policies: _Policies = None
    wait: str = "10s"
    interval: str = "1m"

    def __post_init__(self) -> None:
        _check_kinds(self.events)
        _check_grouping(self.wait, self.interval)


class HttpSinkConfig(HttpConfig, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """A sink that is sent requests over HTTP, each within `timeout`."""

    events: _Kinds = None
    policies: _Policies = None
    timeout: str = "10s"

    def __post_init__(self) -> None:
        HttpConfig.__post_init__(self)
        _check_kinds(self.events)
        _seconds("timeout", self.timeout, least=0.1, most=120)

    @property
    def timeout_seconds(self) -> float:
        """The time limit of one request."""
        return parse_duration(self.timeout)


class AlertmanagerConfig(HttpSinkConfig, frozen=True, kw_only=True, tag="alertmanager"):
    """Every Alertmanager of `urls` gets every alert, as Alertmanager asks of its clients (no load balancing)."""

    urls: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1, max_length=16)]
    resend: str = "1m"
    labels: Mapping[_LabelName, _Text] = {}

    def __post_init__(self) -> None:
        HttpSinkConfig.__post_init__(self)
        for url in self.urls:
            _check_url("urls", url)
        _seconds("resend", self.resend, least=1, most=3600)

    @property
    def resend_seconds(self) -> float:
        """After how long an alert that fires is sent again."""
        return parse_duration(self.resend)


class CloudEventsConfig(HttpSinkConfig, frozen=True, kw_only=True, tag="cloudevents"):
    """CloudEvents over HTTP, one request for each event, signed with the secret of `secret_file`."""

    url: _Text
    secret_file: _Text | None = None

    def __post_init__(self) -> None:
        HttpSinkConfig.__post_init__(self)
        _check_url("url", self.url)


class ChatConfig(HttpSinkConfig, frozen=True, kw_only=True, tag="chat"):
    """A chat: a JSON object with the message in the field `field`. The URL is a secret, so a file may hold it."""

    url: _Text | None = None
    url_file: _Text | None = None
    field: _Text = "text"
    wait: str = "10s"
    interval: str = "1m"

    def __post_init__(self) -> None:
        HttpSinkConfig.__post_init__(self)
        if (self.url is None) == (self.url_file is None):
            raise ValueError("exactly one of url and url_file must be given")
        if self.url is not None:
            _check_url("url", self.url)
        _check_grouping(self.wait, self.interval)


SinkConfig = KubernetesEventsConfig | AlertmanagerConfig | CloudEventsConfig | ChatConfig


def admits(config: SinkConfig, event: Event) -> bool:
    """Whether a sink gets an event, by its kind and its policy. A sink without `policies` gets those of all policies.

    Events that only restate what is (`resync`) are for receivers that know the mark, and for alerts, which continue.
    """
    if event.resync and not isinstance(config, AlertmanagerConfig | CloudEventsConfig):
        return False
    kind = kind_of(event)
    if config.events is not None:
        if kind not in config.events:
            return False
    elif kind not in DEFAULT_KINDS and not isinstance(config, CloudEventsConfig):
        return False
    return config.policies is None or is_about(event, config.policies)


def parse_sinks(origin: str, document: object) -> dict[str, SinkConfig]:
    """The sinks in a document, as decoded from YAML, by name. `origin` is the name of the document in errors.

    Raises DocumentError with the first mistake of each sink. A document without a sink is a mistake.
    """
    reader = DocumentReader(origin)
    fields = reader.known(document, ("sinks",))
    otherwise = "must be of a-z, 0-9 and -, at most 63"
    value: Any = fields.get("sinks")
    kind: Any = SinkConfig  # `msgspec.convert` takes a union, too
    sinks: dict[str, SinkConfig] = dict(reader.entries("sinks", value, kind, is_source_name, otherwise))
    if len(sinks) > MAX_SINKS:
        reader.add_mistake("sinks", f"{len(sinks)} sinks", f"must have at most {MAX_SINKS}")
    if not sinks and not reader.mistakes:
        reader.add_mistake("sinks", value, "must have at least one sink")
    reader.finish()
    return sinks


def is_sink_url(url: str) -> bool:
    """Whether a sink can have this URL: of http or https, with a host, and without a user name and a fragment."""
    return _URL.fullmatch(url) is not None and "#" not in url


def _check_url(field: str, url: str) -> None:
    if not is_sink_url(url):
        # Not quoted: it may hold a secret.
        raise ValueError(f"{field} must be a URL such as https://HOST/PATH, without a user name")


def _check_kinds(kinds: _Kinds) -> None:
    for kind in kinds or ():
        if kind not in KINDS:
            raise ValueError(f"events must be of {', '.join(sorted(KINDS))}, not {shortened(kind)}")


def _check_grouping(wait: str, interval: str) -> None:
    _seconds("wait", wait, least=0, most=3600)
    _seconds("interval", interval, least=0, most=24 * 3600)


def _seconds(field: str, text: str, *, least: float, most: float) -> None:
    seconds = parse_duration(text)
    if not least <= seconds <= most:
        raise ValueError(f"{field} must be from {least:g}s to {most:g}s, not {text}")
