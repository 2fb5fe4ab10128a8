"""Findings as a table for people. Without rich, which a control plane node need not have."""

from collections import Counter
from collections.abc import Sequence

from cli.output import counted, echo, echo_coloured
from tas.diagnosis.finding import Finding, Severity

COLOURS = {
    Severity.OK: "green",
    Severity.HINT: "cyan",
    Severity.UNKNOWN: "magenta",
    Severity.WARNING: "yellow",
    Severity.ERROR: "red",
}
INDENT = max(map(len, Severity)) + 2


def print_findings(findings: Sequence[Finding], *, with_ok: bool) -> None:
    """Prints the findings, the worst first, and how many there are of each severity."""
    order = list(Severity)
    shown = [each for each in findings if with_ok or each.severity is not Severity.OK]
    if shown:
        width = max(len(each.check) for each in shown) + 2
        echo(f"{'':{INDENT}}{'CHECK':{width}}FINDING")
        for together in _together(sorted(shown, key=lambda one: -order.index(one.severity))):
            _print_row(together, width)
    counts = Counter(each.severity for each in findings)
    echo(", ".join(_counted(counts[severity], severity) for severity in reversed(order) if counts[severity]))


def _print_row(together: Sequence[Finding], width: int) -> None:
    severity = together[0].severity
    checks, texts = [each.check for each in together], _texts(together)
    for number in range(max(len(checks), len(texts))):
        check = checks[number] if number < len(checks) else ""
        text = texts[number] if number < len(texts) else ""
        first = f"{severity if number == 0 else '':{INDENT}}"
        echo_coloured(first, f"{check:{width}}{text}".rstrip(), colour=COLOURS[severity])


def _together(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Checks that could not be made for one reason are one row."""
    groups: dict[object, list[Finding]] = {}
    for number, each in enumerate(findings):
        is_unknown = each.severity is Severity.UNKNOWN
        groups.setdefault((each.what, each.mend) if is_unknown else number, []).append(each)
    return list(groups.values())


def _counted(number: int, severity: Severity) -> str:
    return f"{number} {severity}" if severity in (Severity.OK, Severity.UNKNOWN) else counted(number, severity)


def _texts(together: Sequence[Finding]) -> list[str]:
    first = together[0]
    if first.severity is Severity.OK:
        return [first.what]
    why = [f"  why:  {first.why}"] if len(together) == 1 else []
    return [first.what, *why, *([f"  mend: {first.mend}"] if first.mend else [])]
