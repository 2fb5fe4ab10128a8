"""The whole path: an exporter, a real Prometheus, the product, a label on a real API server; and its removal."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp

from tests.integration.servers import eventually

from .cluster import NODES, Cluster
from .processes import until
from .product import product
from .prometheus import exporter, prometheus
from .test_enforcement import MANIFEST

POLICY = "health-by-prometheus"


def health(**values: int) -> str:
    """The text of the exporter: the health of each node, by its name with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in values.items()}
    lines = [f'node_health_metric{{node="{node}"}} {named.get(node, 0)}' for node in NODES]
    return "\n".join(["# TYPE node_health_metric gauge", *lines, ""])


async def holds(probe: Callable[[], bool], what: str) -> None:
    """Waits in a thread, so that the exporter can answer meanwhile."""
    await asyncio.to_thread(until, probe, what)


async def ended(url: str) -> bool:
    """Whether the series has ended in Prometheus."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/api/v1/query", params={"query": "node_health_metric"}) as answer,
    ):
        body = await answer.json()
    return not body["data"]["result"]


async def test_the_label_follows_the_exporter_and_stays_while_samples_are_missing(
    cluster: Cluster, kubeconfig: Path, namespace: str, prometheus_binary: Path, tmp_path: Path
) -> None:
    def labels() -> set[str]:
        nodes = cluster.api.get("/api/v1/nodes", labelSelector=f"{POLICY}=violating")["items"]
        return {node["metadata"]["name"] for node in nodes}

    folders = {name: tmp_path / name for name in ("prometheus", "tas")}
    for folder in folders.values():
        folder.mkdir()
    async with exporter(health(node_1=2)) as scraped:
        targets = {scraped.address: {"instance": "one-for-all"}}
        with (
            prometheus(prometheus_binary, folders["prometheus"], targets) as (url, _),
            product(cluster, folders["tas"], "--source", f"prometheus={url}", kubeconfig=kubeconfig),
        ):
            cluster.apply(MANIFEST.format(name=POLICY, namespace=namespace))
            try:
                await holds(lambda: labels() == {"node-1"}, "the node that violates is labelled")
                scraped.text = health(node_2=2)
                await holds(lambda: labels() == {"node-2"}, "the label follows")

                # The series end, and the label stays.
                scraped.fails = True
                await eventually(lambda: ended(url), every=0.1)
                assert labels() == {"node-2"}

                scraped.text, scraped.fails = health(), False
                await holds(lambda: not labels(), "a healthy value removes the label")
            finally:
                cluster.kubectl("delete", "taspolicy", POLICY, "--namespace", namespace)
