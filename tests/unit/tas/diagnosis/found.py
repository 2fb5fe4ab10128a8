"""What tests read of findings."""

import re
from collections.abc import Iterable

from tas.diagnosis.finding import Finding, Severity

PROGRAMS = r"(curl|export|kubectl|nats|tas|timedatectl) "
"""With these words begin the commands that findings print."""


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
        assert each.mend or each.run or each.severity in (Severity.OK, Severity.UNKNOWN), each
        assert not each.run or re.match(PROGRAMS, each.run), each
    return {check: severity for check, severity in severities(findings).items() if severity is not Severity.OK}


def one(findings: Iterable[Finding], check: str) -> Finding:
    """The only finding of a check."""
    (found,) = (each for each in findings if each.check == check)
    return found
