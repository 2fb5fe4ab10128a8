"""What a run found, as tables for a person and as JSON for a program."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson
from rich.console import Console
from rich.markup import render
from rich.table import Table

from tests.bench.machine import Noise
from tests.bench.measure import growth
from tests.bench.rows import Of, Results, Row


def tables(results: Results, noise: Mapping[str, Noise]) -> list[Table]:
    """Every row with its budget, then the growth by size, the processor time of processes, and the noise."""
    return [_rows(results), _not_run(results), _growth(results), _cpu(results), _noise(noise)]


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """Prints the tables that have rows."""
    for each in tables:
        if each.row_count:
            console.print(each)
            console.print()


def print_lines(console: Console, results: Results) -> None:
    """Prints each row and each reason on a line of its own, before the tables of the whole run."""
    for row in results.rows:
        console.print(f"  {row.name}, {row.statistic}: {figure(row.measured, row.unit)}", style="dim", markup=False)
    for missing in results.not_run:
        console.print(f"  {missing.series}: {missing.reason}", style="dim", markup=False)


def verdict(results: Results) -> str:
    """In one line, whether each row reaches its budget, and which does not."""
    missed = [f"{row.name}, {row.statistic}" for row in results.rows if row.met is False]
    counted = sum(row.met is not None for row in results.rows)
    return f"failed: {'; '.join(missed)}" if missed else f"passed: {counted} of {counted} budgets are met"


def new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=number > 0)
    return table


def _rows(results: Results) -> Table:
    table = new_table("Budgets", "row", "of", "measured", "floor", "", "ratio", "rounds", "budget", "met")
    for row in results.rows:
        table.add_row(
            row.name,
            row.statistic,
            figure(row.measured, row.unit),
            "" if row.floor is None else figure(row.floor, row.unit),
            row.floor_name,
            "" if row.ratio is None else f"{row.ratio:.2f}",
            f"{min(row.rounds):.2f}–{max(row.rounds):.2f}" if len(row.rounds) > 1 else "",
            _budget(row),
            {True: "[green]yes[/]", False: "[bold red]no[/]", None: ""}[row.met],
        )
    return table


def _budget(row: Row) -> str:
    if row.budget is None:
        return ""
    sign = "≥" if row.budget.least else "≤"
    if row.budget.of is Of.RATIO:
        return f"{sign} {row.budget.limit:g}×"
    return f"{sign} {figure(row.budget.limit, row.unit)}"


def figure(value: float, unit: str) -> str:
    """A figure with three digits or more."""
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f} {unit}".rstrip()


def _not_run(results: Results) -> Table:
    table = new_table("Not run", "row", "what is missing")
    for each in results.not_run:
        table.add_row(each.series, each.reason)
    return table


def _growth(results: Results) -> Table:
    table = new_table("What twice the size costs (1: nothing more, 2: twice)", "row", "of", "from", "to", "factor")
    for smaller, larger, factor in growth(results.rows):
        if smaller.statistic == "p99":  # grows as p50 does, with more noise
            continue
        table.add_row(smaller.series, smaller.statistic, str(smaller.size), str(larger.size), f"{factor:.2f}")
    return table


def _cpu(results: Results) -> Table:
    table = new_table("Processor seconds", "during", "process", "CPU s", "of s", "of one core")
    for use in results.cpu:
        share = use.cpu_seconds / use.seconds
        table.add_row(use.during, use.process, f"{use.cpu_seconds:.2f}", f"{use.seconds:.1f}", f"{share:.0%}")
    return table


def _noise(noise: Mapping[str, Noise]) -> Table:
    table = new_table("Noise", "while", "others used", "stolen", "load")
    for family, found in noise.items():
        table.add_row(family, f"{found.foreign:.0%} of the machine", f"{found.stolen:.0%}", f"{found.load:.1f}")
    return table


def write_docs(page: Path, tables: Iterable[Table], machine: Mapping[str, object], *, mark: str = "measured") -> None:
    """Replaces the text between the marks of a page by the tables that have rows, as Markdown.

    The marks are comments, `MARK: begin` and `MARK: end`, each on its own line.
    """
    begin, end = (f"<!-- {mark}: {side} -->\n" for side in ("begin", "end"))
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    packages = machine["packages"]
    assert isinstance(packages, dict)
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    lines = [
        f"Taken {machine['taken']}{', a quick run' if machine['quick'] else ''}: {machine['cores']} cores, "
        f"Python {machine['python']}, {versions}.",
        "",
    ]
    for each in tables:
        if each.row_count:
            lines += _markdown(each)
    page.write_text(before + begin + "\n".join(lines) + end + after)


def _markdown(table: Table) -> list[str]:
    cells = [[render(str(cell)).plain for cell in column.cells] for column in table.columns]
    heads = [str(column.header) for column in table.columns]
    lines = [f"**{table.title}**", "", *(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads)))]
    return [*lines, *(f"| {' | '.join(row)} |" for row in zip(*cells, strict=True)), ""]


def write_json(
    path: Path, results: Results, noise: Mapping[str, Noise], machine: Mapping[str, object], **more: object
) -> None:
    """Everything that was found, unrounded; `more` are further fields."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "machine": machine,
        "rows": [{"name": row.name, "row": row, "met": row.met} for row in results.rows],
        "growth": [
            {"series": smaller.series, "statistic": smaller.statistic, "from": smaller.size, "to": larger.size}
            | {"factor_per_doubling": factor}
            for smaller, larger, factor in growth(results.rows)
        ],
        "cpu": results.cpu,
        "not_run": results.not_run,
        "noise": noise,
        **more,
    }
    path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
