"""Exit codes, skipped checks, and texts of findings."""

import pytest

from tas.diagnosis.finding import Finding, Missing, Severity, command, exit_code, finding, left, ok, some, unknown


@pytest.mark.parametrize(
    ("severity", "code"),
    [
        (Severity.OK, 0),
        (Severity.HINT, 0),
        (Severity.UNKNOWN, 1),
        (Severity.WARNING, 1),
        (Severity.ERROR, 1),
    ],
)
def test_one_finding_above_a_hint_is_an_exit_code_of_1(severity: Severity, code: int) -> None:
    assert exit_code([ok("bus.sync", "fine"), finding("bus.version", severity, "what", "mend")]) == code


def test_without_findings_the_exit_code_is_0() -> None:
    assert exit_code([]) == 0


@pytest.mark.parametrize(
    ("skipped", "checks"),
    [
        ((), ["bus.sync", "bus.version", "clocks.bus"]),
        (("bus.sync",), ["bus.version", "clocks.bus"]),
        (("bus",), ["clocks.bus"]),
        (("clocks", "bus.version"), ["bus.sync"]),
    ],
)
def test_a_check_is_skipped_by_its_id_or_by_its_group(skipped: tuple[str, ...], checks: list[str]) -> None:
    findings = [ok(check, "fine") for check in ("bus.sync", "bus.version", "clocks.bus")]
    assert [each.check for each in left(findings, skipped)] == checks


def test_an_unmade_check_has_the_reason_and_what_makes_it_possible() -> None:
    found: Finding = unknown("bus.sync", Missing("no monitor", "give it", "tas doctor --bus-monitor URL"))
    assert (found.severity, found.what, found.mend, found.run) == (
        Severity.UNKNOWN,
        "not checked: no monitor",
        "give it",
        "tas doctor --bus-monitor URL",
    )


def test_a_text_of_a_server_cannot_control_the_terminal() -> None:
    hostile = "a\x1b[31mb\nc\u202ed"
    found = finding("bus.reached", Severity.ERROR, hostile, hostile, run=hostile)
    for text in (found.what, found.mend, found.run):
        assert text == r"a\x1b[31mb\nc\u202ed"


def test_a_name_is_no_more_than_an_argument_of_a_command() -> None:
    assert command("kubectl", "edit", "a;reboot", "$(b)") == "kubectl edit 'a;reboot' '$(b)'"


def test_many_names_are_counted() -> None:
    assert some(["c", "a", "b"]) == "a, b, c"
    assert some(["d", "c", "a", "b", "a", "e"]) == "a, b, c and 2 more"
