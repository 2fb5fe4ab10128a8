"""Findings as a table for people."""

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from cli.output import counted, echo
from cli.queries.tables import new_table, print_table
from tas.diagnosis.finding import Finding, Severity

STYLES = {
    Severity.OK: "green",
    Severity.HINT: "cyan",
    Severity.UNKNOWN: "magenta",
    Severity.WARNING: "yellow",
    Severity.ERROR: "bold red",
}


def print_findings(findings: Sequence[Finding], *, with_ok: bool) -> None:
    """Prints the findings, the worst first, and how many there are of each severity."""
    order = list(Severity)
    shown = [each for each in findings if with_ok or each.severity is not Severity.OK]
    if shown:
        table = new_table("", "CHECK", "FINDING")
        for together in _together(sorted(shown, key=lambda one: -order.index(one.severity))):
            first = together[0]
            checks = "\n".join(each.check for each in together)
            table.add_row(Text(first.severity.value, style=STYLES[first.severity]), checks, _text(together))
        print_table(table)
    counts = Counter(each.severity for each in findings)
    echo(", ".join(_counted(counts[severity], severity) for severity in reversed(order) if counts[severity]))


def _together(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Checks that could not be made for one reason are one row."""
    groups: dict[object, list[Finding]] = {}
    for number, each in enumerate(findings):
        is_unknown = each.severity is Severity.UNKNOWN
        groups.setdefault((each.what, each.mend) if is_unknown else number, []).append(each)
    return list(groups.values())


def _counted(number: int, severity: Severity) -> str:
    return f"{number} {severity}" if severity in (Severity.OK, Severity.UNKNOWN) else counted(number, severity)


def _text(together: Sequence[Finding]) -> Text:
    first = together[0]
    if first.severity is Severity.OK:
        return Text(first.what)
    text = Text()
    text.append(first.what, style="bold")
    if len(together) == 1:
        text.append(f"\n  why:  {first.why}")
    if first.mend:
        text.append(f"\n  mend: {first.mend}")
    return text
