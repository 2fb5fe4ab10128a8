"""The log of the API server and the bus, with which every removal is compared."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from bus.buckets import NODES, POLICIES, SYNCED, Bucket
from bus.connection import Bus, Epoch, RawEntry
from bus.errors import BusError
from bus.watch import Watch, WatchStatus
from tests.integration.bus.followers import raw_watch
from tests.integration.published import SECOND, microseconds_of
from tests.integration.removal.cases import Case
from tests.integration.removal.model import Key, Samples, Spec
from tests.integration.removal.spans import Span, outside, union
from tests.sandbox import Call

COMPARE_SECONDS = 0.2
"""After so long the log is compared with the bus."""

Identity = tuple[str, int]
"""A policy's uid and generation."""


@dataclass(frozen=True, slots=True)
class Written:
    """A write of a node or a policy in the API server at `at`; `now` None: a deletion."""

    version: int
    at: float
    kind: str
    key: Key
    now: Mapping[str, Any] | None
    before: Mapping[str, Any] | None
    by_test: bool


@dataclass(frozen=True, slots=True)
class Request:
    """A request of `labels` at `at`, when the API server had `version`."""

    at: float
    version: int
    call: Call


@dataclass(slots=True)
class Version:
    """A state of a policy in the API server from `since` until `until`; `spec` None: deleted."""

    spec: Spec | None
    since: float
    identity: Identity = ("", 0)
    until: float = inf
    created: str = ""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node's uid and labels from `since` on; uid "": it did not exist."""

    since: float
    uid: str
    labels: Mapping[str, str]


@dataclass(slots=True)
class Life:
    """An epoch of the bus, from one wipe to the next.

    Attributes:
        synced: When its list of policies was complete.
        policies: The stored versions of each policy, with the time of each; None: deleted.
    """

    began: float
    ended: float = inf
    synced: float = inf
    policies: dict[Key, list[tuple[float, Identity | None]]] = field(default_factory=dict)


