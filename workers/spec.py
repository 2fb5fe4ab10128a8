"""What the product knows of a worker: `SPEC` in the `__init__` of its folder.

That module loads nothing of the worker: `build` imports it when it is called, so that a command that only names a
worker, or shows its settings, starts fast.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bus.buckets import Bucket, Stream
from bus.rights.roles import Rights

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker
    from workers.settings import Settings

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
        name: As in `tas run NAME`, and the name of its folder.
        help: The help of `tas run NAME`.
        port: The default port of `--health-listen`; None: the worker has no command of its own.
        build: Builds the worker, and imports it only then. Raises StartError.
        rights: What it may do on a closed bus.
        optional: What it does without if it may not read it, as on a closed bus that an earlier version set up.
        account: What its ServiceAccount may do in a cluster, such as `get list: nodes; create: events in default`.
        settings: The fields of `Settings` that it takes, besides those of every worker.
        defaults: Its defaults, where they are not those of the setting, as a user would write them.
        alone: Of `settings`, those that `tas run all` does not take.
        needs_kubernetes: Whether it needs an API server: it takes `--kubeconfig`, by default that of its pod.
        listens: What listens at `--listen`, in errors; empty if nothing does.
        in_all: Whether `tas run all` runs it with these settings; None: never.
        in_cluster: Whether an installation in a cluster may run it as a process of its own.
    """

    name: str
    help: str
    port: int | None
    build: Callable[["Context"], Awaitable["Worker"]]
    rights: Rights
    optional: tuple[Stream | Bucket, ...] = ()
    account: str = ""
    settings: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    alone: tuple[str, ...] = ()
    needs_kubernetes: bool = False
    listens: str = ""
    in_all: Callable[["Settings"], bool] | None = None
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
            return "in-cluster"
        return self.defaults.get(setting)


def always(_: "Settings") -> bool:
    """`in_all` of a worker that `tas run all` always runs."""
    return True


def with_cluster(settings: "Settings") -> bool:
    """`in_all` of a worker that `tas run all` runs for a cluster."""
    return settings.kubeconfig is not None
