"""`tas demo`: stories that play themselves, and tell what they expected and what they saw.

On a cluster in a box, or with `--kubeconfig` on a cluster that has this product at work already.
"""

import asyncio
import dataclasses
import socket
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bus.connection import Bus
from sandbox import Sandbox, extender_entry
from tas.duration import DurationError, parse_duration
from tas.errors import shortened
from workers.cli.asking import ask
from workers.cli.demo_cluster import Around, UnfitError, probe
from workers.cli.demo_stage import Node, Stage
from workers.cli.demo_stories import STORIES, Story
from workers.cli.demo_telling import NotSeenError, Seen, Telling
from workers.cli.options import settings_command
from workers.cli.settings import EMBEDDED, Settings
from workers.cli.wiring import all_workers, kubeconfig_problem, process, run_process
from workers.extender import PREFIX
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConfigurationError
from workers.runtime import EXIT_FAILED, Address, stop_signals

WITHIN_SECONDS = 20.0
"""How long each thing that is expected may take. Most take milliseconds; a wake is repeated for 15 s."""

LOOPBACK = "127.0.0.1"


class Player:
    """The worker that plays: beside those of the product, in their process, which ends with it."""

    name = "story"

    def __init__(self, stage: Stage, story: Story, stop: asyncio.Event) -> None:
        self._stage = stage
        self._story = story
        self._stop = stop
        self.succeeded = False

    def unready(self) -> str | None:
        """It waits for the others by itself."""
        return None

    async def run(self) -> None:
        """Plays to the end, or to the first thing that is not seen; then asks for the end of the process."""
        try:
            await self._stage.enter()
            await self._story.tale(self._stage)
            self.succeeded = True
        except NotSeenError:
            pass  # told already
        self._stop.set()
        await asyncio.Event().wait()  # a worker runs until it is told to stop


