"""`tas up`: runs everything on this machine, with simulated nodes and a live view."""

import dataclasses
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from bus.records.codec import encode
from cli.console import SafeConsole
from cli.options import settings_command
from cli.top.cards import Cards
from cli.top.live import LiveView, cluster_rows
from cli.wiring import check_addresses, process, run_process
from lab.sandbox import Sandbox, extender_entry
from lab.sandbox.cluster import Cluster
from lab.sandbox.resources import NODES, PODS
from lab.up.applied import AppliedPolicies, StoredProblems
from lab.up.simulated import SIMULATED_NODES, SimulatedNodes, SimulatedPods
from tas.policy.policy import POD_LABEL
from workers.discovery import running_bus
from workers.extender.worker import PREFIX
from workers.following.freezes import Freezes
from workers.registry import workers_of_all
from workers.settings import EMBEDDED, Settings


@settings_command("up")
def up(settings: Settings) -> int:
    """Run everything here, with simulated nodes and a live view.

    This machine is a real node, beside three simulated nodes. Ctrl-C ends everything and deletes its files.
    """
    return run_process(settings, _up(settings))


async def _up(settings: Settings) -> int:
    console = _Console()
    directory = settings.policies
    assert directory is not None, "checked by Settings"
    await check_addresses(settings, ("extender",))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tas-up-")))
        nodes = dict.fromkeys((*SIMULATED_NODES, settings.node))
        sandbox = await stack.enter_async_context(Sandbox.start(nodes=nodes))
        kubeconfig = sandbox.kubeconfig(folder / "kubeconfig")
        # Policies are applied to the simulated cluster and reach the workers from there. No source is polled: the
        # simulated nodes publish samples themselves. Nobody else can have labelled a node of this sandbox.
        settings = dataclasses.replace(settings, policies=None, kubeconfig=kubeconfig, source=(), new_bus_wait=0.0)
        parts, stop = await stack.enter_async_context(process(settings))
        console.stop = stop.set
        if settings.bus == EMBEDDED:
            await parts.start_bus(simulated=True)
        await parts.build((*workers_of_all(settings), "machine"))
        bus = await parts.context.connect("live")
        followed = await parts.context.view()
        request = _write_request(folder / "filter", f"http://{settings.listen.near}{PREFIX}")
        applied = AppliedPolicies(sandbox.cluster, directory)
        freezes = Freezes(bus)
        cards = Cards(bus)
        live = LiveView(
            followed,
            answers_url=f"http://{settings.health_listen.near}/answers",
            hints=_hints(settings, bus.address, request, directory),
            console=console,
            cluster=lambda: _cluster(sandbox.cluster),
            file_problems=lambda: applied.file_problems,
            freezes=freezes,
            cards=cards.rows,
        )
        simulated = SimulatedNodes(
            await parts.context.connect("simulated"), followed, SIMULATED_NODES, healthy=(settings.node,)
        )
        for part in (
            applied,
            StoredProblems(bus, applied),
            followed,
            freezes,
            cards,
            simulated,
            SimulatedPods(sandbox.cluster),
            live,
        ):
            parts.add(part)
        await stack.enter_async_context(sandbox.scheduler(extender_entry(f"http://{settings.listen.near}")))
        return await parts.run(stop)


def _cluster(cluster: Cluster) -> dict[str, str]:
    """The rows of the section `cluster`: each node's labels of policies and pods, and the waiting pods."""
    nodes = {node["metadata"]["name"]: node["metadata"].get("labels", {}) for node in cluster.store.items(NODES)}
    pods = [
        (pod["metadata"]["name"], pod["metadata"].get("labels", {}).get(POD_LABEL, "–"), pod["spec"].get("nodeName"))
        for pod in cluster.store.items(PODS)
    ]
    return cluster_rows(nodes, pods)


def _hints(settings: Settings, bus: str, request: Path, directory: Path) -> list[str]:
    tas = shlex.quote(_command())
    where = "" if running_bus() == bus else f" --bus {bus}"
    return [
        f"{tas} publish node-1 health_metric=2{where}      # the node is unhealthy now",
        f"{tas} explain node node-1{where}                 # every rule with its value",
        f"curl -sK {request}     # the extender's answer for a pod of demo-policy",
        f"kubectl --kubeconfig {settings.kubeconfig} get taspolicies,nodes,pods   # apply: with --validate=false",
        f"edit a file in {directory}/       # a change takes effect when the file is saved",
        f"Ctrl-C ends all of it   # {bus}  http://{settings.health_listen.near}/metrics /answers /problems/files",
    ]


def _write_request(file: Path, url: str) -> Path:
    """Writes a request of kube-scheduler as a file of options for curl: so the command is short enough to be copied."""
    metadata = {"name": "p", "namespace": "default", "labels": {POD_LABEL: "demo-policy"}}
    body = encode({"Pod": {"metadata": metadata}, "NodeNames": SIMULATED_NODES}).decode()
    options = {"url": f"{url}/filter", "header": "Content-Type: application/json", "data": body}
    file.write_text("".join(f"{name} = {encode(value).decode()}\n" for name, value in options.items()))
    return file


def _command() -> str:
    """The command `tas` as the user can call it from the current directory."""
    command = Path(sys.argv[0]).absolute()
    return str(command.relative_to(Path.cwd())) if command.is_relative_to(Path.cwd()) else "tas"


class _Console(SafeConsole):
    """A console that stops the process in an orderly way when its reader closes the pipe, as in `tas up | head`."""

    stop: Callable[[], None]

    def on_broken_pipe(self) -> None:
        """Sets `stop`: an immediate exit would leave a server and its files behind."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        self.stop()
