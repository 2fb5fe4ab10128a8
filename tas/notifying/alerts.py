"""Alerts for Alertmanager: what fires, when each is sent again, and the body of `POST /api/v2/alerts`.

Alertmanager asks its clients to send a firing alert again all the time, and ends an alert by itself at the `endsAt` of
the last message (facts.md V2). As Prometheus does, a message gives a firing alert four times the resend delay, and an
ended alert is sent again for a quarter of an hour, so that one lost message changes nothing (facts.md V3).
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tas.notifying.notice import Notice

RESENDS_UNTIL_END = 4
"""A firing alert ends after so many resend delays without a message."""

RESOLVED_SECONDS = 900.0
"""How long an ended alert is sent again."""

CONFIRM_SECONDS = 900.0
"""After a wipe of the bus, an alert that is not announced again for so long is no longer sent, and so ends."""

MAX_BATCH = 256
"""The most alerts of one request."""

PREFIX = "Tas"
"""The names of alerts begin with this, as those of deploy/alerts."""

CRITICAL = frozenset({"BreakerTripped"})
"""The conditions whose alerts have the severity `critical`; the others have `warning`."""

AlertKey = tuple[tuple[str, str], ...]
"""The labels of an alert, which are its identity, sorted."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert that fires, or has ended; times are in seconds since 1970."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    started: float
    ended: float | None = None


class AlertBook:
    """All alerts of one sink, by their labels. Holds every firing alert, and the ended ones for a while."""

    def __init__(self, extra_labels: Mapping[str, str] | None = None) -> None:
        """`extra_labels`: the operator's labels of every alert, such as the name of the cluster."""
        self._extra = dict(extra_labels or {})
        self._alerts: dict[AlertKey, Alert] = {}
        self._unconfirmed: dict[AlertKey, float] = {}

    @property
    def firing(self) -> int:
        """How many alerts fire."""
        return sum(alert.ended is None for alert in self._alerts.values())

    def record(self, notice: Notice, time: float) -> None:
        """Records the begin or the end of a condition at `time`; what only happens is no alert.

        A begin that is announced again, as after a wipe of the bus, keeps the first start of an alert that fires.
        """
        if notice.begins is None:
            return
        severity = "critical" if notice.condition in CRITICAL else "warning"
        name = f"{PREFIX}{notice.condition}"
        labels = {"severity": severity, **notice.labels, **self._extra, "alertname": name}
        key = tuple(sorted(labels.items()))
        known = self._alerts.get(key)
        self._unconfirmed.pop(key, None)
        firing = known if known is not None and known.ended is None else None
        if notice.begins:
            annotations = {"summary": notice.text}
            started = time if firing is None else firing.started
            self._alerts[key] = Alert(labels=labels, annotations=annotations, started=started)
        elif firing is not None:
            ended = max(time, firing.started)
            self._alerts[key] = Alert(
                labels=labels, annotations=firing.annotations, started=firing.started, ended=ended
            )
        elif known is None:
            # The process did not see the begin; Alertmanager may still have the alert from another replica.
            self._alerts[key] = Alert(labels=labels, annotations={"summary": notice.text}, started=time, ended=time)

    def unconfirm(self, now: float) -> None:
        """The bus was wiped at `now`: who announced the alerts that fire does not know of them any more.

        Most are announced again soon, and continue. The others end, but not before `CONFIRM_SECONDS`.
        """
        for key, alert in self._alerts.items():
            if alert.ended is None:
                self._unconfirmed.setdefault(key, now + CONFIRM_SECONDS)

    def forget(self, now: float) -> None:
        """Forgets the alerts that ended too long ago to be sent again, and those that a wipe left unconfirmed."""
        old = [key for key, alert in self._alerts.items() if _is_old(alert, now)]
        old += [key for key, until in self._unconfirmed.items() if until <= now]
        for key in old:
            self._alerts.pop(key, None)
            self._unconfirmed.pop(key, None)

    def items(self) -> Iterable[tuple[AlertKey, Alert]]:
        """Every alert with its key."""
        return self._alerts.items()


class Resends:
    """What one Alertmanager has been sent, and when it must get each alert again."""

    def __init__(self, resend: float) -> None:
        """`resend`: the seconds after which an alert is sent again."""
        self._resend = resend
        self._sent: dict[AlertKey, tuple[Alert, float]] = {}

    def due(self, book: AlertBook, now: float) -> list[tuple[AlertKey, Alert]]:
        """The alerts to send now: those that changed, and those that were sent long ago."""
        return [(key, alert) for key, alert in book.items() if self._due_at(key, alert) <= now]

    def next_due(self, book: AlertBook) -> float | None:
        """When the next alert is due."""
        return min((self._due_at(key, alert) for key, alert in book.items()), default=None)

    def sent(self, alerts: Iterable[tuple[AlertKey, Alert]], now: float) -> None:
        """The Alertmanager has accepted these."""
        for key, alert in alerts:
            self._sent[key] = (alert, now)

    def forget(self, book: AlertBook) -> None:
        """Forgets what the book has forgotten."""
        known = {key for key, _ in book.items()}
        self._sent = {key: value for key, value in self._sent.items() if key in known}

    def _due_at(self, key: AlertKey, alert: Alert) -> float:
        sent = self._sent.get(key)
        return 0.0 if sent is None or sent[0] != alert else sent[1] + self._resend


def alert_batches(alerts: Iterable[tuple[AlertKey, Alert]]) -> Iterator[list[tuple[AlertKey, Alert]]]:
    """The alerts in parts of at most `MAX_BATCH`."""
    batch: list[tuple[AlertKey, Alert]] = []
    for each in alerts:
        batch.append(each)
        if len(batch) == MAX_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def alerts_body(alerts: Iterable[Alert], *, now: float, resend: float) -> bytes:
    """The body of a request, JSON. `now` is in seconds since 1970, `resend` in seconds."""
    return msgspec.json.encode([_posted(alert, now=now, resend=resend) for alert in alerts])


def _posted(alert: Alert, *, now: float, resend: float) -> dict[str, Any]:
    # Alertmanager refuses an end before the start, also where two clocks differ.
    end = alert.ended if alert.ended is not None else max(now, alert.started) + RESENDS_UNTIL_END * resend
    return {
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": _rfc3339(alert.started),
        "endsAt": _rfc3339(end),
    }


def _is_old(alert: Alert, now: float) -> bool:
    return alert.ended is not None and now - alert.ended > RESOLVED_SECONDS


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
