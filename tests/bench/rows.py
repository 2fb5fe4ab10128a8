"""What a measurement becomes: a row with its floor, its ratio, its budget, and whether the budget holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from statistics import median


class Of(StrEnum):
    """What a budget bounds."""

    MEASURED = "measured"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `limit`, in the row's unit or as a ratio to its floor; with `least` at least `limit`."""

    limit: float
    of: Of = Of.MEASURED
    least: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """What a figure is expected to grow with: so many of what."""

    count: int
    of: str

    def __str__(self) -> str:
        return f"{self.count:,} {self.of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    `rounds` holds the same figure once for each round (of the ratio, where there is a floor): how noisy it was.
    Rows that differ only in `size` share their `series`: the table of growth compares them.
    """

    series: str
    statistic: str
    unit: str
    measured: float
    floor: float | None = None
    floor_name: str = ""
    ratio: float | None = None
    budget: Budget | None = None
    rounds: tuple[float, ...] = ()
    size: Size | None = None

    @property
    def name(self) -> str:
        """What was measured, for a person."""
        return self.series if self.size is None else f"{self.series}, {self.size}"

    @property
    def met(self) -> bool | None:
        """Whether the budget holds; None without one."""
        if self.budget is None:
            return None
        value = self.ratio if self.budget.of is Of.RATIO else self.measured
        assert value is not None, f"{self.name}: a budget of the ratio needs a floor"
        return value >= self.budget.limit if self.budget.least else value <= self.budget.limit


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Processor seconds of one process during one measurement."""

    during: str
    process: str
    cpu_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class NotRun:
    """What this machine could not measure, and what it lacks."""

    series: str
    reason: str


@dataclass(slots=True)
class Results:
    """Everything one run found."""

    rows: list[Row] = field(default_factory=list)
    cpu: list[CpuUse] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)

    def add(self, other: "Results") -> None:
        """Takes in what another measurement found."""
        self.rows += other.rows
        self.cpu += other.cpu
        self.not_run += other.not_run


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


QUANTILES = {"p50": 0.5, "p99": 0.99}

Rounds = Sequence[Sequence[float]]
"""For each round the seconds of each repetition."""


def row(
    series: str,
    statistic: str,
    ours: Sequence[float],
    floor: Sequence[float] = (),
    *,
    unit: str,
    floor_name: str = "",
    budget: Budget | None = None,
    size: Size | None = None,
    size_name: str = "",
) -> Row:
    """A row from one figure for each round: the medians, and the median of the ratios.

    A round's ratio compares what ran interleaved, so a machine that slows down for a second slows both sides.
    """
    ratios = tuple(found / least for found, least in zip(ours, floor, strict=True)) if floor else ()
    return Row(
        series=series,
        statistic=statistic,
        unit=unit,
        measured=median(ours),
        floor=median(floor) if floor else None,
        floor_name=floor_name,
        ratio=median(ratios) if ratios else None,
        budget=budget,
        rounds=ratios or tuple(ours),
        size=size,
    )


def quantile_rows(
    series: str,
    ours: Rounds,
    floor: Rounds = (),
    *,
    floor_name: str = "",
    budgets: Mapping[str, Budget] | None = None,
    size: Size | None = None,
    size_name: str = "",
) -> list[Row]:
    """Rows of quantiles in ms; `budgets` by statistic."""
    return [
        row(
            series,
            statistic,
            [quantile(times, share) * 1000 for times in ours],
            [quantile(times, share) * 1000 for times in floor],
            unit="ms",
            floor_name=floor_name,
            budget=(budgets or {}).get(statistic),
            size=size,
        )
        for statistic, share in QUANTILES.items()
    ]


def both(budget: Budget) -> dict[str, Budget]:
    """One budget for p50 and for p99."""
    return dict.fromkeys(QUANTILES, budget)
