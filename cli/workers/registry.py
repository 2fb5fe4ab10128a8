"""The one list of workers: commands, help, settings, ports and `tas run all` follow from it.

It lives in `cli/`, since a worker is built from `Settings`, which are those of the command line, and lower layers know
neither. It imports no worker: a function `build` imports its worker when it is called. What can follow from the list by
no code (rights on the bus, the chart, the Procfile, tables of the documentation) is compared with it by
`tests/contract/test_workers.py`.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cli.workers import enforcing, ingest, process, publishing, serving, watching
from tas.gpu.hold import RESERVED_SECONDS
from workers.settings import IN_CLUSTER, Settings

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker

OF_EACH = (
    "bus",
    "bus_credentials",
    "bus_token",
    "bus_cacert",
    "bus_cert",
    "bus_key",
    "replicas",
    "wait_for_files",
    "health_listen",
    "log_format",
    "log_level",
)
"""The settings that every worker takes."""

OF_LISTENERS = (
    "listen",
    "max_body",
    "share_listen",
    "max_connections",
    "idle_timeout",
    "cert",
    "key",
    "cacert",
    "client_names",
)
"""The settings of a worker that answers kube-scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What the product knows of a worker.

    Attributes:
        help: The help of `tas run NAME`.
        port: The default port of `--health-listen`; None: the worker has no command of its own.
        build: Builds the worker, and imports it only then. Raises StartError.
        settings: The fields of `Settings` that it takes, besides those of every worker.
        defaults: Its defaults, where they are not those of the setting, as a user would write them.
        alone: Of `settings`, those that `tas run all` does not take.
        needs_kubernetes: Whether it needs an API server: it takes `--kubeconfig`, by default that of its pod.
        listens: What listens at `--listen`, in errors; empty if nothing does.
        role: Its role on a closed bus; by default of its name.
        beside: The command that runs it beside another worker.
        in_all: Whether `tas run all` runs it with these settings; None: never.
        in_cluster: Whether an installation in a cluster may run it as a process of its own.
    """

    name: str
    help: str
    port: int | None
    build: Callable[["Context"], Awaitable["Worker"]]
    settings: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    alone: tuple[str, ...] = ()
    needs_kubernetes: bool = False
    listens: str = ""
    role: str = ""
    beside: str = ""
    in_all: Callable[[Settings], bool] | None = None
    in_cluster: bool = True

    def takes(self, setting: str) -> bool:
        """Whether the worker takes a field of `Settings`."""
        return (
            setting in self.settings
            or setting in OF_EACH
            or (bool(self.listens) and setting in OF_LISTENERS)
            or (self.needs_kubernetes and setting == "kubeconfig")
        )

    def default(self, setting: str) -> str | None:
        """The default of its own, if it has one."""
        if setting == "health_listen" and self.port is not None:
            return f"127.0.0.1:{self.port}"
        if setting == "kubeconfig" and self.needs_kubernetes:
            return IN_CLUSTER
        return self.defaults.get(setting)


def _always(_: Settings) -> bool:
    return True


def _with_cluster(settings: Settings) -> bool:
    return settings.kubeconfig is not None


WORKERS: dict[str, WorkerSpec] = {
    spec.name: spec
    for spec in (
        WorkerSpec(
            name="materialize",
            help="Store the newest samples of each node on the bus.",
            port=9003,
            build=ingest.materialize,
            in_all=_always,
        ),
        WorkerSpec(
            name="windows",
            help="Compute statistics over time, such as `cpu:p95:5m`, from samples, for policies and agents.",
            port=9021,
            build=ingest.windows,
            settings=("metrics", "stale_after", "publish"),
            in_all=_always,
        ),
        WorkerSpec(
            name="policies",
            help="Store the TASPolicies of a directory on the bus.",
            port=9004,
            build=watching.policies,
            settings=("policies",),
            in_all=lambda settings: settings.kubeconfig is None,
            in_cluster=False,
        ),
        WorkerSpec(
            name="watch",
            help="""Store the policies, nodes and pods of a cluster on the bus.