@dataclass
class Observed:
    """The log.

    Attributes:
        early: By how many seconds others may have seen a write before the log.
        setters: Whether the product made the last change of a label, by node, uid and label.
        lists: The requests for all policies.
        patches: The patches of each node.
        complete_until: Up to this time the log has everything that was on the bus.
        met: The hard cases that only the bus shows.
    """

    early: float = 0.0
    samples: Samples = field(default_factory=Samples)
    policies: dict[Key, list[Version]] = field(default_factory=dict)
    nodes: dict[str, list[NodeState]] = field(default_factory=dict)
    setters: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    lists: list[Request] = field(default_factory=list)
    patches: dict[str, list[Request]] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=lambda: [Life(-inf)])
    complete_until: float = -inf
    met: Counter[str] = field(default_factory=Counter)
    _watched: dict[str, int] = field(default_factory=dict)

    # The API server

    def note(self, written: Written) -> None:
        if written.kind == "policy":
            self._note_policy(written)
            return
        uid, labels = "", {}
        if written.now is not None:
            uid, labels = written.now["metadata"]["uid"], written.now["metadata"].get("labels", {})
        self.nodes.setdefault(written.key[1], []).append(NodeState(written.at, uid, labels))

    def _note_policy(self, written: Written) -> None:
        versions = self.policies.setdefault(written.key, [])
        version = Version(None, written.at)
        if written.now is not None:
            metadata = written.now["metadata"]
            version = Version(written.now["spec"], written.at, (metadata["uid"], metadata["generation"]))
            version.created = metadata["creationTimestamp"]
            if versions and versions[-1].spec is not None and versions[-1].identity == version.identity:
                return  # a write of its status
        if versions:
            versions[-1].until = written.at
        versions.append(version)

    # The bus

    def wiped(self, at: float) -> None:
        """Notes that the bus was wiped."""
        self.lives[-1].ended = at
        self.lives.append(Life(at))
        self.samples.wiped(at)

    async def follow(self, bus: Bus) -> None:
        """Fills the log until cancelled."""
        watches = self._watches(bus)
        async with asyncio.TaskGroup() as tasks:
            for watch in watches.values():
                tasks.create_task(watch.run())
            while True:
                now = time.time()
                with suppress(BusError):  # without an answer nothing is known to be complete
                    epochs = {bucket: await bus.epoch(bucket) for bucket in watches}
                    if all(_has(watch.status, epochs[bucket]) for bucket, watch in watches.items()):
                        self.complete_until = now
                await asyncio.sleep(COMPARE_SECONDS)

    def _watches(self, bus: Bus) -> dict[Bucket, Watch]:
        def began(bucket: str, _: Epoch) -> None:
            self._watched[bucket] = len(self.lives) - 1

        noted = {NODES: self._note_samples, POLICIES: self._note_stored_policy}
        return {
            bucket: raw_watch(bus, bucket, on_entry=note, on_epoch=partial(began, bucket.name))
            for bucket, note in noted.items()
        }

    def _note_samples(self, entry: RawEntry) -> None:
        token, _, kind = entry.key.partition(".")
        if entry.value is None or (kind != "metrics" and token != "_table"):
            return
        record = json.loads(entry.value)
        if token == "_table":
            self._note_rows(record, source=kind.partition(".")[0], at=entry.created)
            return
        for scrape in record["scrapes"]:
            for metric in scrape["metrics"]:
                measured = microseconds_of(scrape["measured"]) / SECOND
                life, node = self._watched[NODES.name], token.replace("_", ".")
                self.samples.seen(life, node, metric, source=scrape["source"], measured=measured, at=entry.created)

    def _note_rows(self, record: Mapping[str, Any], *, source: str, at: float) -> None:
        """Notes the values of a stored table."""
        self.met[Case.UNSEEN] += bool(record.get("left_out"))
        life = self._watched[NODES.name]
        times = [microseconds_of(reading["measured"]) / SECOND for reading in record["readings"]]
        for metric, column in record["metrics"].items():
            for row, (node, value) in enumerate(zip(record["nodes"], column["values"], strict=True)):
                if value is not None:
                    number = column["reading"][row] if isinstance(column["reading"], list) else column["reading"]
                    self.samples.seen(life, node, metric, source=source, measured=times[number], at=at)

    def _note_stored_policy(self, entry: RawEntry) -> None:
        life, now = self.lives[self._watched[POLICIES.name]], entry.created
        if entry.key == SYNCED:
            life.synced = min(life.synced, now)
            return
        namespace, _, token = entry.key.partition(".")
        identity = None
        if entry.value is not None:
            record = json.loads(entry.value)
            identity = (record["uid"], record["generation"])
        life.policies.setdefault((namespace, token.replace("_", ".")), []).append((now, identity))

    def unknown_policies(self) -> list[str]:
        """The policies that were on the bus although the API server never had them."""
        return [
            f"{key} was stored as {identity}, which the API server never had"
            for life in self.lives
            for key, stored in life.policies.items()
            for _, identity in stored
            if identity is not None and identity not in {each.identity for each in self.policies.get(key, [])}
        ]

    # What could be known

    def readable(self, key: Key, number: int, *, fresh: float) -> list[Span]:
        """When a version of a policy may have been on the bus: until a later version is known to be stored.

        A version that the API server replaced more than `fresh` seconds before an epoch is not written in the epoch.
        """
        version = self.policies[key][number]
        spans = []
        for life in self.lives:
            if version.until >= life.began - fresh:
                start = max(life.began, version.since - self.early)
                spans.append((start, min(life.ended, self._replaced(key, number, life))))
        return union(spans)

    def unknown_yet(self, key: Key, *, fresh: float) -> list[Span]:
        """When the first version of a policy may not have been known yet; `fresh` as in `readable`."""
        created = self.policies[key][0].since
        return [
            (life.began, min(life.ended, self._replaced(key, -1, life)))
            for life in self.lives
            if life.began - fresh <= created
        ]

    def _replaced(self, key: Key, number: int, life: Life) -> float:
        numbers = {version.identity: place for place, version in enumerate(self.policies[key])}
        last = -1
        for at, identity in life.policies.get(key, []):
            if identity is None:
                if last >= number:
                    return at
                continue
            last = numbers.get(identity, -1)
            if last > number:
                return at
        return inf

    def without(self, key: Key) -> list[Span]:
        """When a policy was not in the complete list on the bus."""
        return [
            span
            for life in self.lives
            for span in outside((span for span, _ in self._stored(key, life)), (life.synced, life.ended))
        ]

    def stored(self, key: Key, version: Version) -> list[Span]:
        """When this version of a policy is known to have been on the bus."""
        return [
            span for life in self.lives for span, identity in self._stored(key, life) if identity == version.identity
        ]

    def _stored(self, key: Key, life: Life) -> list[tuple[Span, Identity]]:
        stored = life.policies.get(key, [])
        ends = [*(at for at, _ in stored), life.ended][1:]
        return [((at, end), identity) for (at, identity), end in zip(stored, ends, strict=True) if identity is not None]

    def node_spans(self, node: str, uid: str) -> list[tuple[Span, Mapping[str, str]]]:
        """The labels of this node, not of a later one of its name, with the time of each state."""
        states = self.nodes.get(node, [])
        ends = [*(state.since for state in states), inf][1:]
        return [
            ((state.since - self.early, end), state.labels)
            for state, end in zip(states, ends, strict=True)
            if state.uid == uid
        ]


def _has(status: WatchStatus, epoch: Epoch) -> bool:
    """Whether a watch has delivered everything up to the last sequence of an epoch."""
    here = status.epoch is not None and status.epoch.created == epoch.created
    return here and status.caught_up and status.applied >= epoch.last_sequence
