"""The screen of `tas status` as text. Without rich, which a control plane node need not have."""

import shutil
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import NamedTuple
from unicodedata import east_asian_width

from cli.doctor.output import COLOURS
from cli.output import echo, echo_coloured
from cli.queries.query import age_text
from tas.diagnosis.finding import Finding, Severity
from tas.diagnosis.overview import Overview, Verdict, WorkerRow
from tas.errors import printable
from tas.values.nouns import counted

HEAD = {
    Verdict.WELL: ("green", "all is well"),
    Verdict.WRONG: ("red", "something is wrong"),
    Verdict.UNKNOWN: ("magenta", "nothing wrong is known, but not all is known"),
}
LEAST_LINES = 3
"""So many lines of each part are shown however small the terminal is."""

INDENT = "  "

LONGEST = 63
"""The most characters of an aligned cell without a terminal: those of a label of DNS."""


class Part(NamedTuple):
    """A part of the screen: its title, and its lines; `colours` are those of the first word of a line."""

    title: str
    lines: list[str]


def print_overview(found: Overview, *, everything: bool) -> None:
    """Prints the screen; on a terminal as much as there is room for."""
    size = shutil.get_terminal_size()
    is_terminal = sys.stdout.isatty()
    width = size.columns if is_terminal else 10_000
    colour, text = HEAD[found.verdict]
    bus = f"   bus {printable(found.bus)}" if found.bus else ""
    echo_coloured(f"{found.verdict}: {text}", bus[:width], colour=colour)
    parts = [
        Part(title, [printable(line) for line in lines])  # names from elsewhere may have ends of lines in them
        for title, lines in _parts(found, width if is_terminal else 150, width // 4 if is_terminal else LONGEST)
        if lines
    ]
    room = size.lines - 2 if is_terminal and not everything else None
    for part in parts if room is None else fitted(parts, room):
        if part.title:
            echo(part.title)
        for line in part.lines:
            # Nothing of a finding is cut: its lines are short already, and the command of one is to be copied.
            _print_line(cut(line, width) if part.title else line)


def cut(line: str, columns: int) -> str:
    """The line in at most so many columns of a terminal, where some characters take two; `…` stands for the rest."""
    ends = list(accumulate(2 if east_asian_width(each) in "WF" else 1 for each in line))
    return line if not ends or ends[-1] <= columns else f"{line[: bisect_right(ends, columns - 1)]}…"


def _print_line(line: str) -> None:
    head, _, rest = line.partition(" ")
    if head in set(Severity):
        echo_coloured(head, f" {rest}", colour=COLOURS[Severity(head)])
    else:
        echo(line)


def fitted(parts: Sequence[Part], room: int) -> list[Part]:
    """The parts with at most so many lines together: the last ones are shortened first, and say so."""
    shown = [Part(part.title, list(part.lines)) for part in parts]
    for number in reversed(range(len(shown))):
        excess = sum(len(each.lines) + bool(each.title) for each in shown) - room
        lines = shown[number].lines
        if excess > 0 and len(lines) > LEAST_LINES:
            kept = max(LEAST_LINES - 1, len(lines) - excess - 1)
            shown[number] = Part(
                shown[number].title,
                [*lines[:kept], f"{INDENT}and {counted(len(lines) - kept, 'line')} more: tas status --all"],
            )
    return shown


def _parts(found: Overview, width: int, longest: int) -> Iterator[Part]:
    yield Part("", [line for each in found.findings for line in _finding(each, width)])
    yield Part("WORKERS", list(_workers(found.workers, width)))
    yield Part("PROCESSES", _table(_process_rows(found), longest))
    yield Part("SOURCES", _table(_source_rows(found), longest))
    yield Part("POLICIES", _policies(found))
    yield Part("SCHEDULER", [f"{INDENT}{_asked(found)}"])


def _finding(each: Finding, width: int) -> Iterator[str]:
    head = f"{each.severity:8} {each.check:17} "
    first, *rest = _wrapped(each.what, max(30, width - len(head)))
    yield head + first
    for line in rest:
        yield " " * len(head) + line
    yield from (" " * len(head) + line for line in _wrapped(_next(each), max(30, width - len(head))))


def _next(each: Finding) -> str:
    """The next command; words if there is none."""
    return f"run: {each.run}" if each.run else f"mend: {each.mend}" if each.mend else ""


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most so many characters, cut between words where possible."""
    text = printable(text)
    lines: list[str] = []
    while len(text) > width:
        at = text.rfind(" ", 1, width + 1)
        at = width if at <= 0 else at
        lines.append(text[:at])
        text = text[at:].lstrip(" ")
    return [*lines, text] if text else lines


def _workers(rows: Sequence[WorkerRow], width: int) -> Iterator[str]:
    """Workers with equal numbers share a line."""
    groups: dict[tuple[int, int, int | None], list[str]] = {}
    for row in rows:
        groups.setdefault((row.running, row.ready, row.expected), []).append(row.worker)
    for (running, ready, expected), workers in sorted(groups.items(), key=lambda each: (each[0][0], each[1])):
        wanted = "not known yet how many should run" if expected is None else f"of {expected}"
        unready = "" if ready == running else f", {running - ready} not ready"
        head = f"{INDENT}{running} {wanted}{unready}: "
        first, *rest = _wrapped(", ".join(workers), max(30, width - len(head)))
        yield head + first
        yield from (" " * len(head) + line for line in rest)


def _process_rows(found: Overview) -> Iterator[Sequence[str]]:
    for row in found.processes:
        behind = [
            f"{name} {seconds:.0f} s behind" for sources in row.behind.values() for name, seconds in sources.items()
        ]
        behind += [f"{name} {counted(lag, 'message')} behind" for name, lag in row.lag.items()]
        unready = [f"{worker} not ready" for worker in row.unready]
        notes = [*unready, *behind, *(f"holds {', '.join(row.leases)}" for _ in (1,) if row.leases)]
        notes += [f"{file} expires {_date(at)}" for file, at in row.expires.items()]
        yield row.process, row.role, row.version, f"for {age_text(row.age)}", "; ".join(notes)
    known = {row.process for row in found.processes}
    for lease, holder in sorted(found.leases.items()):
        if holder not in known:
            yield holder or "?", "", "", "", f"holds {lease}, and is not among the processes"


def _source_rows(found: Overview) -> Iterator[Sequence[str]]:
    for row in found.sources:
        newest = "no value" if row.age is None else f"newest value {age_text(row.age)} old"
        period = "" if row.period is None else f"every {row.period:g} s"
        yield row.source, row.state, newest, period, row.holder


def _policies(found: Overview) -> list[str]:
    if found.policies is None:
        return [f"{INDENT}not known"]
    lines = [f"{INDENT}{row.policy}: {row.why}" for row in found.not_in_force]
    if found.pause:
        lines.insert(0, f"{INDENT}{found.pause}")
    if found.more_not_in_force:
        lines.append(f"{INDENT}and {found.more_not_in_force} more: kubectl get taspolicies --all-namespaces")
    in_force = max(0, found.policies - len(found.not_in_force) - found.more_not_in_force)
    return [*lines, f"{INDENT}{in_force} of {found.policies} in force as written"]


def _asked(found: Overview) -> str:
    if found.asked is None:
        return "has not asked, as far as is known"
    parts = []
    for row in found.processes:
        for verb, answer in sorted(row.answers.items()):
            failed = f", {answer.failed} failed" if answer.failed else ""
            parts.append(f"{row.process} {verb}: {answer.status}, {counted(answer.requests, 'request')}{failed}")
    return f"asked {age_text(found.asked)} ago; {'; '.join(parts)}"


def _table(rows: Iterable[Sequence[str]], longest: int) -> list[str]:
    """Rows with aligned columns. A cell of more than `longest` characters moves only the others of its own row."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [min(longest, max(len(row[number]) for row in cells)) for number in range(len(cells[0]))] if cells else []
    return [
        (INDENT + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in cells
    ]


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
