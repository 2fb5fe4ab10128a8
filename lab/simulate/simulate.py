"""`tas simulate`: does an algorithm help? The same load is placed by each, and what comes of it is compared."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cli.as_json import JSON_OPTION, print_json
from cli.output import echo
from lab.simulate.field import DEFAULT, algorithms
from lab.simulate.model.load import Load
from lab.simulate.model.recording import parse_recording
from lab.simulate.model.simulation import Result
from lab.simulate.model.simulation import simulate as run
from lab.simulate.model.synthetic import Shape, excess_of_made, synthetic_load
from lab.simulate.outcome import Outcome, picture
from tas.errors import InvalidInputError
from tas.values.nouns import counted
from workers.process.errors import EXIT_FAILED

BAR = 20
"""The longest bar of the table, in characters."""


def compare(
    *,
    load: tuple[str, ...],
    recording: Path | None,
    seed: int,
    runs: int,
    nodes: int,
    pods: int,
    hours: float,
    agents: Path | None,
    policies: Path | None,
    weight: int,
    only: tuple[str, ...],
    svg: Path | None,
    as_json: bool,
) -> int:
    """Compare default scores, policies and agents by simulation.

    The same pods are placed on a simulated cluster by the default scores of kube-scheduler alone, and by these scores
    with each policy and each agent as an extender. The table has the results. Its minutes are added up over nodes: two
    nodes for one minute are two minutes.

    The load is made from --seed, or read from --recording. The same arguments give the same output. Only the named
    files are read: no bus, no cluster. docs/background/agents-compared.md explains the table, the loads and the
    recording.
    """
    _refuse_beside(recording)
    if recording is None and (excess := excess_of_made(nodes=nodes, pods=pods, hours=hours)) is not None:
        raise click.UsageError(f"--nodes {nodes}, --pods {pods}, --hours {hours:g}: {excess}")
    makers = algorithms(agents=agents, policies=policies, weight=weight, only=only)
    loads = _loads(load, recording, nodes=nodes, pods=pods, hours=hours)
    outcomes = []
    try:
        with _progress() as show:
            for name, make_load in loads:
                results: dict[str, list[Result]] = {algorithm: [] for algorithm in makers}
                for one in range(seed, seed + runs):  # a load at a time: the largest take a gigabyte
                    made = make_load(one)
                    for algorithm, make in makers.items():
                        show(f"{name}: {algorithm}")
                        results[algorithm].append(run(made, make(made), seed=one))
                    del made
                outcomes += [Outcome(load=name, algorithm=each, results=found) for each, found in results.items()]
    except InvalidInputError as error:
        echo(f"Error: {error}", err=True)
        return EXIT_FAILED
    if svg is not None:
        title = _title(recording, nodes=nodes, pods=pods, hours=hours, seed=seed, runs=runs)
        _write(svg, picture(outcomes, title))
    if as_json:
        print_json([asdict(each) for each in outcomes])
    else:
        _print(outcomes)
    return 0


def _option(name: str, kind: object, text: str, default: object = None, **more: Any) -> click.Option:
    """An option; its default is shown if it has one."""
    return click.Option([name], type=kind, help=text, default=default, show_default=default is not None, **more)


_PATH = click.Path(path_type=Path)

simulate = click.Command(
    "simulate",
    callback=compare,
    help=compare.__doc__,
    params=[
        _option(
            "--load",
            click.Choice([each.value for each in Shape]),
            "How the use of pods changes. Repeatable.",
            [Shape.MIXED.value],
            multiple=True,
        ),
        _option("--recording", _PATH, "A recording in place of a made load.", metavar="FILE"),
        _option("--seed", click.IntRange(0, 2**31), "The first seed.", 1),
        _option(
            "--runs",
            click.IntRange(1, 1000),
            "How many seeds: the table has the mean, and for overload the least and the largest.",
            1,
        ),
        _option("--nodes", click.IntRange(1, 1000), "How many nodes a made load has.", 50),
        _option("--pods", click.IntRange(1, 20_000), "How many pods a made load has.", 1000),
        _option("--hours", click.FloatRange(0.1, 168.0), "How long a made load is.", 24.0),
        _option(
            "--agents",
            _PATH,
            "The file of agents, as for tas run agents. Without it: each agent of the product with its defaults.",
            metavar="FILE",
        ),
        _option(
            "--policies",
            _PATH,
            "Manifests of TASPolicy; all pods use each one in turn. Without it: two policies by measured use.",
            metavar="DIR",
        ),
        _option(
            "--weight",
            click.IntRange(1, 1_000_000),
            "Of policies, and of agents without --agents: the extender's weight in the scheduler's configuration.",
            1,
        ),
        _option(
            "--only",
            str,
            f"Compare only this: {DEFAULT}, a policy, an agent, or agents beside each other as A+B. Repeatable.",
            metavar="NAME",
            multiple=True,
        ),
        _option("--svg", _PATH, "Write a picture of the overload, too.", metavar="FILE"),
        JSON_OPTION,
    ],
)


def _loads(
    shapes: Sequence[str], recording: Path | None, *, nodes: int, pods: int, hours: float
) -> Iterator[tuple[str, Callable[[int], Load]]]:
    """Each load by name, as a function of the seed."""
    if recording is not None:
        read = cache(lambda: _read(recording))
        yield recording.name, lambda _: read()
        return
    for name in dict.fromkeys(shapes):
        shape = Shape(name)
        yield (
            name,
            lambda seed, shape=shape: synthetic_load(shape, seed=seed, nodes=nodes, pods=pods, hours=hours),  # type: ignore[misc]
        )


def _refuse_beside(recording: Path | None) -> None:
    """Refuses what describes a made load beside a recording: it would have no effect."""
    context = click.get_current_context()
    for name in ("load", "nodes", "pods", "hours"):
        if recording is not None and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name}: describes a made load: give it, or --recording")


def _read(recording: Path) -> Load:
    try:
        with recording.open("rb") as lines:
            return parse_recording(str(recording), lines)
    except OSError as error:
        raise click.UsageError(f"--recording = {recording}: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise click.UsageError(f"--svg = {path}: {error.strerror}") from error


def _title(recording: Path | None, *, nodes: int, pods: int, hours: float, seed: int, runs: int) -> str:
    what = (
        recording.name
        if recording is not None
        else f"{counted(nodes, 'node')}, {counted(pods, 'pod')}, {hours:g} hours"
    )
    seeds = f"seed {seed}" if runs == 1 else f"seeds {seed} to {seed + runs - 1}"
    return f"Hours in which nodes use more than 90 %: {what}, {seeds}"


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is being computed; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.markup import escape

    from cli.console import new_console

    with new_console(stderr=True).status("") as status:
        yield lambda text: status.update(escape(text))


def _print(outcomes: Sequence[Outcome]) -> None:
    from cli.queries.tables import new_table, print_table

    table = new_table(
        "load", "algorithm", "overload, min", "", "cpu", "memory", "network", "unserved, core h", "spread", "peak",
        "refused", "waiting", "waited, min", "moves",
    )  # fmt: skip
    most = {name: max(each.mean("overload") for each in outcomes if each.load == name) for name in _names(outcomes)}
    before = ""
    for each in outcomes:
        overload, values = each.mean("overload"), each.values("overload")
        share = overload / most[each.load] if most[each.load] else 0.0
        between = f" ({min(values):.0f}-{max(values):.0f})" if len(values) > 1 else ""
        table.add_row(
            each.load if each.load != before else "",
            each.algorithm,
            f"{overload:.0f}{between}",
            "█" * max(round(share * BAR), int(overload > 0)),
            *(f"{each.mean(name):.0f}" for name in ("cpu", "memory", "network")),
            f"{each.mean('unserved'):.1f}",
            f"{each.mean('spread'):.3f}",
            f"{each.mean('peak'):.0%}",
            *(f"{each.mean(name):.0f}" for name in ("refused", "waiting", "waited", "moves")),
        )
        before = each.load
    print_table(table)


def _names(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(each.load for each in outcomes))
