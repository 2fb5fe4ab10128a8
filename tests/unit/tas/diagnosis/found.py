"""What tests read of findings."""

from collections.abc import Iterable

from tas.diagnosis.finding import Finding, Severity


def severities(findings: Iterable[Finding]) -> dict[str, Severity]:
    """The worst severity of each check."""
    order = list(Severity)
    found: dict[str, Severity] = {}
    for each in findings:
        found[each.check] = max(found.get(each.check, Severity.OK), each.severity, key=order.index)
    return found


def bad(findings: Iterable[Finding]) -> dict[str, Severity]:
    """The same without the checks that are ok; a finding that is not ok says what mends it, unless it is unknown."""
    findings = list(findings)
    for each in findings:
        assert each.what
        assert each.why
        assert bool(each.mend) or each.severity in (Severity.OK, Severity.UNKNOWN), each
    return {check: severity for check, severity in severities(findings).items() if severity is not Severity.OK}


def one(findings: Iterable[Finding], check: str) -> Finding:
    """The only finding of a check."""
    (found,) = (each for each in findings if each.check == check)
    return found
