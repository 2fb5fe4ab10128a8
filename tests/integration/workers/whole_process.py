"""The workers of one process, which share connections, watches and view as those of `tas run all` do."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from prometheus_client import CollectorRegistry

from cli.loading import load_settings
from tas.enforcing.brake import BrakeSettings
from tas.enforcing.label_rate import Rate
from tas.enforcing.limits import DefaultLimit
from workers.context import Context
from workers.kubernetes.client import KubernetesClient
from workers.names import ALL_WORKERS
from workers.registry import WORKERS, needed_by
from workers.runtime import Worker
from workers.settings import Settings

NAMES = ("materialize", "watch", "evaluate", "status", "extender", "labels")
"""Of `tas run all`: what a label needs; status, which joins the watches later; extender, which reads the view, too."""


class NumberedContext(Context):
    """The context of a replica, whose number its clients of the API server have in their user agents."""

    def __init__(self, settings: Settings, stack: AsyncExitStack, registry: CollectorRegistry, *, number: str) -> None:
        super().__init__(settings, stack, registry)
        self._number = number

    async def connect_kubernetes(self, name: str) -> KubernetesClient:
        return await super().connect_kubernetes(f"{name}-{self._number}" if self._number else name)

    async def build(self, names: Sequence[str]) -> Sequence[Worker]:
        """Builds these workers, all those of the process; several as `tas run all` does."""
        self.workers, self.streams = names, needed_by(names)
        self.name = ALL_WORKERS if len(names) > 1 else names[0]
        return [await WORKERS[name].build(self) for name in names]


def settings_of_all(url: str, kubeconfig: Path, *, stale_after: float, brake: BrakeSettings) -> Settings:
    """The settings of `tas run all`; `stale_after` in seconds."""
    return load_settings(
        "run all",
        {
            "bus": url,
            "kubeconfig": str(kubeconfig),
            "health_listen": "127.0.0.1:0",
            "listen": "127.0.0.1:0",
            "stale_after": f"{stale_after:g}s",
            "breaker": _text(brake.policy),
            "breaker_all": _text(brake.over_all),
            "label_rate": _text(brake.label_rate),
            "label_rate_all": _text(brake.label_rate_all),
            "flap_budget": str(brake.flap_budget),
            "new_bus_wait": f"{brake.new_bus_wait:g}s",
        },
    )


def _text(limit: DefaultLimit | Rate | None) -> str:
    return "off" if limit is None else str(limit)
