"""`tas demo`: runs worked examples, and prints each step with the expected and the observed state.

A demo runs on a simulated cluster, or with `--kubeconfig` on a cluster where this product is already running.
"""

import asyncio
import dataclasses
import socket
import sys
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bus.connection import Bus
from cli.console import new_console
from cli.options import settings_command
from cli.queries.query import ask
from cli.wiring import process, run_process
from lab.demo.cluster import ClusterChecks, UnfitError, probe
from lab.demo.narration import Narration, Observed, StepFailedError
from lab.demo.stage import Node, Stage
from lab.demo.stories import STORIES, Story
from lab.sandbox import Sandbox, extender_entry
from tas.errors import shortened
from tas.values.duration import DurationError, parse_duration
from workers.context import kubeconfig_problem
from workers.extender.worker import PREFIX
from workers.http.address import Address
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConfigurationError
from workers.process.errors import EXIT_FAILED
from workers.process.signals import stop_signals
from workers.registry import workers_of_all
from workers.settings import EMBEDDED, Settings

WITHIN_SECONDS = 20.0
"""How long each expected state may take. Most take milliseconds; a wake is repeated after some seconds."""

LOOPBACK = "127.0.0.1"


class StoryWorker:
    """The worker that runs a demo, in one process with the product's workers. At the end it stops the process."""

    name = "story"

    def __init__(self, stage: Stage, story: Story, stop: asyncio.Event) -> None:
        self._stage = stage
        self._story = story
        self._stop = stop
        self.succeeded = False

    def unready(self) -> str | None:
        """Always ready: the first step waits for the other workers."""
        return None

    async def run(self) -> None:
        """Runs the demo to the end or to the first failed step; then sets `stop`."""
        try:
            await self._stage.set_up()
            await self._story.run(self._stage)
            self.succeeded = True
        except StepFailedError:
            pass  # already printed
        self._stop.set()
        await asyncio.Event().wait()  # a worker runs until it is cancelled


