"""Every setting of the product, written once: flag, environment variable, default, unit and meaning.

`Settings` is the one typed object that a process is configured by. The options of the commands, what `--help` says
and `docs/settings.md` are made from its fields.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints
from urllib.parse import urlsplit

from tas.duration import DurationError, parse_duration
from tas.errors import shortened, without_password
from tas.names import is_subdomain
from tas.quantity import NANO, QuantityError, parse_quantity
from tas.sample import MAX_SAMPLE_AGE
from workers.connections import IDLE_SECONDS, MAX_CONNECTIONS
from workers.logs import LogFormat, LogLevel
from workers.machine import own_node_name
from workers.runtime import Address
from workers.sources.base import OF_KUBERNETES, SourceSpec, parse_sources

EMBEDDED = "embedded"
IN_CLUSTER = "in-cluster"
DEFAULT_URL = "nats://127.0.0.1:4222"
EMBEDDED_PORT = 4222


class UnknownPolicy(StrEnum):
    """What the extender answers for a pod whose policy it does not know."""

    PASS = "pass"  # noqa: S105 - a word of the command line, no secret
    ERROR = "error"


class FailedNodes(StrEnum):
    """Where the extender puts rejected nodes."""

    UNRESOLVABLE = "unresolvable"
    RESOLVABLE = "resolvable"


class Mistake(NamedTuple):
    """What is wrong with one setting."""

    setting: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.setting} = {self.value}: {self.reason}" if self.value else f"{self.setting}: {self.reason}"


class SettingsError(Exception):
    """Settings that cannot be: all mistakes together."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        self.mistakes = mistakes
        super().__init__("; ".join(map(str, mistakes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known of one setting.

    `form` is what a value looks like, with its unit. `default` is text as a user would write it, or None for what
    `default_text` tells; a command may have one of its own in `default_of`. `parse` raises ValueError with the reason.
    A `repeated` flag may be given several times, which is the same as its values separated by commas.
    """

    group: str
    form: str
    help: str
    commands: tuple[str, ...]
    parse: Callable[[str], Any]
    default: str | None
    repeated: bool = False
    default_text: str = ""
    default_of: Mapping[str, str] = field(default_factory=dict)

    def default_for(self, command: str) -> str | None:
        """The default of a command, as a user would write it."""
        return self.default_of.get(command, self.default)

    def told_default(self, command: str) -> str:
        """The default of a command, for a person to read."""
        return self.default_for(command) or self.default_text


def flag(name: str) -> str:
    """The flag of the setting `name`."""
    return f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    """The environment variable of the setting `name`."""
    return f"TAS_{name.upper()}"


RUN = (
    "run all",
    "run bus",
    "run collect",
    "run evaluate",
    "run extender",
    "run labels",
    "run machine",
    "run materialize",
    "run policies",
    "run resources",
    "run watch",
)
"""The commands that run workers, besides `up`."""

_STARTS_BUS = ("run all", "run bus", "up")
_READS_DIRECTORY = ("run all", "run policies", "up")
_ASKS_KUBERNETES = ("demo", "run all", "run collect", "run labels", "run resources", "run watch")
_OFFERS = ("run all", "run resources")
_COLLECTS = ("run all", "run collect")
_ANSWERS = ("run all", "run extender", "up")
_ANSWERS_BY_TLS = ("run all", "run extender")
_JUDGES = ("run evaluate", "run labels", "run watch")
_ASKS = ("explain", "get", "publish", "trace")
_PROCESSES = (*RUN, "up")
_LOGS = ("demo", *_PROCESSES)
_CONNECTS = tuple(command for command in _PROCESSES if command != "run bus")


def _words(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    def parse(text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"must be {_alternatives(kind)}") from None

    return parse


def _alternatives(kind: type[StrEnum]) -> str:
    *most, last = kind
    return f"{', '.join(most)} or {last}"


def _choices(kind: type[StrEnum]) -> str:
    return "|".join(kind)


def _bus(text: str) -> str:
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


def _kubeconfig(text: str) -> Path | str:
    return text if text == IN_CLUSTER else Path(text)


def _path(text: str) -> Path:
    return Path(text)


def _duration(*, least: float = 0.0, most: float | None = None) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            seconds = parse_duration(text)
        except DurationError:
            raise ValueError("must be a duration such as 90s, 2m or 1h30m") from None
        if seconds <= 0 or seconds < least:
            raise ValueError(f"must be at least {least:g}s" if least else "must be more than nothing")
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


def _connections(text: str) -> int:
    if not 0 < (count := _count(text)) <= 100_000:
        raise ValueError("must be a whole number from 1 to 100000")
    return count


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("must be names separated by commas, none of them empty")
    return names


def _replicas(text: str) -> int:
    if text not in ("1", "3", "5"):
        raise ValueError("must be 1, 3 or 5")
    return int(text)


def _node(text: str) -> str:
    if not is_subdomain(text):
        raise ValueError("must be a node's name: a lowercase DNS subdomain (RFC 1123)")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process. Durations are in seconds, sizes in bytes.

    A setting that the command does not use has its default. None stands where the default is found out when starting.
    """

    bus: Annotated[
        str | None,
        Setting(
            group="The bus",
            form=f"{EMBEDDED}|nats://HOST:PORT",
            help="Where NATS is; several servers of one cluster are separated by commas. "
            "`embedded` starts a server of its own (`run all`, `up`), elsewhere it is the one that runs.",
            commands=tuple(sorted((*_CONNECTS, *_ASKS, "demo"))),
            parse=_bus,
            default=None,
            default_text=f"the embedded server that this user runs, else {DEFAULT_URL}",
            default_of={"run all": EMBEDDED, "up": EMBEDDED},
        ),
    ]
    store: Annotated[
        Path | None,
        Setting(
            group="The bus",
            form="DIR",
            help="Where the embedded server keeps its files. What stands there is soft state and may be deleted.",
            commands=_STARTS_BUS,
            parse=_path,
            default=None,
            default_text="a temporary folder, removed at the end",
        ),
    ]
    embedded_port: Annotated[
        int | None,
        Setting(
            group="The bus",
            form="PORT",
            help="Where the embedded server listens, on 127.0.0.1.",
            commands=_STARTS_BUS,
            parse=_port,
            default=None,
            default_text=f"{EMBEDDED_PORT}, or any free one if that is in use",
        ),
    ]
    replicas: Annotated[
        int,
        Setting(
            group="The bus",
            form="1|3|5",
            help="How many servers of the cluster keep a copy of each stream that is created.",
            commands=_CONNECTS,
            parse=_replicas,
            default="1",
        ),
    ]
    policies: Annotated[
        Path | None,
        Setting(
            group="Policies",
            form="DIR",
            help="The directory of TASPolicy files (*.yaml, *.yml, *.json) that is followed.",
            commands=_READS_DIRECTORY,
            parse=_path,
            default=None,
            default_text="none: it must be given; `run all`: or --kubeconfig",
        ),
    ]
    kubeconfig: Annotated[
        Path | str | None,
        Setting(
            group="The cluster",
            form=f"FILE|{IN_CLUSTER}",
            help="The Kubernetes API server, from which policies, nodes and pods are then read: a kubeconfig file's "
            f"current context, or for `{IN_CLUSTER}` the account of the pod that this runs in. Not with --policies. "
            "`demo` plays there, beside the `run all` that is at work.",
            commands=_ASKS_KUBERNETES,
            parse=_kubeconfig,
            default=None,
            default_text="none",
            default_of={
                "run collect": IN_CLUSTER,
                "run labels": IN_CLUSTER,
                "run resources": IN_CLUSTER,
                "run watch": IN_CLUSTER,
            },
        ),
    ]
    node_resource: Annotated[
        int,
        Setting(
            group="The cluster",
            form="NUMBER",
            help="How many of the resource `telemetry/scheduling` each node offers; 0: it is left as it is, and "
            "nodes are not looked at for it.",
            commands=_OFFERS,
            parse=_count,
            default="0",
            default_of={"run resources": "1000"},
        ),
    ]
    source: Annotated[
        tuple[SourceSpec, ...] | None,
        Setting(
            group="Sources",
            form="[NAME:]KIND[=ADDRESS]",
            help="Where metrics of policies are asked for, or written to: `custom-metrics`, `metrics-server`, "
            "`prometheus=http://HOST:PORT`, `remote-write=HOST:PORT`. May be given several times. A rule may name its "
            "source: by NAME, else by KIND, and the second of a kind is `KIND-2`.",
            commands=_COLLECTS,
            parse=parse_sources,
            repeated=True,
            default=None,
            default_text="`custom-metrics`; `run all`: with --kubeconfig, else none",
        ),
    ]
    source_config: Annotated[
        Path | None,
        Setting(
            group="Sources",
            form="FILE",
            help="Which query a metric is for sources of Prometheus, and which label names the node.",
            commands=_COLLECTS,
            parse=_path,
            default=None,
            default_text="none",
        ),
    ]
    period: Annotated[
        float,
        Setting(
            group="Sources",
            form="DURATION",
            help="How often each source is asked, or this machine's telemetry is published; at least 100ms.",
            commands=("run all", "run collect", "run machine", "up"),
            parse=_duration(least=0.1),
            default="1s",
        ),
    ]
    listen: Annotated[
        Address,
        Setting(
            group="The extender",
            form="HOST:PORT",
            help="Where kube-scheduler asks.",
            commands=("demo", *_ANSWERS),
            parse=Address.parse,
            default="127.0.0.1:9001",
        ),
    ]
    stale_after: Annotated[
        float,
        Setting(
            group="The extender",
            form="DURATION",
            help="How old a sample may be before the value is unknown, where a policy does not say; at most 1h.",
            commands=tuple(sorted((*_ANSWERS, *_JUDGES, "explain", "trace"))),
            parse=_duration(most=MAX_SAMPLE_AGE),
            default="2m",
        ),
    ]
    max_body: Annotated[
        int,
        Setting(
            group="The extender",
            form="BYTES",
            help="The largest request that is read. 5,000 full nodes are about 35 to 50 MB.",
            commands=_ANSWERS,
            parse=_bytes,
            default="64MiB",
        ),
    ]
    unknown_policy: Annotated[
        UnknownPolicy,
        Setting(
            group="The extender",
            form=_choices(UnknownPolicy),
            help="What is answered for a pod whose policy does not exist: all nodes pass, or an error.",
            commands=_ANSWERS,
            parse=_words(UnknownPolicy),
            default=UnknownPolicy.PASS.value,
        ),
    ]
    failed_nodes: Annotated[
        FailedNodes,
        Setting(
            group="The extender",
            form=_choices(FailedNodes),
            help="Where rejected nodes go: into FailedAndUnresolvableNodes, since evicting pods cannot help, or into "
            "FailedNodes, which lets the scheduler try preemption.",
            commands=_ANSWERS,
            parse=_words(FailedNodes),
            default=FailedNodes.UNRESOLVABLE.value,
        ),
    ]
    share_listen: Annotated[
        bool,
        Setting(
            group="The extender",
            form="on|off",
            help="Whether further replicas on this machine listen at the same address: the system spreads connections "
            "over those that are ready, and one that ends leaves its port to the others. All of them must say so.",
            commands=("run all", "run extender"),
            parse=_switch,
            default="off",
        ),
    ]
    debug_explain: Annotated[
        bool,
        Setting(
            group="The extender",
            form="on|off",
            help="Whether /debug/explain is answered where kube-scheduler asks, too; on the health port it always is.",
            commands=_ANSWERS,
            parse=_switch,
            default="off",
        ),
    ]
    extender_health: Annotated[
        Address,
        Setting(
            group="The extender",
            form="HOST:PORT",
            help="Where a running extender tells its last answers: its --health-listen.",
            commands=("demo", "explain"),
            parse=Address.parse,
            default="127.0.0.1:9002",
        ),
    ]
    max_connections: Annotated[
        int,
        Setting(
            group="The extender",
            form="NUMBER",
            help="How many connections may be open. Beyond that the oldest that never asked is closed, else the one "
            "idle for longest; if all are busy, the new one.",
            commands=_ANSWERS,
            parse=_connections,
            default=str(MAX_CONNECTIONS),
        ),
    ]
    idle_timeout: Annotated[
        float,
        Setting(
            group="The extender",
            form="DURATION",
            help="How long a connection may idle; kube-scheduler closes its own after 90s, and should be the first.",
            commands=_ANSWERS,
            parse=_duration(least=1.0),
            default=f"{IDLE_SECONDS / 60:g}m",
        ),
    ]
    cert: Annotated[
        Path | None,
        Setting(
            group="HTTPS",
            form="FILE",
            help="The extender's certificate in PEM, with those that it was signed by after it. With this, --key and "
            "--cacert it answers by HTTPS, and only clients with a certificate; all three or none. "
            "The files are read again when they change.",
            commands=_ANSWERS_BY_TLS,
            parse=_path,
            default=None,
            default_text="none: plain HTTP",
        ),
    ]
    key: Annotated[
        Path | None,
        Setting(
            group="HTTPS",
            form="FILE",
            help="The private key of --cert in PEM, not encrypted.",
            commands=_ANSWERS_BY_TLS,
            parse=_path,
            default=None,
            default_text="none: plain HTTP",
        ),
    ]
    cacert: Annotated[
        Path | None,
        Setting(
            group="HTTPS",
            form="FILE",
            help="The certificates in PEM that clients' certificates are to be signed by. "
            "One that is taken out counts no more, also for connections that are open.",
            commands=_ANSWERS_BY_TLS,
            parse=_path,
            default=None,
            default_text="none: plain HTTP",
        ),
    ]
    client_names: Annotated[
        tuple[str, ...] | None,
        Setting(
            group="HTTPS",
            form="NAME,...",
            help="Which clients may ask: one of these is the common name or an alternative name in the certificate.",
            commands=_ANSWERS_BY_TLS,
            parse=_names,
            default=None,
            default_text="whoever --cacert vouches for",
        ),
    ]
    only: Annotated[
        str | None,
        Setting(
            group="Extensions",
            form="NAME",
            help="Serve one extension alone, or `telemetry` alone: the one way for an extension that binds.",
            commands=("run extender",),
            parse=str,
            default=None,
            default_text="telemetry, and every installed extension that does not bind",
        ),
    ]
    extension_timeout: Annotated[
        float,
        Setting(
            group="Extensions",
            form="DURATION",
            help="How long a call of an extension may take before it is cut off; keep it below the scheduler's "
            "httpTimeout.",
            commands=_ANSWERS,
            parse=_duration(),
            default="1s",
        ),
    ]
    node: Annotated[
        str,
        Setting(
            group="This machine",
            form="NAME",
            help="The name of this machine as a node.",
            commands=("run machine", "up"),
            parse=_node,
            default=own_node_name(),
            default_text="the host's name",
        ),
    ]
    health_listen: Annotated[
        Address,
        Setting(
            group="Health and logs",
            form="HOST:PORT",
            help="Where /healthz, /readyz and /metrics are told. Each worker has a port of its own.",
            commands=_PROCESSES,
            parse=Address.parse,
            default="127.0.0.1:9002",
            default_of={
                "run materialize": "127.0.0.1:9003",
                "run policies": "127.0.0.1:9004",
                "run machine": "127.0.0.1:9005",
                "run bus": "127.0.0.1:9006",
                "run watch": "127.0.0.1:9007",
                "run labels": "127.0.0.1:9008",
                "run collect": "127.0.0.1:9011",
                "run resources": "127.0.0.1:9010",
                "run evaluate": "127.0.0.1:9009",
            },
        ),
    ]
    log_format: Annotated[
        LogFormat,
        Setting(
            group="Health and logs",
            form=_choices(LogFormat),
            help="How log events are written to standard error; `auto` is `console` on a terminal, else `json`.",
            commands=_LOGS,
            parse=_words(LogFormat),
            default=LogFormat.AUTO.value,
        ),
    ]
    log_level: Annotated[
        LogLevel,
        Setting(
            group="Health and logs",
            form=_choices(LogLevel),
            help="The least severe events that are written.",
            commands=_LOGS,
            parse=_words(LogLevel),
            default=LogLevel.INFO.value,
            default_of={"demo": LogLevel.ERROR.value},
        ),
    ]

    @classmethod
    def load(cls, command: str, given: Mapping[str, str]) -> "Settings":
        """The settings of `command`, where `given` maps names of settings to what a user wrote.

        Raises:
            SettingsError: with all that is wrong, for itself and in combination.
        """
        mistakes: list[Mistake] = []
        values: dict[str, Any] = {}
        for name, setting in every_setting():
            text = given.get(name, setting.default_for(command))
            try:
                values[name] = None if text is None else setting.parse(text)
            except ValueError as error:
                mistakes.append(Mistake(_told(name), shortened(without_password(text or "")), str(error)))
                values[name] = None
        mistakes += _combined_mistakes(command, values)
        if mistakes:
            raise SettingsError(mistakes)
        return cls(**values)


def every_setting() -> Iterator[tuple[str, Setting]]:
    """Each setting's name and what is known of it, in their order."""
    for name, kind in get_type_hints(Settings, include_extras=True).items():
        yield name, kind.__metadata__[0]


def settings_of(command: str) -> Iterator[tuple[str, Setting]]:
    """Those that a command uses."""
    return ((name, setting) for name, setting in every_setting() if command in setting.commands)


def _told(name: str) -> str:
    return f"{flag(name)} ({variable(name)})"


def _combined_mistakes(command: str, values: Mapping[str, Any]) -> Iterator[Mistake]:
    """What is wrong with settings together; None is one that is wrong for itself already, or absent."""
    if command in _ASKS_KUBERNETES:
        yield from _cluster_mistakes(command, values)
    if command in _COLLECTS:
        yield from _source_mistakes(values)
    if command in _READS_DIRECTORY and values["kubeconfig"] is None:
        yield from _directory_mistakes(command, values["policies"])
    if command in _STARTS_BUS and values["bus"] in (EMBEDDED, None) and (values["replicas"] or 1) > 1:
        yield Mistake(_told("replicas"), str(values["replicas"]), "the embedded server is one: it keeps one copy")
    listen, health = values["listen"], values["health_listen"]
    if command in _ANSWERS and listen is not None and listen == health and listen.port != 0:
        yield Mistake(_told("health_listen"), str(health), f"must not be the extender's own address ({flag('listen')})")
    if command in _ANSWERS_BY_TLS:
        yield from _tls_mistakes(values)
    if command == "run resources" and values["node_resource"] == 0:
        yield Mistake(_told("node_resource"), "0", "must be more: with 0 there is nothing to do")
    if command == "run all" and values["node_resource"] and values["kubeconfig"] is None:
        yield Mistake(_told("node_resource"), str(values["node_resource"]), f"only with {flag('kubeconfig')}")
    store = values["store"]
    if command in _STARTS_BUS and store is not None and store.exists() and not store.is_dir():
        yield Mistake(_told("store"), shortened(str(store)), "is no directory")


def _tls_mistakes(values: Mapping[str, Any]) -> Iterator[Mistake]:
    names = ("cert", "key", "cacert")
    given = [name for name in names if values[name] is not None]
    told = ", ".join(map(flag, given))
    for name in names:
        path = values[name]
        if path is None:
            if given:
                yield Mistake(_told(name), "", f"must be given as well: all three or none, and {told} is there")
        elif not path.exists():
            yield Mistake(_told(name), shortened(str(path)), "there is no such file")
        elif not path.is_file() or not os.access(path, os.R_OK):
            yield Mistake(_told(name), shortened(str(path)), "is no file that may be read")
    if values["client_names"] and not given:
        text = shortened(",".join(values["client_names"]))
        yield Mistake(_told("client_names"), text, "only by HTTPS: with " + ", ".join(map(flag, names)))


def _cluster_mistakes(command: str, values: Mapping[str, Any]) -> Iterator[Mistake]:
    kubeconfig = values["kubeconfig"]
    if kubeconfig is None:
        return
    name, value = _told("kubeconfig"), shortened(str(kubeconfig))
    if command in _READS_DIRECTORY and values["policies"] is not None:
        yield Mistake(name, value, f"not together with {flag('policies')}: policies are read from one or the other")
    if not isinstance(kubeconfig, Path):
        return
    if not kubeconfig.exists():
        yield Mistake(name, value, "there is no such file")
    elif not kubeconfig.is_file() or not os.access(kubeconfig, os.R_OK):
        yield Mistake(name, value, "is no file that may be read")


def _source_mistakes(values: Mapping[str, Any]) -> Iterator[Mistake]:
    for spec in values["source"] or ():
        if spec.kind in OF_KUBERNETES and values["kubeconfig"] is None:
            yield Mistake(
                _told("source"), str(spec), f"only with {flag('kubeconfig')}: it is asked through the cluster"
            )
    file = values["source_config"]
    if file is not None and not (file.is_file() and os.access(file, os.R_OK)):
        yield Mistake(_told("source_config"), shortened(str(file)), "is no file that may be read")


def _directory_mistakes(command: str, directory: Path | None) -> Iterator[Mistake]:
    name = _told("policies")
    if directory is None:
        cluster = f", or {flag('kubeconfig')} for a cluster" if command in _ASKS_KUBERNETES else ""
        yield Mistake(name, "", f"must be given: the directory of TASPolicy files{cluster}")
        return
    value = shortened(str(directory))
    if not directory.exists():
        yield Mistake(name, value, "there is no such directory")
    elif not directory.is_dir():
        yield Mistake(name, value, "is no directory")
    elif not os.access(directory, os.R_OK | os.X_OK):
        yield Mistake(name, value, "may not be read")


def settings_page() -> str:
    """`docs/settings.md`."""
    lines = [
        "# Settings",
        "",
        "<!-- Made from `workers/cli/settings.py` by `tas docs`: change it there. -->",
        "",
        "Each setting is a flag and an environment variable; a flag comes first, an empty variable counts as absent.",
        "All are checked together before anything starts: every mistake is told, and the exit code is 2.",
        "A flag that may be given several times takes values separated by commas as well, as its variable does.",
        "Durations are as in `90s`, `2m`, `1h30m`; sizes as in `1048576`, `64MiB`.",
    ]
    group = ""
    for name, setting in every_setting():
        if setting.group != group:
            group = setting.group
            lines += [
                "",
                f"## {group}",
                "",
                "| Setting | Value | Default | Used by | Meaning |",
                "|---|---|---|---|---|",
            ]
        # The text goes first: a default that was found out on the machine that makes this page is nobody else's.
        default = setting.default_text or f"`{setting.default}`"
        for command, own in setting.default_of.items():
            default += f"; `{command}`: `{own}`"
        used_by = ", ".join(f"`{command}`" for command in setting.commands)
        form = setting.form.replace("|", "\\|")
        lines.append(f"| `{flag(name)}`<br>`{variable(name)}` | `{form}` | {default} | {used_by} | {setting.help} |")
    return "\n".join(lines) + "\n"
