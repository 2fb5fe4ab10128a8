"""Runs in turn, so that a slow minute slows both sides: a fixed answer before and after what is compared with it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from rich.table import Table

from tests.bench.e2e.run import Run, Variant
from tests.bench.report import figure, new_table
from tests.bench.rows import Budget, Of, Row, row


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared with one floor.

    Attributes:
        name: For the table, and for `--only`.
        goals: The least ratio that the project aims at, by variant.
        most_nodes: The largest cluster for which it runs.
        most_pods: The most pods of a run.
    """

    name: str
    floor: Variant
    ours: Sequence[Variant]
    goals: dict[str, float] = field(default_factory=dict)
    most_nodes: int = 15_000
    most_pods: int = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The runs of a comparison: those of the floor are one more than the rounds."""

    name: str
    comparison: Comparison
    floor: list[Run]
    ours: dict[str, list[Run]]

    def rows(self) -> list[Row]:
        """Of each variant the pods a second, and the processor time of all processes for each pod."""
        rows = []
        for variant, runs in self.ours.items():
            goal = self.comparison.goals.get(variant)
            for statistic, unit, of in (("placed", "pods/s", _rate), ("processor, all processes", "ms/pod", _cpu)):
                # Each run beside the mean of the floor's runs before and after it.
                floors = [
                    (of(before) + of(after)) / 2 for before, after in zip(self.floor, self.floor[1:], strict=False)
                ]
                budget = None if goal is None or of is not _rate else Budget(goal, Of.RATIO, least=True)
                series = f"{self.name}: {variant}"
                found = [of(run) for run in runs]
                name = self.comparison.floor.name
                rows.append(row(series, statistic, found, floors, unit=unit, floor_name=name, budget=budget))
        return rows

    def spent(self) -> Table:
        """Processor time for each pod, by process."""
        return self._by_variant(f"Processor milliseconds for each pod, {self.name}", "process", lambda run: run.cpu)

    def stages(self) -> Table:
        """What the scheduler and the extender report about themselves."""
        return self._by_variant(f"Milliseconds for each call, {self.name}", "reported by", lambda run: run.stages)

    def _by_variant(self, title: str, what: str, of: Callable[[Run], Mapping[str, float]]) -> Table:
        runs = {self.comparison.floor.name: self.floor, **self.ours}
        table = new_table(title, what, *runs)
        for name in dict.fromkeys(name for found in runs.values() for run in found for name in of(run)):
            cells = []
            for found in runs.values():
                values = [of(run)[name] for run in found if name in of(run)]
                cells.append(figure(median(values), "") if values else "")
            table.add_row(name, *cells)
        return table


def _rate(run: Run) -> float:
    return run.rate


def _cpu(run: Run) -> float:
    return sum(run.cpu.values())


async def compare(
    comparison: Comparison, name: str, measure: Callable[[Variant], Awaitable[Run]], *, rounds: int
) -> Compared:
    """Measures each variant once in each round, and the floor before and after; every second round backwards."""
    found = Compared(name=name, comparison=comparison, floor=[], ours={each.name: [] for each in comparison.ours})
    found.floor.append(await measure(comparison.floor))
    for number in range(rounds):
        for variant in comparison.ours[:: -1 if number % 2 else 1]:
            found.ours[variant.name].append(await measure(variant))
        found.floor.append(await measure(comparison.floor))
    return found
