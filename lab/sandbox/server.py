"""Starts and stops a sandbox, and gives access to its objects."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from lab.sandbox.api import Api
from lab.sandbox.cluster import CRD_NAME, Cluster
from lab.sandbox.discovery import VERSION
from lab.sandbox.metrics import Metrics
from lab.sandbox.resources import CRDS, NAMESPACES, NODES, TASPOLICIES, TASPOLICY_COLUMNS, Object
from lab.sandbox.scheduler import FLUSH_SECONDS, scheduling

CAPACITY = {"cpu": "8", "memory": "32Gi", "pods": "110"}
MANAGER = "sandbox"
LOOPBACK = "127.0.0.1"


def extender_entry(url: str, **overrides: object) -> dict[str, Any]:
    """An entry of `extenders` in a scheduler's configuration, for our extender.

    Differs from docs/start/scheduler.md: pods wait while the extender is down, and the timeout is longer, for
    busy machines.
    `url` has no path. `overrides` are further fields of the entry, or other values.
    """
    return {
        "urlPrefix": f"{url}/scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 5,
        "nodeCacheCapable": True,
        "httpTimeout": "10s",
        "ignorable": False,
        "managedResources": [{"name": "telemetry/scheduling", "ignoredByScheduler": True}],
    } | overrides


class Sandbox:
    """A running sandbox."""

    api_type = Api
    metrics_type = Metrics

    def __init__(self, cluster: Cluster, metrics: Metrics, api: Api, url: str) -> None:
        self.cluster = cluster
        """The objects."""
        self.metrics = metrics
        """The metrics of nodes, as adapters serve them."""
        self.url = url
        self._api = api

    @classmethod
    @asynccontextmanager
    async def start(
        cls, *, nodes: Iterable[str] = (), port: int = 0, bookmark_seconds: float = 10.0
    ) -> AsyncIterator[Self]:
        """Serves on loopback while the body runs, with the namespaces default and kube-system, the CRD and Ready nodes.

        `bookmark_seconds`: how often a watch with bookmarks gets a bookmark while no object changes.
        """
        cluster, metrics = Cluster(), cls.metrics_type()
        for namespace in ("default", "kube-system"):
            cluster.create(NAMESPACES, "", {"metadata": {"name": namespace}}, manager=MANAGER)
        api = cls.api_type(cluster, metrics, bookmark_seconds=bookmark_seconds)
        # With handler_cancellation, the watch of a disconnected client ends at once, not with the next event.
        runner = web.AppRunner(api.application(), handler_cancellation=True, shutdown_timeout=2.0, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, LOOPBACK, port).start()
            host, bound = runner.addresses[0][:2]
            sandbox = cls(cluster, metrics, api, f"http://{host}:{bound}")
            sandbox.install_crd()
            for name in nodes:
                sandbox.add_node(name)
            yield sandbox
        finally:
            api.end_watches()
            await runner.cleanup()

    def kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig for the sandbox and returns its path."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sandbox", "cluster": {"server": self.url}}],
            "users": [{"name": "sandbox", "user": {}}],
            "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": "sandbox"}}],
            "current-context": "sandbox",
        }
        path.write_text(json.dumps(config, indent=1))
        return path

    def scheduler(
        self, *extenders: Mapping[str, Any], flush_seconds: float = FLUSH_SECONDS
    ) -> AbstractAsyncContextManager[None]:
        """A scheduler with these extenders, which runs while the body runs; see `sandbox.scheduler`.

        `extenders` are entries of kube-scheduler's configuration, as of `extender_entry`. After `flush_seconds` a pod
        that fits no node is tried again without a change of the cluster.
        """
        return scheduling(self.cluster, extenders, flush_seconds=flush_seconds)

    def add_node(self, name: str, *, labels: dict[str, str] | None = None) -> Object:
        """Creates a Ready node, with the same capacity as all others."""
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})}
        status = {"capacity": CAPACITY, "nodeInfo": {"kubeletVersion": VERSION["gitVersion"]}}
        node = {"metadata": metadata, "status": status}
        return self.cluster.create(NODES, "", node, manager=MANAGER)

    def install_crd(self) -> None:
        """Creates the CRD: TASPolicies are served, as at the start."""
        names = {"plural": TASPOLICIES.plural, "singular": TASPOLICIES.singular, "kind": TASPOLICIES.kind}
        version = {"name": TASPOLICIES.version, "served": True, "storage": True}
        version["additionalPrinterColumns"] = [dict(column) for column in TASPOLICY_COLUMNS]
        spec = {"group": TASPOLICIES.group, "scope": "Namespaced", "names": names, "versions": [version]}
        self.cluster.create(CRDS, "", {"metadata": {"name": CRD_NAME}, "spec": spec}, manager=MANAGER)
