"""Every setting of the product: flag, environment variable, default, unit and meaning.

The options of the commands, their `--help` and `docs/reference/settings.md` are made from the fields of `Settings`.
"""

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from tas.enforcing.label_rate import ALL_RATE, POLICY_RATE, Rate
from tas.enforcing.limits import ALL_DEFAULT, IN_FLIGHT_SECONDS, POLICY_DEFAULT, DefaultLimit
from tas.gpu.card_score import CardScore
from tas.gpu.names import RESOURCE_PREFIX
from tas.policy.policy import MAX_BREAKER_NODES
from tas.samples.freshness import DEFAULT_STALE_AFTER
from tas.samples.sample import MAX_SAMPLE_AGE
from tas.sources.annotations import NAMES as ANNOTATIONS
from tas.sources.tables import Publish
from tas.values.duration import DurationError, parse_duration
from tas.values.names import is_label_name, is_metric_name, is_subdomain
from tas.values.quantity import NANO, QuantityError, parse_quantity
from workers.http.address import Address
from workers.http.limits import IDLE_SECONDS, MAX_CONNECTIONS
from workers.process.log_form import LogFormat, LogLevel
from workers.samples.source_spec import SourceSpec, parse_sources

if TYPE_CHECKING:
    from tas.gpu.claim import Options


def node_name(hostname: str) -> str:
    """`hostname` as a valid node name: lower case, with `-` for characters that node names cannot have."""
    labels = (re.sub(r"[^a-z0-9-]+", "-", label).strip("-") for label in hostname.lower().split("."))
    name = ".".join(label for label in labels if label)[:253].rstrip("-.")
    return name if is_subdomain(name) else "localhost"


def own_node_name() -> str:
    """The node name of this machine."""
    return node_name(socket.gethostname())


EMBEDDED = "embedded"
IN_CLUSTER = "in-cluster"
OFF = "off"
DEFAULT_URL = "nats://127.0.0.1:4222"
EMBEDDED_PORT = 4222


class UnknownPolicy(StrEnum):
    """The extender's answer for a pod whose policy does not exist."""

    PASS = "pass"  # noqa: S105 - a value of a flag, no secret
    ERROR = "error"


class FailedNodes(StrEnum):
    """The field of the extender's answer that lists rejected nodes."""

    UNRESOLVABLE = "unresolvable"
    RESOLVABLE = "resolvable"


class Mistake(NamedTuple):
    """A setting, its value, and why the value is invalid."""

    setting: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.setting} = {self.value}: {self.reason}" if self.value else f"{self.setting}: {self.reason}"


class SettingsError(Exception):
    """Invalid settings, with all mistakes."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        self.mistakes = mistakes
        super().__init__("; ".join(map(str, mistakes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting's flag, variable, help and defaults.

    `form` is the shape of a value, with its unit. `default` is text as a user would write it; where it is None,
    `default_text` describes the default. `default_of` has the defaults of single commands. `parse` raises ValueError
    with the reason. A `repeated` flag may be given several times, which is the same as its values separated by commas.

    In `Settings` a field names only those `commands` and their defaults that run no single worker: `every_setting` adds
    those of the workers that take the setting by `workers/registry.py` (`cli/loading.py`).
    """

    group: str
    form: str
    help: str
    parse: Callable[[str], Any]
    default: str | None = None
    repeated: bool = False
    default_text: str = ""
    commands: tuple[str, ...] = ()
    default_of: Mapping[str, str] = field(default_factory=dict)

    def default_for(self, command: str) -> str | None:
        """The default of a command, as a user would write it."""
        return self.default_of.get(command, self.default)

    def shown_default(self, command: str) -> str:
        """The default of a command, as help and documentation show it."""
        return self.default_for(command) or self.default_text


def flag(name: str) -> str:
    """The flag of the setting `name`."""
    return f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    """The environment variable of the setting `name`."""
    return f"TAS_{name.upper()}"


_STARTS_BUS = ("run all", "run bus", "up")
_QUERIES = (
    "dismiss",
    "doctor",
    "events",
    "explain",
    "get",
    "pause",
    "policy impact",
    "publish",
    "release",
    "reset",
    "resume",
    "status",
    "support",
    "top",
    "trace",
)
_SHOWS_CREDENTIALS = ("bus check", "bus mend", "bus revoke", "demo", "up", *_QUERIES)


def _addresses(text: str) -> str:
    if text == EMBEDDED:
        return text
    for server in text.split(","):
        try:
            parts = urlsplit(server.strip())
            valid = parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(f"must be {EMBEDDED}, or addresses such as {DEFAULT_URL}, separated by commas")
    return text


