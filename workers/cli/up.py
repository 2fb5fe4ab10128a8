"""`tas up`: everything on this machine, with something to see: the first thing a new user runs."""

import dataclasses
import os
import shlex
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console

from sandbox import Sandbox, extender_entry
from sandbox.cluster import Cluster
from sandbox.resources import NODES, PODS
from tas.policy import POD_LABEL
from workers.cli.applied import AppliedPolicies
from workers.cli.demo_stage import is_own_label
from workers.cli.discovery import running_bus
from workers.cli.live import LiveView
from workers.cli.options import settings_command
from workers.cli.played import PlayedNodes, PlayedPods
from workers.cli.settings import EMBEDDED, Settings
from workers.cli.wiring import all_workers, bus_url, process, run_process
from workers.extender import PREFIX
from workers.followed_view import FollowedView

PLAYED_NODES = ("node-1", "node-2", "node-3")


@settings_command("up")
def up(settings: Settings) -> int:
    """Run everything here, with this machine and a few played nodes, and show live what flows. Ctrl-C ends it."""
    return run_process(settings, _up(settings))


async def _up(settings: Settings) -> int:
    console = _Console()
    directory = settings.policies
    assert directory is not None, "it must be given"
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tas-up-")))
        nodes = dict.fromkeys((*PLAYED_NODES, settings.node))
        sandbox = await stack.enter_async_context(Sandbox.start(nodes=nodes))
        kubeconfig = sandbox.kubeconfig(folder / "kubeconfig")
        # The directory's policies come by way of the cluster, as everything else does. No source is asked: the nodes
        # publish by themselves, and this cluster's custom metrics API has nothing to say of them.
        settings = dataclasses.replace(settings, policies=None, kubeconfig=kubeconfig, source=())
        parts, stop = await stack.enter_async_context(process(settings))
        console.stop = stop.set
        url = await parts.start_bus() if settings.bus == EMBEDDED else bus_url(settings)
        await parts.build(url, (*all_workers(settings), "machine"))
        bus = await parts.connect(url, "live")
        followed = FollowedView(bus, default_stale_after=settings.stale_after)
        live = LiveView(
            followed,
            answers_url=f"http://{settings.health_listen}/answers",
            hints=_hints(settings, bus.address, f"http://{settings.listen}{PREFIX}", directory),
            console=console,
            cluster=lambda: _cluster(sandbox.cluster),
        )
        played = PlayedNodes(await parts.connect(url, "played"), followed, PLAYED_NODES)
        for part in (AppliedPolicies(sandbox.cluster, directory), followed, played, PlayedPods(sandbox.cluster), live):
            parts.add(part)
        await stack.enter_async_context(sandbox.scheduler(extender_entry(f"http://{settings.listen}")))
        return await parts.run(stop)


def _cluster(cluster: Cluster) -> dict[str, str]:
    """The product's labels on each node, and the pods that run there or wait."""
    pods: defaultdict[str, list[str]] = defaultdict(list)
    for pod in cluster.store.items(PODS):
        metadata = pod["metadata"]
        pods[pod["spec"].get("nodeName", "")].append(
            f"{metadata['name']} ({metadata.get('labels', {}).get(POD_LABEL, '–')})"
        )
    told: dict[str, str] = {}
    for node in cluster.store.items(NODES):
        name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
        ours = [f"{key}={value}" for key, value in sorted(labels.items()) if is_own_label(key, value)]
        told[name] = f"labels: {' '.join(ours) or '–'}; pods: {', '.join(pods.pop(name, [])) or '–'}"
    waiting = [pod for name in sorted(pods) for pod in pods[name]]
    return told | {"waiting": ", ".join(waiting) or "–"}


def _hints(settings: Settings, bus: str, extender: str, directory: Path) -> list[str]:
    tas = shlex.quote(_command())
    where = "" if running_bus() == bus else f" --bus {bus}"
    pod = '{"metadata":{"name":"p","namespace":"default","labels":{"telemetry-policy":"demo-policy"}}}'
    return [
        f"{tas} publish node-1 health_metric=2{where}      # the node is unwell now",
        f"{tas} explain node node-1{where}                 # why it is as it is",
        f"curl -s {extender}/filter -H 'Content-Type: application/json' -d "
        f'\'{{"Pod":{pod},"NodeNames":["node-1","node-2"]}}\'',
        f"edit a file in {directory}/       # it counts as soon as it is saved",
        f"kubectl --kubeconfig {settings.kubeconfig} get taspolicies,nodes,pods --show-labels",
        f"bus: {bus}   http://{settings.health_listen}/metrics /answers /readyz   Ctrl-C ends all of it",
    ]


def _command() -> str:
    """How to call `tas` from where the user stands."""
    command = Path(sys.argv[0]).absolute()
    return str(command.relative_to(Path.cwd())) if command.is_relative_to(Path.cwd()) else "tas"


class _Console(Console):
    """A console whose reader may go away, as in `tas up | head`: then all of it is asked to stop."""

    stop: Callable[[], None]

    def on_broken_pipe(self) -> None:
        """Instead of ending the process at once, and leaving a server and its files behind."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        self.stop()