Of the pods, only those that name a policy are stored. One replica at a time also writes the status of TASPolicies.
""",
            port=9007,
            build=watching.watch,
            needs_kubernetes=True,
            in_all=_with_cluster,
        ),
        WorkerSpec(
            name="evaluate",
            help="Evaluate every policy for every node, and store the verdicts. They contain the desired labels.",
            port=9009,
            build=enforcing.evaluate,
            settings=("stale_after",),
            in_all=_always,
        ),
        WorkerSpec(
            name="status",
            help="Write the status of TASPolicies.",
            port=None,
            build=watching.status,
            settings=("stale_after",),
            needs_kubernetes=True,
            role="watch",
            beside="watch",
            in_all=_with_cluster,
        ),
        WorkerSpec(
            name="extender",
            help="Answer kube-scheduler's filter, prioritize and preempt.",
            port=9002,
            build=serving.extender,
            settings=(
                "stale_after",
                "unknown_policy",
                "failed_nodes",
                "debug_explain",
                "prometheus_query",
                "only",
                "extension_timeout",
            ),
            alone=("only",),
            listens="extender",
            in_all=_always,
        ),
        WorkerSpec(
            name="labels",
            help="Write the desired labels of verdicts to the nodes. Also wake pods that wait for a node.",
            port=9008,
            build=enforcing.labels,
            settings=(
                "stale_after",
                "overwrite_labels",
                "breaker",
                "breaker_all",
                "label_rate",
                "label_rate_all",
                "flap_budget",
                "new_bus_wait",
            ),
            needs_kubernetes=True,
            in_all=_with_cluster,
        ),
        WorkerSpec(
            name="marks",
            help="Write the taints and node conditions that policies want beside their label.",
            port=9015,
            build=enforcing.marks,
            settings=("stale_after",),
            needs_kubernetes=True,
            in_all=_with_cluster,
        ),
        WorkerSpec(
            name="resources",
            help="Add the resource `telemetry/scheduling` to each node.",
            port=9010,
            build=enforcing.resources,
            settings=("node_resource", "cluster_name"),
            defaults={"node_resource": "1000"},
            needs_kubernetes=True,
            in_all=lambda settings: settings.kubeconfig is not None and settings.node_resource > 0,
        ),
        WorkerSpec(
            name="events",
            help="Publish what happens as public events: violations, stale metrics, labels, policies, sources.",
            port=9013,
            build=publishing.events,
            settings=("cluster_name",),
            in_all=_always,
        ),
        WorkerSpec(
            name="collect",
            help="Poll sources, and publish samples. Only metrics that policies use are polled.",
            port=9011,
            build=ingest.collect,
            settings=(
                "source",
                "source_config",
                "metrics",
                "remote_write_cert",
                "remote_write_key",
                "remote_write_token",
                "period",
                "publish",
                "stale_after",
            ),
            needs_kubernetes=True,
            in_all=ingest.has_sources,
        ),
        WorkerSpec(
            name="notify",
            help="Take events to where people look: Kubernetes Events, Alertmanager, CloudEvents over HTTP, a chat.",
            port=9014,
            build=publishing.notify,
            settings=("sinks", "cluster_name", "kubeconfig"),
            in_all=lambda settings: settings.sinks is not None,
        ),
        WorkerSpec(
            name="keeper",
            help="Create the streams and buckets of a closed bus, on which no other process may create one.",
            port=9016,
            build=process.keeper,
            # With credentials a connection creates only the streams of its workers, the keeper those of nobody.
            in_all=lambda settings: settings.bus_credentials is not None,
        ),
        WorkerSpec(
            name="machine",
            help="Publish the telemetry of this machine as samples of a node.",
            port=9005,
            build=ingest.machine,
            settings=("node", "period"),
            role="node",
            in_cluster=False,
        ),
        WorkerSpec(
            name="inventory",
            help="Store the GPU cards of nodes on the bus, and who has them.",
            port=9018,
            build=watching.inventory,
            settings=(
                "new_bus_wait",
                "card_metrics",
                "cards",
                "allocations",
                "outcomes",
                "annotations",
                "write_annotations",
                "annotation_names",
                "annotation_prefix",
                "annotation_lifetime",
                "publish",
            ),
            defaults={"new_bus_wait": f"{RESERVED_SECONDS:g}s"},
            needs_kubernetes=True,
        ),
        WorkerSpec(
            name="evictions",
            help="Label the pods that are to leave a GPU card, so that a descheduler evicts them.",
            port=9019,
            build=enforcing.evictions,
            needs_kubernetes=True,
        ),
        WorkerSpec(
            name="gpu",
            help="Give GPU cards to pods: answer kube-scheduler's filter, prioritize and bind.",
            port=9017,
            build=serving.gpu,
            settings=("card_score", "balanced_resource", "allowlist", "denylist", "one_start"),
            defaults={"listen": "127.0.0.1:9020"},
            needs_kubernetes=True,
            listens="GPU extender",
        ),
        WorkerSpec(
            name="agents",
            help="Answer kube-scheduler's filter and prioritize by agents, which use load, requests and history.",
            port=9031,
            build=serving.agents,
            settings=("agents", "stale_after"),
            defaults={"listen": "127.0.0.1:9030"},
            listens="agents",
        ),
    )
}
"""Every worker by its name, in the order in which `tas run all` builds them."""


def with_commands() -> Iterator[WorkerSpec]:
    """The workers that have a command `tas run NAME`."""
    return (spec for spec in WORKERS.values() if not spec.beside)


def run_by(command: str) -> tuple[str, ...]:
    """The workers that `tas run COMMAND` runs."""
    return (command, *(spec.name for spec in WORKERS.values() if spec.beside == command))


def workers_of_all(settings: Settings) -> tuple[str, ...]:
    """The workers of `tas run all`, besides the embedded server."""
    return tuple(name for name, spec in WORKERS.items() if spec.in_all is not None and spec.in_all(settings))


def commands_that_take(setting: str) -> set[str]:
    """The commands that run a worker with this setting: `run NAME`, and `run all`."""
    takers = [spec for spec in WORKERS.values() if spec.takes(setting)]
    in_all = any(spec.in_all is not None and setting not in spec.alone for spec in takers)
    return {f"run {spec.beside or spec.name}" for spec in takers} | ({"run all"} if in_all else set())


def defaults_of(setting: str) -> dict[str, str]:
    """The defaults of single commands, by the command."""
    found = {f"run {spec.name}": spec.default(setting) for spec in with_commands()}
    return {command: text for command, text in sorted(found.items()) if text is not None}
