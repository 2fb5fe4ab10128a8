"""Findings as a table for people. Without rich, which a control plane node need not have."""

from collections import Counter
from collections.abc import Sequence

from cli.output import echo, echo_coloured
from tas.diagnosis.finding import Finding, Severity, group_of
from tas.values.nouns import counted

COLOURS = {
    Severity.OK: "green",
    Severity.HINT: "cyan",
    Severity.UNKNOWN: "magenta",
    Severity.WARNING: "yellow",
    Severity.ERROR: "red",
}
INDENT = max(map(len, Severity)) + 2


def print_findings(findings: Sequence[Finding], *, with_ok: bool, about: str = "") -> None:
    """Prints the findings, the worst first, and how many there are of each severity, after `about`."""
    order = list(Severity)
    shown = [each for each in findings if with_ok or each.severity is not Severity.OK]
    rows = [
        (_names(together, findings), together)
        for together in _together(sorted(shown, key=lambda one: -order.index(one.severity)))
    ]
    if rows:
        width = max(len(name) for names, _ in rows for name in names) + 2
        echo(f"{'':{INDENT}}{'CHECK':{width}}FINDING")
        for names, together in rows:
            _print_row(names, together[0], _texts(together), width)
    counts = Counter(each.severity for each in findings)
    echo(about + ", ".join(_counted(counts[severity], severity) for severity in reversed(order) if counts[severity]))


def _print_row(names: Sequence[str], found: Finding, texts: Sequence[str], width: int) -> None:
    for number in range(max(len(names), len(texts))):
        name = names[number] if number < len(names) else ""
        text = texts[number] if number < len(texts) else ""
        head = f"{found.severity if number == 0 else '':{INDENT}}"
        echo_coloured(head, f"{name:{width}}{text}".rstrip(), colour=COLOURS[found.severity])


def _together(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Checks that could not be made for one reason are one row."""
    groups: dict[object, list[Finding]] = {}
    for number, each in enumerate(findings):
        is_unknown = each.severity is Severity.UNKNOWN
        groups.setdefault((each.what, each.mend, each.run) if is_unknown else number, []).append(each)
    return list(groups.values())


def _names(together: Sequence[Finding], findings: Sequence[Finding]) -> list[str]:
    """The checks of a row; the name of the group in place of all its checks, as `--skip` takes it."""
    names: dict[str, None] = {}
    for each in together:
        group = group_of(each.check)
        whole = [one for one in findings if group_of(one.check) == group]
        is_whole = len(whole) > 1 and all(one in together for one in whole)
        names[group if is_whole else each.check] = None
    return list(names)


def _counted(number: int, severity: Severity) -> str:
    return f"{number} {severity}" if severity in (Severity.OK, Severity.UNKNOWN) else counted(number, severity)


def _texts(together: Sequence[Finding]) -> list[str]:
    first = together[0]
    if first.severity is Severity.OK:
        return [first.what]
    why = first.why if len(together) == 1 else ""
    lines = (("why: ", why), ("mend:", first.mend), ("run: ", first.run))
    return [first.what, *(f"  {name} {text}" for name, text in lines if text)]
