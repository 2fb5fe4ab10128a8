"""`tas demo`: stories that play themselves on a cluster in a box, and tell what they expected and what they saw."""

import asyncio
import dataclasses
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click
from rich.console import Console

from sandbox import Sandbox, extender_entry
from tas.duration import DurationError, parse_duration
from workers.cli.demo_stage import NotSeenError, Stage
from workers.cli.demo_stories import STORIES, Story
from workers.cli.options import settings_command
from workers.cli.settings import EMBEDDED, Settings
from workers.cli.wiring import all_workers, process, run_process
from workers.extender import PREFIX
from workers.runtime import EXIT_FAILED, Address

WITHIN_SECONDS = 20.0
"""How long each thing that is expected may take. Most take a few milliseconds; a wake is repeated for 15 s."""

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
        stage = Stage(
            sandbox.cluster,
            await parts.connect(url, "story"),
            extender=f"{extender}{PREFIX}",
            unready=parts.unready,
            console=console,
            within=within,
        )
        player = Player(stage, story, stop)
        parts.add(player)
        await stack.enter_async_context(sandbox.scheduler(extender_entry(extender)))
        code = await parts.run(stop)
    return code or (0 if player.succeeded else EXIT_FAILED)


def _free_port() -> int:
    """A port that the scheduler can be told before the extender listens there."""
    with socket.create_server((LOOPBACK, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@click.group("demo", no_args_is_help=True)
def demo() -> None:
    """Play a worked example without a hand, on a cluster in a box, and leave nothing behind.

    Each step tells what was expected and what was seen. Exit codes: 0 if all was seen, 1 if something was not.
    """


def _limit(_context: click.Context, _option: click.Parameter, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except DurationError:
        seconds = 0.0
    if seconds <= 0:
        raise click.BadParameter("must be a duration such as 5s or 1m")
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
            )
        ],
    )
    def command(settings: Settings, *, within: float) -> int:
        # A terminal gets colours; a pipe plain lines, as long as they are.
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, file=sys.stdout)
        console.print(f"{name}: on a cluster in a box with {', '.join(story.nodes)}", style="bold")
        code = run_process(settings, play(settings, story, console=console, within=within))
        console.print(
            f"{name}: all was seen" if code == 0 else f"{name}: not all was seen",
            style="bold green" if code == 0 else "bold red",
        )
        return code

    demo.add_command(command)


for _name, _story in STORIES.items():
    _add(_name, _story)
