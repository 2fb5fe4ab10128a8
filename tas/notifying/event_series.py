"""Kubernetes Events (`events.k8s.io/v1`): one object for what happens again and again, with a series that counts.

The rules are those of client-go's recorder (facts.md V4): the first occurrence creates an Event, the second begins its
series, later ones only count. A running series is written every half hour, and a last time when nothing has
happened for six minutes; then the next occurrence is a new Event.
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

REFRESH_SECONDS = 1800.0
"""How often a series that continues is written."""

FINISH_SECONDS = 360.0
"""A series ends when nothing has happened for so long."""

MAX_NOTE = 1024
"""The most bytes of a note (facts.md V5)."""

CONTROLLER = "tas-on-nats"
"""`reportingController` of our Events, as in those of `labels`."""

CLUSTER_NAMESPACE = "default"
"""The namespace of Events about objects without a namespace, such as nodes."""


class ObjectReference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An object that an Event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to an object. `identity` is the same for each repetition of one event of ours."""

    regarding: ObjectReference
    related: ObjectReference | None = None
    reason: str
    action: str
    scope: str
    note: str
    warning: bool
    identity: str

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two occurrences the same series: all but the note, as in client-go; the scope is ours."""
        return (self.regarding, self.related, self.reason, self.action, self.scope, self.warning)


class CreateEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An Event to create; if one of its name exists, it has been created before."""

    namespace: str
    body: Mapping[str, Any]


class PatchSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The series of an Event to patch."""

    namespace: str
    name: str
    body: Mapping[str, Any]


class _Series:
    """A running series."""

    def __init__(self, namespace: str, name: str, now: float) -> None:
        self.namespace = namespace
        self.name = name
        self.count = 1
        self.last = now
        self.written_count = 1
        self.written_at = now


class EventSeries:
    """The running series of one recorder. Times are in seconds since 1970."""

    def __init__(self, instance: str, *, capacity: int = 4096) -> None:
        """`instance`: who reports, `reportingInstance`. With more series than `capacity` the oldest ends."""
        self._instance = instance[:128]
        self._capacity = capacity
        self._running: dict[object, _Series] = {}

    def record(self, what: Occurrence, now: float) -> CreateEvent | PatchSeries | None:
        """What to write for an occurrence; None if it is only counted."""
        series = self._running.get(what.key)
        if series is not None and now - series.last <= FINISH_SECONDS:
            series.count += 1
            series.last = now
            return self._written(series, now) if series.count == 2 else None
        namespace = what.regarding.namespace or CLUSTER_NAMESPACE
        name = event_name(what)
        while len(self._running) >= self._capacity:
            del self._running[next(iter(self._running))]
        self._running.pop(what.key, None)
        self._running[what.key] = _Series(namespace, name, now)
        return CreateEvent(namespace=namespace, body=self._body(what, namespace, name, now))

    def due(self, now: float) -> list[PatchSeries]:
        """The series to write now, by the time alone. Ended ones are forgotten."""
        writes = []
        for key, series in list(self._running.items()):
            ended = now - series.last > FINISH_SECONDS
            if series.count > series.written_count and (ended or now - series.written_at >= REFRESH_SECONDS):
                writes.append(self._written(series, now))
            if ended:
                del self._running[key]
        return writes

    def forget(self, what: Occurrence) -> None:
        """Ends a series whose Event does not exist any more: the next occurrence creates a new one."""
        self._running.pop(what.key, None)

    def _written(self, series: _Series, now: float) -> PatchSeries:
        series.written_count = series.count
        series.written_at = now
        body = {"series": {"count": series.count, "lastObservedTime": micro_time(series.last)}}
        return PatchSeries(namespace=series.namespace, name=series.name, body=body)

    def _body(self, what: Occurrence, namespace: str, name: str, now: float) -> dict[str, Any]:
        related = {} if what.related is None else {"related": _reference(what.related)}
        return related | {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": micro_time(now),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": what.action,
            "reason": what.reason,
            "regarding": _reference(what.regarding),
            "note": shortened_note(what.note),
            "type": "Warning" if what.warning else "Normal",
        }


def _reference(of: ObjectReference) -> dict[str, str]:
    found: dict[str, str] = msgspec.to_builtins(of)
    return {key: value for key, value in found.items() if value}


def event_name(what: Occurrence) -> str:
    """The name of an Event, the same for each repetition of an event: a second create fails, and changes nothing."""
    digest = hashlib.sha256(f"{what.identity} {what.reason} {what.regarding.kind} {what.scope}".encode()).hexdigest()[
        :16
    ]
    return f"{what.regarding.name[:200].rstrip('.-')}.{digest}"


def shortened_note(text: str) -> str:
    """`text` in at most `MAX_NOTE` bytes."""
    data = text.encode()
    if len(data) <= MAX_NOTE:
        return text
    return data[: MAX_NOTE - 3].decode(errors="ignore") + "…"


def micro_time(seconds: float) -> str:
    """A `MicroTime` of Kubernetes."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