async def run_story(
    settings: Settings,
    story: Story,
    *,
    console: Console,
    within: float = WITHIN_SECONDS,
    workers: Sequence[str] | None = None,
) -> int:
    """Runs a demo on a new sandbox, and returns the exit code: 0 only if all steps succeeded.

    Free addresses are chosen here, so other running processes do not matter. `within`: how many seconds each expected
    state may take. `workers`: the product's workers that run; by default all.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tas-demo-")))
        sandbox = await stack.enter_async_context(Sandbox.start(nodes=story.nodes))
        settings = dataclasses.replace(
            settings,
            bus=EMBEDDED,
            embedded_port=0,
            kubeconfig=sandbox.kubeconfig(folder / "kubeconfig"),
            new_bus_wait=0.0,  # nobody else can have labelled a node of this sandbox
            listen=Address(LOOPBACK, stack.enter_context(_reserved_port())),
            share_listen=True,
            health_listen=Address(LOOPBACK, 0),
        )
        extender = f"http://{settings.listen.near}"
        parts, stop = await stack.enter_async_context(process(settings))
        await parts.start_bus(announce=False)
        await parts.build(workers or story.workers or workers_of_all(settings))

        async def ready() -> Observed:
            unready = parts.unready()
            reasons = "; ".join(f"{worker}: {reason}" for worker, reason in unready.items())
            return Observed(not unready, reasons or "all workers are ready")

        stage = Stage(
            await parts.context.connect_kubernetes("story"),
            await parts.context.connect("story"),
            nodes=[Node(name, hostname=name) for name in story.nodes],
            namespace=story.namespace,
            extender=f"{extender}{PREFIX}",
            ready=ready,
            narration=Narration(console, within=within),
        )
        worker = StoryWorker(stage, story, stop)
        parts.add(worker)
        await stack.enter_async_context(sandbox.scheduler(extender_entry(extender, **story.entry)))
        code = await parts.run(stop)
    return code or (0 if worker.succeeded else EXIT_FAILED)


async def run_story_on_cluster(
    settings: Settings, story: Story, bus: Bus, *, console: Console, within: float, may_probe: bool
) -> int:
    """Runs a demo where the product is already running, and cleans up; the exit code is 0 only if all steps succeeded.

    `within` as in `run_story`. `may_probe`: whether the demo may create a pod to check that the scheduler asks the
    extender.
    Raises UnfitError if the demo cannot run there; nothing was changed.
    """
    assert settings.kubeconfig is not None, "the caller has checked this"
    file = settings.kubeconfig if isinstance(settings.kubeconfig, Path) else None
    async with AsyncExitStack() as stack:
        stop = await stack.enter_async_context(stop_signals())
        try:
            client = await stack.enter_async_context(KubernetesClient.connect(file, worker="demo"))
        except ConfigurationError as error:
            raise UnfitError(kubeconfig_problem(settings.kubeconfig, error)) from error
        checks = ClusterChecks(client, bus, story, extender=settings.listen.near, health=settings.extender_health.near)
        nodes = await checks.choose_nodes()
        # On nodes of its own the demo shows by its pods whether the scheduler asks the extender.
        recent_pod = None if story.own_nodes else await checks.recent_pod()
        must_probe = recent_pod is None and not story.own_nodes
        if must_probe and not may_probe:
            raise checks.no_request_error()
        stage = Stage(
            client,
            bus,
            nodes=nodes,
            namespace=story.namespace,
            extender=f"http://{settings.listen.near}{PREFIX}",
            ready=checks.observe_ready,
            narration=Narration(console, within=within),
            creates_nodes=story.own_nodes,
        )
        console.print(f"on {', '.join(stage.nodes)} of {client.server}")
        if must_probe:
            console.print(f"no evidence yet that its scheduler asks the extender at {settings.listen}")
        elif recent_pod is not None:
            console.print(f"its scheduler has asked the extender at {settings.listen} about pod {recent_pod}")

        async def steps() -> None:
            await stage.set_up()
            if must_probe:
                await probe(stage)
            await story.run(stage)

        try:
            succeeded = await _succeeds(steps(), stop=stop)
        finally:
            cleaned_up = await _succeeds(stage.clean_up())
        return 0 if succeeded and cleaned_up else EXIT_FAILED


async def _succeeds(steps: Coroutine[Any, Any, None], *, stop: asyncio.Event | None = None) -> bool:
    """Whether all steps succeeded; false after the first failed step, and when `stop` is set before the end."""
    running = asyncio.create_task(steps)
    stopped = asyncio.create_task((stop or asyncio.Event()).wait())
    await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in (running, stopped):
        task.cancel()
    await asyncio.wait([running, stopped])
    with suppress(asyncio.CancelledError, StepFailedError):  # already printed
        running.result()
        return True
    return False


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A port for the extender, known before the extender starts: the scheduler's configuration contains it.

    It stays bound here, so that no other process gets it. The extender shares it.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((LOOPBACK, 0))
        port: int = reserved.getsockname()[1]
        yield port


@click.group("demo", no_args_is_help=True)
def demo() -> None:
    """Run a worked example on a simulated cluster.

    Each step prints the expected and the observed state. The cluster is deleted at the end. Exit codes: 0 if all steps
    succeeded, 1 if a step failed.

    With --kubeconfig a demo runs on a cluster where tas run all is running and whose scheduler asks this extender. It
    creates a namespace, and deletes it at the end. If the demo cannot run there, it prints the reason,
    changes nothing, and exits with 1.
    """


def _limit(_context: click.Context, _option: click.Parameter, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except DurationError:
        seconds = 0.0
    if seconds <= 0:
        raise click.BadParameter(f"{shortened(text)} must be a duration such as 5s or 1m, more than 0s")
    return seconds


def _add(name: str, story: Story) -> None:
    """Adds the command of a demo; its help is the docstring of the demo's steps."""

    @settings_command(
        name,
        settings_as="demo",
        help=story.run.__doc__,
        params=[
            click.Option(
                ["--within"],
                metavar="DURATION",
                default=f"{WITHIN_SECONDS:g}s",
                show_default=True,
                callback=_limit,
                help="How long each expected state may take.",
            ),
            click.Option(
                ["--probe", "may_probe"],
                is_flag=True,
                help="With --kubeconfig, if there is no evidence yet that the scheduler asks the extender: first "
                "create a pod that the extender rejects on every node. A scheduler that does not ask the extender may "
                "place this pod.",
            ),
        ],
    )
    def command(settings: Settings, *, within: float, may_probe: bool) -> int:
        # A terminal gets colours; a pipe gets plain lines that are not wrapped.
        console = new_console(soft_wrap=True, file=sys.stdout)
        if settings.kubeconfig is not None:
            return _command_on_cluster(name, settings, console, within=within, may_probe=may_probe)
        console.print(f"{name}: on a simulated cluster with {', '.join(story.nodes)}", style="bold")
        code = run_process(settings, run_story(settings, story, console=console, within=within))
        return _finish(name, code, console)

    demo.add_command(command)


def _command_on_cluster(name: str, settings: Settings, console: Console, *, within: float, may_probe: bool) -> int:
    story = STORIES[name]

    async def on(bus: Bus, _url: str) -> int:
        return await run_story_on_cluster(settings, story, bus, console=console, within=within, may_probe=may_probe)

    try:
        code = ask(settings, on)
    except UnfitError as error:
        raise click.ClickException(f"{name} cannot run, and nothing was changed: {error}") from error
    return _finish(name, code, console)


def _finish(name: str, code: int, console: Console) -> int:
    console.print(
        f"{name}: all steps succeeded" if code == 0 else f"{name}: failed",
        style="bold green" if code == 0 else "bold red",
    )
    return code


for _name, _story in STORIES.items():
    _add(_name, _story)
