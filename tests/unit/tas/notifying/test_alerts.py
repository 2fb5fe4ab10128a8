"""What Alertmanager is sent, and when."""

from datetime import datetime
from typing import Any

import orjson

from tas.events.data import BreakerTripped, EventData, LabelApplied, SourceBack, SourceDry
from tas.notifying.alerts import (
    CONFIRM_SECONDS,
    MAX_BATCH,
    RESOLVED_SECONDS,
    AlertBook,
    Resends,
    alert_batches,
    alerts_body,
)
from tests.unit.tas.notifying.making import ended, notice, started

RESEND = 60.0


def recorded(*changes: tuple[EventData, float], labels: dict[str, str] | None = None) -> AlertBook:
    book = AlertBook(labels)
    for data, time in changes:
        book.record(notice(data), time)
    return book


def sent(book: AlertBook, resends: Resends, now: float) -> list[dict[str, Any]]:
    """The alerts of the requests at `now`, all of them accepted."""
    alerts: list[dict[str, Any]] = []
    for batch in alert_batches(resends.due(book, now)):
        alerts += orjson.loads(alerts_body((alert for _, alert in batch), now=now, resend=RESEND))
        resends.sent(batch, now)
    return alerts


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_violation_is_an_alert_with_its_labels_and_the_operators() -> None:
    book = recorded((started("node-1"), 1000.0), labels={"cluster": "prod", "alertname": "mine"})
    (alert,) = sent(book, Resends(RESEND), 1010.0)
    own = recorded((started("node-1"), 1000.0), labels={"namespace": "ours"})
    assert [each.labels["namespace"] for _, each in own.items()] == ["ours"], "the operator decides"
    assert alert["labels"] == {
        "alertname": "TasNodeViolatesPolicy",
        "severity": "warning",
        "cluster": "prod",
        "node": "node-1",
        "namespace": "default",
        "policy": "demo",
        "strategy": "dontschedule",
    }
    assert alert["annotations"] == {"summary": "node-1 violates default/demo (dontschedule): 2"}
    assert seconds(alert["startsAt"]) == 1000.0
    assert seconds(alert["endsAt"]) == 1010.0 + 4 * RESEND


def test_a_firing_alert_is_sent_again_and_its_end_moves_facts_V2() -> None:
    book, resends = recorded((started("node-1"), 1000.0)), Resends(RESEND)
    assert len(sent(book, resends, 1000.0)) == 1
    assert sent(book, resends, 1059.0) == []
    assert resends.next_due(book) == 1060.0
    (again,) = sent(book, resends, 1060.0)
    assert seconds(again["startsAt"]) == 1000.0
    assert seconds(again["endsAt"]) == 1060.0 + 4 * RESEND


def test_an_ended_alert_is_sent_at_once_with_its_end_and_again_for_a_quarter_of_an_hour() -> None:
    book, resends = recorded((started("node-1"), 1000.0)), Resends(RESEND)
    sent(book, resends, 1000.0)
    book.record(notice(ended("node-1")), 1030.0)
    assert book.firing == 0
    (resolved,) = sent(book, resends, 1030.0)
    assert (seconds(resolved["startsAt"]), seconds(resolved["endsAt"])) == (1000.0, 1030.0)
    assert len(sent(book, resends, 1090.0)) == 1
    book.forget(1030.0 + RESOLVED_SECONDS + 1)
    assert sent(book, resends, 5000.0) == []
    assert len(resends._sent) == 1
    resends.forget(book)
    assert resends._sent == {}


def test_a_replica_that_starts_late_sends_the_end_of_what_it_did_not_see_begin() -> None:
    book = recorded((ended("node-1"), 1000.0))
    (resolved,) = sent(book, Resends(RESEND), 1001.0)
    assert seconds(resolved["startsAt"]) == seconds(resolved["endsAt"]) == 1000.0


def test_a_repeated_begin_changes_nothing_so_a_wipe_of_the_bus_is_no_storm() -> None:
    book, resends = recorded((started("node-1"), 1000.0)), Resends(RESEND)
    sent(book, resends, 1000.0)
    book.unconfirm(1010.0)
    book.record(notice(started("node-1")), 1020.0)
    assert sent(book, resends, 1021.0) == []
    book.forget(1010.0 + CONFIRM_SECONDS)
    (again,) = sent(book, resends, 1010.0 + CONFIRM_SECONDS)
    assert seconds(again["startsAt"]) == 1000.0


def test_an_alert_that_a_wipe_leaves_unconfirmed_is_still_sent_for_a_while() -> None:
    book, resends = recorded((started("node-1"), 1000.0)), Resends(RESEND)
    book.unconfirm(1010.0)
    book.unconfirm(1500.0)
    book.forget(1009.0 + CONFIRM_SECONDS)
    assert len(sent(book, resends, 1009.0 + CONFIRM_SECONDS)) == 1
    book.forget(1010.0 + CONFIRM_SECONDS)
    assert (book.firing, resends.next_due(book)) == (0, None)


def test_an_alert_that_begins_again_has_a_new_start() -> None:
    book = recorded((started("node-1"), 1000.0), (ended("node-1"), 1010.0), (started("node-1"), 1020.0))
    (alert,) = sent(book, Resends(RESEND), 1020.0)
    assert seconds(alert["startsAt"]) == 1020.0


def test_an_end_before_the_start_is_none_since_alertmanager_refuses_it() -> None:
    book = recorded((started("node-1"), 1000.0), (ended("node-1"), 990.0))
    (alert,) = sent(book, Resends(RESEND), 1000.0)
    assert seconds(alert["endsAt"]) >= seconds(alert["startsAt"])
    (future,) = sent(recorded((started("node-2"), 9000.0)), Resends(RESEND), 1000.0)
    assert seconds(future["endsAt"]) > seconds(future["startsAt"])


def test_a_failed_request_is_due_again_and_another_alertmanager_has_its_own_pace() -> None:
    book, one, other = recorded((started("node-1"), 1000.0)), Resends(RESEND), Resends(RESEND)
    assert len(one.due(book, 1000.0)) == 1
    assert len(one.due(book, 1001.0)) == 1
    sent(book, other, 1000.0)
    assert other.due(book, 1001.0) == []


def test_a_tripped_breaker_is_critical_and_an_operator_may_say_otherwise() -> None:
    tripped = BreakerTripped(policy="demo", limit=1, wanted=2)
    ((_, alert),) = recorded((tripped, 1.0)).items()
    assert alert.labels["severity"] == "critical"
    ((_, alert),) = recorded((tripped, 1.0), labels={"severity": "page"}).items()
    assert alert.labels["severity"] == "page"


def test_many_alerts_are_sent_in_parts() -> None:
    book = recorded(*((started(f"node-{number}"), 1000.0) for number in range(2 * MAX_BATCH + 1)))
    sizes = [len(batch) for batch in alert_batches(Resends(RESEND).due(book, 1000.0))]
    assert sizes == [MAX_BATCH, MAX_BATCH, 1]


def test_what_only_happens_is_no_alert_and_sources_have_alerts_of_their_own() -> None:
    book = recorded((LabelApplied(node="node-1", label="demo", value="violating"), 1.0))
    assert list(book.items()) == []
    book = recorded((SourceDry(source="prometheus", problem="down"), 1.0), (SourceBack(source="prometheus"), 2.0))
    ((_, alert),) = book.items()
    assert alert.labels == {"alertname": "TasSourceDry", "severity": "warning", "source": "prometheus"}
    assert alert.ended == 2.0