async def play(
    settings: Settings,
    story: Story,
    *,
    console: Console,
    within: float = WITHIN_SECONDS,
    workers: Sequence[str] | None = None,
) -> int:
    """Plays on a sandbox of its own, and returns the exit code: 0 only if all was seen.

    Args:
        settings: those of logs; addresses are chosen here, so that nothing that runs already is in the way.
        story: what is played.
        console: where it is told.
        within: how many seconds each thing that is expected may take.
        workers: those of the product that run; by default all.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tas-demo-")))
        sandbox = await stack.enter_async_context(Sandbox.start(nodes=story.nodes))
        settings = dataclasses.replace(
            settings,
            bus=EMBEDDED,
            embedded_port=0,
            kubeconfig=sandbox.kubeconfig(folder / "kubeconfig"),
            listen=Address(LOOPBACK, _free_port()),
            health_listen=Address(LOOPBACK, 0),
        )
        extender = f"http://{settings.listen}"
        parts, stop = await stack.enter_async_context(process(settings))
        url = await parts.start_bus(announce=False)
        await parts.build(url, all_workers(settings) if workers is None else workers)

        async def ready() -> Seen:
            waits = parts.unready()
            return Seen(not waits, "; ".join(f"{worker}: {why}" for worker, why in waits.items()) or "all are")

        stage = Stage(
            await parts.connect_kubernetes("story"),
            await parts.connect(url, "story"),
            nodes=[Node(name, hostname=name) for name in story.nodes],
            namespace=story.namespace,
            extender=f"{extender}{PREFIX}",
            ready=ready,
            telling=Telling(console, within=within),
        )
        player = Player(stage, story, stop)
        parts.add(player)
        await stack.enter_async_context(sandbox.scheduler(extender_entry(extender)))
        code = await parts.run(stop)
    return code or (0 if player.succeeded else EXIT_FAILED)


async def play_on_cluster(
    settings: Settings, story: Story, bus: Bus, *, console: Console, within: float, may_probe: bool
) -> int:
    """Plays where the product is at work already, and cleans up; the exit code is 0 only if all was seen.

    Args:
        settings: the kubeconfig, and where the extender and its health are.
        story: what is played.
        bus: that of the product at work.
        console: where it is told.
        within: how many seconds each thing that is expected may take.
        may_probe: whether a pod may be created to learn whether the scheduler asks the extender.

    Raises:
        UnfitError: if it cannot be played there; nothing of the cluster was touched.
    """
    assert settings.kubeconfig is not None, "it must be given"
    file = settings.kubeconfig if isinstance(settings.kubeconfig, Path) else None
    async with AsyncExitStack() as stack:
        stop = await stack.enter_async_context(stop_signals())
        try:
            client = await stack.enter_async_context(KubernetesClient.connect(file, worker="demo"))
        except ConfigurationError as error:
            raise UnfitError(kubeconfig_problem(settings.kubeconfig, error)) from error
        around = Around(client, bus, story, extender=settings.listen, health=settings.extender_health)
        nodes = await around.choose_nodes()
        asked_about = await around.asked_about()
        if asked_about is None and not may_probe:
            raise around.unasked()
        stage = Stage(
            client,
            bus,
            nodes=nodes,
            namespace=story.namespace,
            extender=f"http://{settings.listen}{PREFIX}",
            ready=around.look,
            telling=Telling(console, within=within),
        )
        console.print(f"on {', '.join(stage.nodes)} of {client.server}")
        told = "nothing tells yet" if asked_about is None else f"so it did about pod {asked_about}"
        console.print(f"whether its scheduler asks the extender at {settings.listen}: {told}")

        async def tale() -> None:
            await stage.enter()
            if asked_about is None:
                await probe(stage)
            await story.tale(stage)

        try:
            seen = await _seen(tale(), unless=stop)
        finally:
            left = await _seen(stage.leave())
        return 0 if seen and left else EXIT_FAILED


async def _seen(tale: Coroutine[Any, Any, None], *, unless: asyncio.Event | None = None) -> bool:
    """Whether all of a tale was seen: it ends early at what is not seen, or when `unless` is set."""
    playing = asyncio.create_task(tale)
    stopped = asyncio.create_task((unless or asyncio.Event()).wait())
    await asyncio.wait([playing, stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in (playing, stopped):
        task.cancel()
    await asyncio.wait([playing, stopped])
    with suppress(asyncio.CancelledError, NotSeenError):  # told already
        playing.result()
        return True
    return False


def _free_port() -> int:
    """A port that the scheduler can be told before the extender listens there."""
    with socket.create_server((LOOPBACK, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@click.group("demo", no_args_is_help=True)
def demo() -> None:
    """Play a worked example without a hand, on a cluster in a box, and leave nothing behind.

    Each step tells what was expected and what was seen. Exit codes: 0 if all was seen, 1 if something was not.

    With --kubeconfig it plays on a cluster whose scheduler asks this extender already (tas run all), in a namespace of
    its own which it deletes at the end; where it cannot, it says why before it has touched anything, with code 1.
    """


def _limit(_context: click.Context, _option: click.Parameter, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except DurationError:
        seconds = 0.0
    if seconds <= 0:
        raise click.BadParameter(f"{shortened(text)} must be a duration such as 5s or 1m, and more than nothing")
    return seconds


def _add(name: str, story: Story) -> None:
    """The command of a story, whose help is what the story says of itself."""

    @settings_command(
        name,
        settings_as="demo",
        help=story.tale.__doc__,
        params=[
            click.Option(
                ["--within"],
                metavar="DURATION",
                default=f"{WITHIN_SECONDS:g}s",
                show_default=True,
                callback=_limit,
                help="How long each thing that is expected may take.",
            ),
            click.Option(
                ["--probe", "may_probe"],
                is_flag=True,
                help="With --kubeconfig, where no pod tells yet that the scheduler asks the extender: find out by "
                "creating one that no node is good enough for. A scheduler that does not ask may place it.",
            ),
        ],
    )
    def command(settings: Settings, *, within: float, may_probe: bool) -> int:
        # A terminal gets colours; a pipe plain lines, as long as they are.
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, file=sys.stdout)
        if settings.kubeconfig is not None:
            return _command_on_cluster(name, settings, console, within=within, may_probe=may_probe)
        console.print(f"{name}: on a cluster in a box with {', '.join(story.nodes)}", style="bold")
        code = run_process(settings, play(settings, story, console=console, within=within))
        return _told(name, code, console)

    demo.add_command(command)


def _command_on_cluster(name: str, settings: Settings, console: Console, *, within: float, may_probe: bool) -> int:
    async def on(bus: Bus, _url: str) -> int:
        return await play_on_cluster(settings, STORIES[name], bus, console=console, within=within, may_probe=may_probe)

    try:
        code = ask(settings, on)
    except UnfitError as error:
        raise click.ClickException(f"{name} cannot be played, and nothing was touched: {error}") from error
    return _told(name, code, console)


def _told(name: str, code: int, console: Console) -> int:
    console.print(
        f"{name}: all was seen" if code == 0 else f"{name}: not all was seen",
        style="bold green" if code == 0 else "bold red",
    )
    return code


for _name, _story in STORIES.items():
    _add(_name, _story)