def _duration(*, least: float = 0.0, most: float | None = None) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            seconds = parse_duration(text)
        except DurationError:
            raise ValueError("must be a duration such as 90s, 2m or 1h30m") from None
        if seconds <= 0 or seconds < least:
            raise ValueError(f"must be at least {least:g}s" if least else "must be more than 0s")
        if most is not None and seconds > most:
            raise ValueError(f"must be at most {most / 3600:g}h")
        return seconds

    return parse


def _bytes(text: str) -> int:
    try:
        size = parse_quantity(text.removesuffix("B"))
    except QuantityError:
        raise ValueError("must be a size in bytes such as 1048576, 64MiB or 1GiB") from None
    if size < NANO or size % NANO:
        raise ValueError("must be a whole number of bytes, at least 1")
    return size // NANO


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise ValueError("must be a port from 1 to 65535")
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError("must be on or off")
    return text == "on"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise ValueError("must be a whole number from 0 to 999999999999")
    return int(text)


def _limit(text: str) -> DefaultLimit | None:
    if text == OFF:
        return None
    found = re.fullmatch(r"([0-9]{1,3})%,([0-9]{1,4})", text)
    if found is None or int(found[1]) > 100 or not 1 <= int(found[2]) <= MAX_BREAKER_NODES:
        raise ValueError(
            f"must be {OFF}, or a percentage and a number of nodes from 1 to {MAX_BREAKER_NODES}, such as 30%,10"
        )
    return DefaultLimit(percent=int(found[1]), nodes=int(found[2]))


def _rate(text: str) -> Rate | None:
    if text == OFF:
        return None
    found = re.fullmatch(r"([0-9]{1,6}),([0-9]{1,6})", text)
    if found is None or not (rate := Rate(int(found[1]), int(found[2]))).per_minute or not rate.burst:
        raise ValueError(f"must be {OFF}, or nodes a minute and nodes at once from 1 to 999999, such as {POLICY_RATE}")
    return rate


def _connections(text: str) -> int:
    if not 0 < (count := _count(text)) <= 100_000:
        raise ValueError("must be a whole number from 1 to 100000")
    return count


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("must be names separated by commas, none of them empty")
    return names


def _gpu_resource(text: str) -> str:
    name = text.removeprefix(RESOURCE_PREFIX)
    if not is_label_name(name):
        raise ValueError(f"must be the name of a resource after {RESOURCE_PREFIX}, such as tiles")
    return RESOURCE_PREFIX + name


