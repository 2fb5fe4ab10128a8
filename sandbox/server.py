"""The sandbox as a whole: started, reached, watched over and stopped."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from sandbox.api import Api
from sandbox.cluster import CRD_NAME, Cluster
from sandbox.discovery import VERSION
from sandbox.faults import Call, Faults
from sandbox.metrics import Metrics
from sandbox.resources import CRDS, NAMESPACES, NODES, TASPOLICIES, TASPOLICY_COLUMNS, Object
from sandbox.scheduler import FLUSH_SECONDS, scheduling

CAPACITY = {"cpu": "8", "memory": "32Gi", "pods": "110"}
MANAGER = "sandbox"
LOOPBACK = "127.0.0.1"


def extender_entry(url: str, **overrides: object) -> dict[str, Any]:
    """An entry of `extenders` in a scheduler's configuration, for our extender.

    As docs/scheduler.md has it, but pods wait while the extender is away, and a busy machine may take its time.

    Args:
        url: where the extender listens, without a path.
        overrides: other fields of the entry, or these with another value.
    """
    return {
        "urlPrefix": f"{url}/scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 10,
        "nodeCacheCapable": True,
        "httpTimeout": "10s",
        "ignorable": False,
        "managedResources": [{"name": "telemetry/scheduling", "ignoredByScheduler": True}],
    } | overrides


class Sandbox:
    """A running sandbox."""

    def __init__(self, cluster: Cluster, metrics: Metrics, api: Api, faults: Faults, url: str) -> None:
        self.cluster = cluster
        """Its objects, read and changed without HTTP, and not counted in `calls`."""
        self.metrics = metrics
        """What its adapters tell of nodes."""
        self.faults = faults
        self.url = url
        self._api = api

    @classmethod
    @asynccontextmanager
    async def start(
        cls, *, nodes: Iterable[str] = (), port: int = 0, bookmark_seconds: float = 10.0
    ) -> AsyncIterator["Sandbox"]:
        """Serves on loopback until left: the namespaces `default` and `kube-system`, the CRD, and these nodes, Ready.

        Args:
            nodes: names.
            port: 0 for a free one.
            bookmark_seconds: how often a watch that wants bookmarks gets one while nothing happens.
        """
        cluster, metrics, faults = Cluster(), Metrics(), Faults()
        for namespace in ("default", "kube-system"):
            cluster.create(NAMESPACES, "", {"metadata": {"name": namespace}}, manager=MANAGER)
        api = Api(cluster, metrics, faults, bookmark_seconds=bookmark_seconds)
        # Watches of clients that went away end at once, not with the next event.
        runner = web.AppRunner(api.application(), handler_cancellation=True, shutdown_timeout=2.0, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, LOOPBACK, port).start()
            host, bound = runner.addresses[0][:2]
            sandbox = cls(cluster, metrics, api, faults, f"http://{host}:{bound}")
            sandbox.install_crd()
            for name in nodes:
                sandbox.add_node(name)
            yield sandbox
        finally:
            api.end_watches()
            await runner.cleanup()

    def kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig for it and gives its path."""
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
        """A scheduler that asks these extenders, running until left; see `sandbox.scheduler`.

        Args:
            extenders: entries of kube-scheduler's configuration, as of `extender_entry`; without, labels alone decide.
            flush_seconds: when a pod that fits nowhere is tried again although nothing has happened.
        """
        return scheduling(self.cluster, extenders, flush_seconds=flush_seconds)

    def add_node(self, name: str, *, labels: dict[str, str] | None = None) -> Object:
        """A new node, Ready, of the same size as all others."""
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})}
        status = {"capacity": CAPACITY, "nodeInfo": {"kubeletVersion": VERSION["gitVersion"]}}
        node = {"metadata": metadata, "status": status}
        return self.cluster.create(NODES, "", node, manager=MANAGER)

    def install_crd(self) -> None:
        """Serves TASPolicies, as from the beginning."""
        names = {"plural": TASPOLICIES.plural, "singular": TASPOLICIES.singular, "kind": TASPOLICIES.kind}
        version = {"name": TASPOLICIES.version, "served": True, "storage": True}
        version["additionalPrinterColumns"] = [dict(column) for column in TASPOLICY_COLUMNS]
        spec = {"group": TASPOLICIES.group, "scope": "Namespaced", "names": names, "versions": [version]}
        self.cluster.create(CRDS, "", {"metadata": {"name": CRD_NAME}, "spec": spec}, manager=MANAGER)

    def remove_crd(self) -> None:
        """Deletes all TASPolicies and serves none: requests for them get a plain 404, their watches end."""
        self.cluster.delete(CRDS, "", CRD_NAME)

    def forget_history(self) -> None:
        """As a compaction: a version from before can neither be watched from nor continued (410 Expired).

        A watch under way is not affected; `cut_watches` makes its client come back.
        """
        self.cluster.store.forget()

    @property
    def watches(self) -> int:
        """How many watches are under way."""
        return self._api.watches

    def cut_watches(self) -> None:
        """Drops the connection of every watch."""
        self._api.cut_watches()

    @property
    def calls(self) -> list[Call]:
        """Every request over HTTP so far, up to 100,000, oldest first; a watch counts once, when it begins."""
        return self._api.calls

    def count(self, *, since: int = 0, which: Callable[[Call], bool] = lambda _: True) -> Counter[tuple[str, str]]:
        """How many requests there were for each verb and resource, from a length of `calls` on."""
        return Counter((call.verb, call.resource) for call in self.calls[since:] if which(call))
