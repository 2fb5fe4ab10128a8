"""`python -m tests.bench`: measures, prints, and writes down. No test: the exit code says only whether it ran."""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from tests.bench import (
    agents,
    attacked,
    beside,
    burst,
    cards,
    change,
    enforcement,
    hold,
    limit,
    load,
    machine,
    memory,
    names,
    nodes,
    polls,
    sources,
    stages,
    start,
    verdicts,
    view,
    writes,
)
from tests.bench.machine import Noise, NoiseMeter
from tests.bench.report import print_lines, print_tables, tables, verdict, write_docs, write_json
from tests.bench.rows import Results
from tests.bench.stand import REPOSITORY, Stand
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import configure_logging

DOCS = REPOSITORY / "docs" / "reference" / "benchmark.md"
DOCS_HELP = "put the tables into docs/reference/benchmark.md; those of a run of one kind alone go to their own place"

WIDTH = 160
"""Columns of an output that is no terminal: each row fits on one line."""

FAMILIES: Mapping[str, Callable[[Stand], Awaitable[Results]]] = {
    family.NAME: family.measure
    for family in (
        names,
        stages,
        nodes,
        load,
        change,
        enforcement,
        limit,
        burst,
        cards,
        agents,
        beside,
        attacked,
        polls,
        writes,
        sources,
        view,
        verdicts,
        memory,
        start,
        hold,
    )
}


PARTS: Mapping[str, frozenset[str]] = {
    "measured-polls": frozenset({polls.NAME, writes.NAME}),
    "measured-cards": frozenset({cards.NAME}),
    "measured-agents": frozenset({agents.NAME, beside.NAME}),
    "measured-attacked": frozenset({attacked.NAME}),
}
"""The marks of the page for a run of no other families."""


def main() -> int:
    """Reads the arguments and runs; Ctrl-C and SIGTERM end everything that was started."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="The budgets, each beside its floor.")
    parser.add_argument("--quick", action="store_true", help="a minute or two: orders of magnitude, a coarse p99")
    parser.add_argument("--only", action="append", choices=FAMILIES, metavar="ROW", help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures; else bench-results/")
    parser.add_argument("--docs", action="store_true", help=DOCS_HELP)
    arguments = parser.parse_args()
    taken = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = arguments.json or REPOSITORY / "bench-results" / f"{taken}.json"
    configure_logging(LogFormat.AUTO, LogLevel.WARNING)
    try:
        run = _run(arguments.only or list(FAMILIES), path, quick=arguments.quick, docs=arguments.docs)
        failed = asyncio.run(run)
    except asyncio.CancelledError:
        return 130
    return 1 if failed else 0


async def _run(families: list[str], path: Path, *, quick: bool, docs: bool) -> list[str]:
    """Measures and prints; returns the families that failed."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    found = machine.facts() | {"quick": quick}
    results = Results()
    noise: dict[str, Noise] = {}
    failed = []
    with TemporaryDirectory(prefix="tas-bench-") as folder:
        stand = Stand(folder=Path(folder), quick=quick, found=partial(print_lines, console))
        for family in families:
            console.print(f"measuring {family} …", style="dim")
            meter = NoiseMeter()
            try:
                results.add(await FAMILIES[family](stand))
            except Exception as error:  # noqa: BLE001 - one row that cannot be measured does not cost the others
                console.print(f"{family} failed: {error}", style="bold red", markup=False)
                failed.append(family)
            noise[family] = meter.read()
    write_json(path, results, noise, found)
    if docs:
        mark = next((mark for mark, part in PARTS.items() if part >= set(families)), "measured")
        write_docs(DOCS, tables(results, noise), found, mark=mark)
    console.print()
    print_tables(console, tables(results, noise))
    console.print(verdict(results), markup=False, soft_wrap=True)
    console.print(f"written to {path}", style="dim", soft_wrap=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
