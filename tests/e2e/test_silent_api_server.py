"""A real API server that is paused: its kernel goes on taking connections, and none of them ends."""

import asyncio
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cli.crd import crd_manifest
from tests.integration.cli.tas import HEALTH, Running, Tas
from tests.integration.servers import Server, eventually
from workers.kubernetes.client import SILENT_SECONDS

from .alerts import Scrape
from .cluster import Cluster
from .controlplane import ControlPlane, control_plane


@pytest.fixture
def plane(tmp_path: Path, programs: Mapping[str, Path]) -> Iterator[ControlPlane]:
    """A control plane for this test alone, which pauses its API server."""
    folder = tmp_path / "plane"
    folder.mkdir()
    with control_plane(folder, programs) as plane:
        Cluster(plane).apply(crd_manifest())
        yield plane


async def silent_for(running: Running) -> float:
    """For how many seconds the API server has been silent for the process."""
    scrape = Scrape.of(0.0, (await running.health("/metrics"))[1])
    (age,) = [
        value for name, value in (scrape.series or {}).items() if name.startswith("tas_kubernetes_silent_seconds")
    ]
    return age


@pytest.mark.nightly
async def test_a_process_with_one_watch_knows_of_it_before_the_time_of_one_watch_is_over(
    plane: ControlPlane, tas: Tas, server: Server
) -> None:
    """`labels` has one watch, and `watch` three, which share the question: facts.md c90."""
    common = ("--bus", server.url, "--kubeconfig", str(plane.admin), *HEALTH)
    (api_server,) = (each for each in plane.started if each.name == "kube-apiserver")

    async def said() -> str:
        """What `tas status` says."""
        return (await tas("status", "--all", "--bus", server.url)).out

    async def watch_says_so() -> bool:
        status, reason = await watch.health("/readyz")
        return status == 503 and "no data from" in reason

    async def labels_say_so() -> bool:
        return "it hears of no change of nodes: watch nodes: no data from" in await said()

    async def is_over() -> bool:
        return "hears of no change" not in await said()

    async with tas.running("run", "watch", *common) as watch, tas.running("run", "labels", *common) as labels:
        for each in (watch, labels):
            await each.ready()
        api_server.send(signal.SIGSTOP)
        try:
            await asyncio.gather(eventually(watch_says_so, every=0.2), eventually(labels_say_so, every=1.0))
            ages = [await silent_for(each) for each in (watch, labels)]
        finally:
            api_server.send(signal.SIGCONT)
        assert max(ages) < SILENT_SECONDS, "each watch alone asks only after this time"
        await watch.ready()
        await eventually(is_over, every=1.0)
