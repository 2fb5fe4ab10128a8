"""`python -m tests.bench.e2e`: runs, prints, and writes down. No test: the exit code says only whether it ran."""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from tests.bench import machine
from tests.bench.__main__ import DOCS, WIDTH
from tests.bench.e2e.comparison import Compared, Comparison, compare
from tests.bench.e2e.run import Run, Variant, measure
from tests.bench.e2e.world import World
from tests.bench.machine import Noise, NoiseMeter
from tests.bench.report import print_tables, tables, write_docs, write_json
from tests.bench.rows import Results
from tests.bench.stand import REPOSITORY, Stand
from tests.e2e import binaries
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import configure_logging

ONE, APART = "one process", "workers apart"

COMPARISONS = (
    Comparison(
        name="tls",
        floor=Variant(name="fixed answer", tls=True),
        ours=(
            Variant(name=ONE, ours=True, tls=True),
            Variant(name=APART, ours=True, tls=True, apart=True),
            Variant(name="an answer like ours", tls=True, same=True),
        ),
        goals={ONE: 0.8, APART: 0.9},
    ),
    Comparison(
        name="polled",
        floor=Variant(name="fixed answer", tls=True, polled=True),
        ours=(Variant(name=ONE, ours=True, tls=True, polled=True),),
        goals={ONE: 0.7},
    ),
    Comparison(
        name="plain",
        floor=Variant(name="fixed answer"),
        ours=(
            Variant(name=ONE, ours=True),
            Variant(name=APART, ours=True, apart=True),
            Variant(name="no extender", extender=False),
        ),
    ),
    Comparison(
        name="cards",
        floor=Variant(name="fixed answer, the scheduler binds", cards=True),
        ours=(Variant(name="gpu binds", ours=True, cards=True),),
        goals={"gpu binds": 0.7},
        most_nodes=500,
    ),
    Comparison(
        name="full-nodes",
        floor=Variant(name="fixed answer", names_only=False),
        ours=(Variant(name=ONE, ours=True, names_only=False),),
        most_nodes=500,
        most_pods=200,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure: each comparison with each number of nodes."""

    comparisons: Sequence[Comparison]
    sizes: Sequence[int]
    pods: int
    rounds: int


def main() -> int:
    """Reads the arguments and runs; Ctrl-C ends everything that was started."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.e2e", description="Pods a second, beside a floor.")
    parser.add_argument("--quick", action="store_true", help="500 nodes, 300 pods, two rounds: orders of magnitude")
    names = [each.name for each in COMPARISONS]
    parser.add_argument("--only", action="append", choices=names, metavar="ROW", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, help="how often each is repeated; else 5")
    parser.add_argument("--nodes", type=int, action="append", help="the size of the cluster; else 500, then 2000")
    parser.add_argument("--pods", type=int, help="the pods of each run; else 2000")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures; else bench-results/")
    parser.add_argument("--docs", action="store_true", help="put the tables into docs/reference/benchmark.md as well")
    arguments = parser.parse_args()
    binary = binaries.find()
    if binary is None:
        print(binaries.MISSING, file=sys.stderr)
        return 1
    taken = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = arguments.json or REPOSITORY / "bench-results" / f"e2e-{taken}.json"
    quick = arguments.quick
    plan = Plan(
        comparisons=[each for each in COMPARISONS if each.name in (arguments.only or names)],
        sizes=sorted(arguments.nodes or ([500] if quick else [500, 2000])),
        pods=arguments.pods or (300 if quick else 2000),
        rounds=arguments.rounds or (2 if quick else 5),
    )
    configure_logging(LogFormat.AUTO, LogLevel.WARNING)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    found = machine.facts() | {"quick": quick}
    with TemporaryDirectory(prefix="tas-bench-") as folder:
        stand = Stand(folder=Path(folder), quick=quick)
        compared, noise, failed = asyncio.run(_run(console, stand, binary, plan))
    results = Results(rows=[row for each in compared for row in each.rows()])
    printed = [
        *tables(results, noise),
        *(table for each in compared for table in (each.spent(), each.stages())),
    ]
    write_json(path, results, noise, found, runs=compared)
    if arguments.docs:
        write_docs(DOCS, printed, found, mark="measured-e2e")
    console.print()
    print_tables(console, printed)
    console.print(f"written to {path}", style="dim", soft_wrap=True)
    return 1 if failed else 0


async def _run(
    console: Console, stand: Stand, binary: Mapping[str, Path], plan: Plan
) -> tuple[list[Compared], dict[str, Noise], list[str]]:
    """All comparisons, the noise meanwhile, and the names of those that failed."""
    compared: list[Compared] = []
    noise: dict[str, Noise] = {}
    failed = []
    with World.start(stand, binary) as world:
        for size in plan.sizes:
            world.grow(size)
            for each in plan.comparisons:
                if size > each.most_nodes:
                    continue
                pods = min(plan.pods, each.most_pods)
                name = f"{each.name}, {size:,} nodes, {pods:,} pods"

                async def measured(variant: Variant, name: str = name, pods: int = pods) -> Run:
                    run = await measure(world, variant, pods=pods)
                    console.print(f"{name}: {variant.name}: {run.rate:.0f} pods/s", style="dim", highlight=False)
                    return run

                meter = NoiseMeter()
                try:
                    compared.append(await compare(each, name, measured, rounds=plan.rounds))
                except Exception as error:  # noqa: BLE001 - one that cannot be measured does not cost the others
                    console.print(f"{name} failed: {error}", style="bold red", markup=False)
                    failed.append(name)
                noise[name] = meter.read()
    return compared, noise, failed


if __name__ == "__main__":
    sys.exit(main())
