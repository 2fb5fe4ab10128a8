"""A finding of `tas doctor`, and facts that could not be obtained."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tas.diagnosis.checks import CHECKS
from tas.errors import line_of


class Severity(StrEnum):
    """How serious a finding is; the order is from the best to the worst."""

    OK = "ok"
    HINT = "hint"
    """Works, and may be better otherwise."""
    UNKNOWN = "unknown"
    """The check could not be made. This is never ok."""
    WARNING = "warning"
    """Works in part, or not in all cases."""
    ERROR = "error"
    """Does not work."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check. Each text is one line.

    Attributes:
        what: What was found.
        why: Why that matters.
        mend: What mends it, in words; empty if nothing is to be done, or `run` says all.
        run: A command of a shell that mends it, or shows what is to be mended; empty without one. Words in capitals
            stand for what the reader knows.
    """

    check: str
    severity: Severity
    what: str
    why: str
    mend: str = ""
    run: str = ""


class Missing(NamedTuple):
    """Stands for a fact that could not be obtained.

    Attributes:
        reason: Why, in one line.
        mend: What makes the fact known, in words.
        run: A command that makes the fact known.
    """

    reason: str
    mend: str = ""
    run: str = ""


def finding(check: str, severity: Severity, what: str, mend: str = "", *, run: str = "") -> Finding:
    """A finding of a check, with the reason why the check matters."""
    return Finding(
        check=check, severity=severity, what=line_of(what), why=CHECKS[check], mend=line_of(mend), run=line_of(run)
    )


def ok(check: str, what: str) -> Finding:
    """A check that found nothing."""
    return finding(check, Severity.OK, what)


def unknown(check: str, missing: Missing) -> Finding:
    """A check that could not be made."""
    return finding(check, Severity.UNKNOWN, f"not checked: {missing.reason}", missing.mend, run=missing.run)


def none_checked(group: str, missing: Missing, *, but: Collection[str] = ()) -> Iterator[Finding]:
    """The checks of a group, none of which could be made."""
    return (unknown(check, missing) for check in CHECKS if group_of(check) == group and check not in but)


def or_ok(found: Iterable[Finding], oks: Mapping[str, str]) -> Iterator[Finding]:
    """The findings, then an ok with its text for each check of `oks` that has none."""
    checks = set()
    for each in found:
        checks.add(each.check)
        yield each
    yield from (ok(check, what) for check, what in oks.items() if check not in checks)


def command(*words: str) -> str:
    """A command of a shell. A word is quoted if it needs that: names come from users of the cluster."""
    return shlex.join(words)


def some(names: Iterable[str], most: int = 3, *, more: int = 0) -> str:
    """The first names in order, and how many more there are, with `more` unknown ones: `a, b, c and 2 more`."""
    ordered = sorted(set(names))
    rest = max(0, len(ordered) - most) + more
    return ", ".join(ordered[:most]) + (f" and {rest} more" if rest > 0 else "")


def exit_code(findings: Sequence[Finding]) -> int:
    """0 if no finding is above a hint, else 1."""
    return int(any(each.severity not in (Severity.OK, Severity.HINT) for each in findings))


def left(findings: Iterable[Finding], skipped: Iterable[str]) -> list[Finding]:
    """The findings without those of skipped checks: `bus.sync`, or `bus` for all checks of a group."""
    without = set(skipped)
    return [each for each in findings if not {each.check, group_of(each.check)} & without]


def group_of(check: str) -> str:
    """The group of a check, from its id."""
    return check.partition(".")[0]
