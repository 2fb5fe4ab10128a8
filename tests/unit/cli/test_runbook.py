"""`tas runbook`."""

import re

from click.testing import CliRunner, Result

from cli import cli
from tests.contract.test_alerts import rules, sent_by_notify


def tas(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["runbook", *arguments], prog_name="tas")


def test_each_alert_is_listed_and_says_when_it_fires_and_what_to_do() -> None:
    alerts = {rule["alert"] for rule in rules()} | sent_by_notify()
    assert "TasMetricStale" in alerts
    assert set(tas().stdout.split()) == alerts
    for alert in alerts:
        said = tas(alert)
        assert said.exit_code == 0
        assert re.fullmatch(rf"{alert}\n\nfires if: \S.{{9,}}\n\ndo: \S.{{9,}}\n", said.stdout)
        assert not re.search(r"\]\(|\*\*|\\\|", said.stdout), said.stdout
        assert len(said.stdout.partition("\n\ndo: ")[2]) <= 5 * 120, "at night at most five lines"


def test_a_link_keeps_the_page_and_the_section_that_it_names() -> None:
    assert "tas bus user operator labels labels --renew" in tas("TasBusCredentialsExpire").stdout
    assert "close the bus (docs/how-to/close-the-bus.md)" in tas("TasBusCredentialsExpire").stdout
    assert "the reason (docs/reference/health.md#why-something-is-not-ready)" in tas("TasWorkerNotReady").stdout
    assert "disk is full (docs/operations.md#full-disk)" in tas("TasBusUnavailable").stdout
    assert "TasCertificateExpired (tas runbook TasCertificateExpired)" in tas("TasNoExtenderReady").stdout


def test_no_alert_sends_to_the_row_before_it() -> None:
    """Whoever asks for one alert sees one row, so each row says all that is to be known."""
    for alert in tas().stdout.split():
        said = tas(alert).stdout
        assert not re.search(r"^(fires if|do): (the same|as \[?Tas)", said, re.MULTILINE), said
        assert "the same, at once" not in said


def test_an_alert_that_does_not_exist_is_refused_with_the_nearest() -> None:
    done = tas("TasWorkerMising")
    assert done.exit_code == 2
    assert "no alert of this version: 'TasWorkerMising'; did you mean TasWorkerMissing?" in done.stderr
    assert "; tas runbook lists them" in tas("CPUThrottlingHigh").stderr