def _all(is_valid: Callable[[str], bool], reason: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = _names(text)
        if not all(map(is_valid, names)):
            raise ValueError(reason)
        return names

    return parse


_metric_names = _all(is_metric_name, "must be names of metrics, of letters, digits, _, - and :, separated by commas")


def _annotation_prefix(text: str) -> str:
    domain = text.removesuffix("/")
    if text and not (is_subdomain(domain) and text.endswith("/")):
        raise ValueError("must be a lowercase DNS subdomain (RFC 1123) with a / after it, such as example.com/")
    return text


def _or_zero(parse: Callable[[str], float]) -> Callable[[str], float]:
    return lambda text: 0.0 if text in ("0", "0s") else parse(text)


def _replicas(text: str) -> int:
    if text not in ("1", "3", "5"):
        raise ValueError("must be 1, 3 or 5")
    return int(text)


def _subdomain(what: str = "") -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not is_subdomain(text):
            raise ValueError(f"must be {what}a lowercase DNS subdomain (RFC 1123)")
        return text

    return parse


class _Value(NamedTuple):
    """The shape of a value, what reads it, and its default unless a setting has another one."""

    form: str
    parse: Callable[[str], Any]
    default: str | None = None
    default_text: str = ""


def _one_of(default: StrEnum) -> _Value:
    """A member of an enumeration."""
    kind = type(default)

    def parse(text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            *most, last = kind
            raise ValueError(f"must be {', '.join(most)} or {last}") from None

    return _Value("|".join(kind), parse, default.value)


_FILE = _Value("FILE", Path, default_text="none")
_SWITCH = _Value("on|off", _switch, "off")


def _setting(group: str, value: _Value, text: str, **more: Any) -> Any:
    described = {"group": group, "help": text} | value._asdict() | more
    return field(metadata={"setting": Setting(**described)})


_bus = partial(_setting, "The bus")
_cluster = partial(_setting, "The cluster")
_source = partial(_setting, "Sources")
_event = partial(_setting, "Events")
_extender = partial(_setting, "The extender")
_https = partial(_setting, "HTTPS")
_extension = partial(_setting, "Extensions")
_agent = partial(_setting, "Agents")
_gpu = partial(_setting, "GPU cards")
_process = partial(_setting, "Health and logs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process. Durations are in seconds, sizes in bytes.

    A setting that the command does not use has its default. None: the default is determined at the start.
    """

    bus: str | None = _bus(
        _Value(
            f"{EMBEDDED}|nats://HOST:PORT",
            _addresses,
            default_text=f"the embedded server that this user runs, else {DEFAULT_URL}",
        ),
        "The addresses of the servers of one NATS cluster, separated by commas. With `embedded`, `run all` "
        "and `up` start a server; the other commands use the embedded server that this user already runs.",
        commands=("bus url", *_SHOWS_CREDENTIALS),
        default_of={"run all": EMBEDDED, "up": EMBEDDED},
    )
    store: Path | None = _bus(
        _Value("DIR", Path, default_text="a temporary directory, deleted at the end"),
        "The directory of the embedded server's files. All of them can be rebuilt, and may be deleted.",
        commands=_STARTS_BUS,
    )
    embedded_port: int | None = _bus(
        _Value("PORT", _port, default_text=f"{EMBEDDED_PORT}, or any free port if that is in use"),
        "The port of the embedded server on 127.0.0.1.",
        commands=_STARTS_BUS,
    )
    bus_credentials: Path | None = _bus(
        _FILE,
        "The credentials of this process on the bus (.creds): the JWT and the key of its user. These files of the "
        "bus are read again when they change.",
        commands=_SHOWS_CREDENTIALS,
    )
    bus_token: Path | None = _bus(
        _FILE,
        "The token that the bus demands, in one line. The embedded server of this user gets its token without this.",
        commands=("bus url", *_SHOWS_CREDENTIALS),
    )
    bus_cacert: Path | None = _bus(
        _FILE,
        "The CA certificates in PEM, one of which has signed the certificate of the bus. With it a bus without "
        "TLS is refused.",
        default_text="those of the system",
        commands=_SHOWS_CREDENTIALS,
    )
    bus_cert: Path | None = _bus(
        _FILE,
        "The certificate in PEM that this process shows to the bus, followed by the certificates of its issuers. "
        "Give --bus-cert and --bus-key, or none.",
        commands=_SHOWS_CREDENTIALS,
    )
    bus_key: Path | None = _bus(
        _FILE, "The private key of --bus-cert in PEM, not encrypted.", commands=_SHOWS_CREDENTIALS
    )
    replicas: int = _bus(
        _Value("1|3|5", _replicas, "1"),
        "How many servers of the NATS cluster keep a copy of each stream that this process creates.",
        commands=("up",),
    )
    policies: Path | None = _setting(
        "Policies",
        _Value("DIR", Path, default_text="none, must be given; for `run all`: this or --kubeconfig"),
        "The directory of TASPolicy files (*.yaml, *.yml, *.json). A change takes effect when the file is saved.",
        commands=("up",),
    )
    kubeconfig: Path | str | None = _cluster(
        _Value(f"FILE|{IN_CLUSTER}", lambda text: text if text == IN_CLUSTER else Path(text), default_text="none"),
        "The cluster: the current context of a kubeconfig file, or with "
        f"`{IN_CLUSTER}` the service account of this pod. Policies, nodes and pods are read from its API server. "
        "Cannot be combined with --policies. A process reads the file once, but `tokenFile` and the tokens of `exec` "
        "again. `demo` uses a cluster where `run all` is already running.",
        commands=("demo", "doctor", "support"),
    )
    overwrite_labels: tuple[str, ...] | None = _cluster(
        _Value(
            "KEY,...",
            _all(is_label_name, "must be label keys without a prefix, separated by commas"),
            default_text="none",
        ),
        "Names of policies with `deschedule` whose label may replace a value that somebody else has set. Without "
        "this such a value stays, and the node does not get the label. The replaced value is lost.",
    )
    breaker: DefaultLimit | None = _cluster(
        _Value(f"{OFF}|PERCENT%,NODES", _limit, str(POLICY_DEFAULT)),
        "How many nodes may have labels of one policy at a time, for policies without `breaker`: PERCENT of the "
        "nodes that the policy selects, but NODES are always allowed. Before one node too many the breaker trips.",
        commands=("policy impact",),
    )
    breaker_all: DefaultLimit | None = _cluster(
        _Value(f"{OFF}|PERCENT%,NODES", _limit, str(ALL_DEFAULT)),
        "How many nodes may have labels of any policy at a time: PERCENT of all nodes, but NODES are always allowed.",
        commands=("policy impact",),
    )
    label_rate: Rate | None = _cluster(
        _Value(f"{OFF}|NODES,BURST", _rate, str(POLICY_RATE)),
        "How many nodes may get their first label of one policy in a minute, and how many of these at once. The "
        "others wait. Labels are removed without delay.",
    )
    label_rate_all: Rate | None = _cluster(
        _Value(f"{OFF}|NODES,BURST", _rate, str(ALL_RATE)), "The same over all policies together."
    )
    flap_budget: int = _cluster(
        _Value("NUMBER", _count, "20"),
        "How often the labels of one policy on one node may change within 5 minutes. Further changes wait. With 0 "
        "there is no limit.",
    )
    new_bus_wait: float = _cluster(
        _Value("DURATION", _or_zero(_duration()), f"{IN_FLIGHT_SECONDS:g}s"),
        "While the bus is younger than this, no node gets its first label, and no pod a GPU card. The bus may "
        "have been wiped, and what was decided before the wipe may still be on its way to the API server. With 0s "
        "nobody else can have sent anything.",
    )
    node_resource: int = _cluster(
        _Value("NUMBER", _count, "0"),
        "How many units of the resource `telemetry/scheduling` each node offers. With 0 the resource of the "
        "nodes is not read and not changed.",
    )
    source: tuple[SourceSpec, ...] | None = _source(
        _Value(
            "[NAME:]KIND[=ADDRESS]",
            parse_sources,
            default_text="`custom-metrics`; `run all`: with --kubeconfig, else none",
        ),
        "A source of the metrics that policies use. `custom-metrics`, `metrics-server` and "
        "`prometheus=http://HOST:PORT` are polled; `remote-write=HOST:PORT` receives from Prometheus. May be given "
        "several times. The source is called NAME, else KIND; the second source of a kind is called `KIND-2`.",
        repeated=True,
    )
    source_config: Path | None = _source(
        _FILE, "For sources of Prometheus: the query of each metric, and the label that contains the node's name."
    )
    metrics: tuple[str, ...] | None = _source(
        _Value("METRIC,...", _metric_names, default_text="none"),
        "Metrics that are collected although no policy uses them, for agents, extensions and subscribers. "
        "Also statistics of windows, such as `cpu:p95:5m`: give the same list to `collect` and `windows`.",
    )
    remote_write_cert: Path | None = _source(
        _FILE,
        "The certificate of the receivers of remote write in PEM, followed by the certificates of its issuers. "
        "With --remote-write-cert and --remote-write-key they receive by HTTPS; give both or none. The files are read "
        "again when they change.",
        default_text="none, plain HTTP",
    )
    remote_write_key: Path | None = _source(
        _FILE, "The private key of --remote-write-cert in PEM, not encrypted.", default_text="none, plain HTTP"
    )
    remote_write_token: Path | None = _source(
        _FILE,
        "The bearer tokens of the senders of remote write, one on each line. The file is read again when it changes.",
        default_text="none, every sender may write",
    )
    period: float = _source(
        _Value("DURATION", _duration(least=0.1), "1s"),
        "How often each source is polled, or this machine's telemetry is published; at least 100ms.",
        commands=("up",),
    )
    publish: Publish = _source(
        _one_of(Publish.TABLES),
        "The form in which samples of many nodes are published: tables, one message for up to 1,000 nodes, or "
        "nodes, one message for each node, as long as a worker of a version before tables runs. Where the bus takes no "
        "tables, samples are published by node.",
    )
    sinks: Path | None = _event(
        _FILE,
        "Where events go: Kubernetes Events, Alertmanager, CloudEvents over HTTP, a chat. The file is checked "
        "as a whole. A change takes effect when the file is saved. With it `run all` also runs notify.",
        default_text="none; `run notify`: must be given",
    )
    cluster_name: str | None = _event(
        _Value("NAME", _subdomain(), default_text="none"),
        "The name of the cluster: the end of the attribute `source` of its events, the label `cluster` of alerts, "
        "and the first line of messages to a chat. So a place to which several clusters send can tell them apart. All "
        "workers of a cluster need the same name.",
        commands=("up",),
    )
    listen: Address = _extender(
        _Value("HOST:PORT", Address.parse, "127.0.0.1:9001"),
        "The address at which the extender answers kube-scheduler. `:PORT` is every interface, of IPv4 and IPv6.",
        commands=("demo", "doctor", "support", "up"),
    )
    stale_after: float = _extender(
        _Value("DURATION", _duration(most=MAX_SAMPLE_AGE), f"{DEFAULT_STALE_AFTER / 60:g}m"),
        "How old a sample may be before its value is unknown, for policies without `staleAfter`; at most 1h.",
        commands=("up", "doctor", "explain", "policy impact", "status", "support", "top", "trace"),
    )
    max_body: int = _extender(
        _Value("BYTES", _bytes, "64MiB"),
        "The largest request that the extender reads. 5,000 full nodes are about 35 to 50 MB.",
        commands=("up",),
    )
    unknown_policy: UnknownPolicy = _extender(
        _one_of(UnknownPolicy.PASS),
        "The answer for a pod whose policy does not exist: all nodes pass, or an error.",
        commands=("up",),
    )
    failed_nodes: FailedNodes = _extender(
        _one_of(FailedNodes.UNRESOLVABLE),
        "The list of rejected nodes in the answer: FailedAndUnresolvableNodes, since evicting pods cannot "
        "help, or FailedNodes, which lets the scheduler try preemption.",
        commands=("up",),
    )
    share_listen: bool = _extender(
        _SWITCH,
        "Whether several replicas on this machine listen at the same address. The system spreads connections "
        "over the replicas that are ready. A replica that ends leaves the port to the others. All replicas "
        "need `on`.",
    )
    debug_explain: bool = _extender(
        _SWITCH,
        "Whether /debug/explain is also answered at --listen. It is always answered at --health-listen.",
        commands=("up",),
    )
    prometheus_query: bool = _extender(
        _SWITCH,
        "Whether /api/v1/query is answered at --health-listen, as Prometheus answers it: each node's fresh value "
        "of a metric.",
        commands=("up",),
    )
    extender_health: Address = _extender(
        _Value("HOST:PORT", Address.parse, "127.0.0.1:9002"),
        "The --health-listen address of a running extender, which reports its last answers.",
        commands=("demo", "doctor", "explain", "support", "top"),
    )
    max_connections: int = _extender(
        _Value("NUMBER", _connections, str(MAX_CONNECTIONS)),
        "How many connections may be open. If there are more, the address with most connections loses one: the "
        "oldest connection without an answer so far, also in the middle of a request, else the connection whose last "
        "answer is oldest. A complete request is dropped only for an address with fewer connections.",
        commands=("up",),
    )
    idle_timeout: float = _extender(
        _Value("DURATION", _duration(least=1.0), f"{IDLE_SECONDS / 60:g}m"),
        "How long a connection may be idle. kube-scheduler closes its own after 90s, and should be first.",
        commands=("up",),
    )
    cert: Path | None = _https(
        _FILE,
        "The extender's certificate in PEM, followed by the certificates of its issuers. With --cert, --key "
        "and --cacert the extender answers by HTTPS, only to clients with a certificate; give all three or none. "
        "The files are read again when they change.",
        default_text="none, plain HTTP",
    )
    key: Path | None = _https(
        _FILE, "The private key of --cert in PEM, not encrypted.", default_text="none, plain HTTP"
    )
    cacert: Path | None = _https(
        _FILE,
        "The CA certificates in PEM that must have signed the clients' certificates. "
        "A certificate that is deleted from the file no longer counts, also for open connections.",
        default_text="none, plain HTTP",
    )
    client_names: tuple[str, ...] | None = _https(
        _Value("NAME,...", _names, default_text="all clients with a certificate signed by --cacert"),
        "Which clients may send requests: those whose certificate has one of these as its common name or as "
        "an alternative name.",
    )
    only: str | None = _extension(
        _Value("NAME", str, default_text="telemetry, and every installed extension that does not bind"),
        "Serve only this extension, or only `telemetry`. An extension that binds can only be served so.",
    )
    extension_timeout: float = _extension(
        _Value("DURATION", _duration(), "1s"),
        "How long a call of an extension may take before it times out. Keep this below the scheduler's httpTimeout.",
        commands=("up",),
    )
    agents: Path | None = _agent(
        _FILE,
        "Which agents run, under which names and with which options. The file is checked as a whole. A change "
        "takes effect when the file is saved.",
        default_text="none, every agent of the product with its default options",
    )
    card_score: CardScore = _gpu(
        _one_of(CardScore.PACK),
        "By what nodes are scored for pods with GPU cards: fuller nodes first, emptier nodes first, or only "
        "preferred cards. Preferred cards count always.",
    )
    balanced_resource: str | None = _gpu(
        _Value("NAME", _gpu_resource, default_text="none"),
        "The resource, such as `tiles`, of which all cards of a node are to have about the same amount in use. "
        "Without this, cards are filled one after another.",
        commands=("explain",),
    )
    allowlist: bool = _gpu(
        _SWITCH,
        "Whether the annotation `gas-allow` of a pod counts: the only cards that it may use.",
        commands=("explain",),
    )
    denylist: bool = _gpu(
        _SWITCH,
        "Whether the annotation `gas-deny` of a pod counts: the cards that it must not use.",
        commands=("explain",),
    )
    one_start: bool = _gpu(
        _SWITCH,
        "Whether a node gets its next pod with GPU cards only when the last one has started. The device plugin "
        "gives cards in the order of `gas-ts`, and with `off` kubelet may start the pods in another order.",
    )
    card_metrics: int = _gpu(
        _Value("NUMBER", _count, "100"),
        "For at most so many nodes with GPU cards there are metrics of each card. For more nodes there are only "
        "the totals.",
    )
    cards: bool = _gpu(
        _SWITCH,
        "Whether the GPU cards of nodes, and who has them, are stored on the bus. `off`: where only "
        "`--allocations`, `--outcomes` or `--annotations` is needed.",
        default="on",
    )
    allocations: bool = _agent(
        _SWITCH,
        "Whether the requests and limits of the pods on each node are stored on the bus, for agents. `off`: those of "
        "before are deleted.",
    )
    outcomes: bool = _agent(
        _SWITCH,
        "Whether it is stored on the bus where pods are placed and how their containers end, for agents that learn.",
    )
    annotations: bool = _agent(
        _SWITCH,
        "Whether numbers in annotations of nodes become samples of the source `annotations`, for agents and policies.",
    )
    write_annotations: bool = _agent(
        _SWITCH,
        "Whether requests and measured use are written to annotations of nodes, under the names of the original "
        "agents, for extenders of other people. Needs --allocations on.",
    )
    annotation_names: tuple[str, ...] = _agent(
        _Value("NAME,...", _metric_names, ",".join(ANNOTATIONS)),
        "The annotations that are read, without --annotation-prefix: these are the names of the metrics.",
    )
    annotation_prefix: str = _agent(
        _Value("PREFIX", _annotation_prefix, "", default_text="none"),
        "What comes before each name in the annotations of nodes that are read or written, such as `example.com/`.",
    )
    annotation_lifetime: float = _agent(
        _Value("DURATION", _or_zero(_duration(most=86400.0)), "10m"),
        "For how long an annotation that nobody changes counts as at most a minute old; from then on it ages. The "
        "API server does not tell whether the same value was written again. At most 24h.",
    )
    node: str = _setting(
        "This machine",
        _Value("NAME", _subdomain("a node's name: "), own_node_name(), default_text="the host's name"),
        "The name of this machine as a node.",
        commands=("up",),
    )
    health_listen: Address = _process(
        _Value("HOST:PORT", Address.parse, "127.0.0.1:9002"),
        "The address of /healthz, /readyz and /metrics; `:PORT` as for --listen. Each worker has its own default port.",
        commands=("run all", "run bus", "up"),
        default_of={"run bus": "127.0.0.1:9006"},
    )
    wait_for_files: bool = _process(
        _SWITCH,
        "Whether the process waits, and logs that it waits, until its files and folders exist, as in "
        "the Procfile, where another process writes some of them. With `off` a missing file ends it.",
        commands=("run all", "up"),
    )
    log_format: LogFormat = _process(
        _one_of(LogFormat.AUTO),
        "The format of log events on standard error; `auto` is `console` on a terminal, else `json`.",
        commands=("demo", "run all", "run bus", "up"),
    )
    log_level: LogLevel = _process(
        _one_of(LogLevel.INFO),
        "The lowest severity of log events that are written. At `debug`, extender, gpu and agents have a line "
        "for each request. Without this flag these three take `LOG_LEVEL`, with the level names of the originals.",
        commands=("demo", "run all", "run bus", "up"),
        default_of={"demo": LogLevel.ERROR.value},
    )

    @property
    def card_options(self) -> "Options":
        """What counts when cards are chosen."""
        from tas.gpu.claim import Options

        return Options(allowlist=self.allowlist, denylist=self.denylist, balanced=self.balanced_resource or "")
