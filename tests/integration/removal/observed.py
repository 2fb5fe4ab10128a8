"""What happened, as the API server and the bus had it: the log that every removal is held against."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from bus.buckets import NODES, POLICIES, SYNCED
from bus.connection import Bus, Epoch, RawEntry
from bus.watch import Watch
from sandbox.faults import Call
from tests.integration.bus.followers import raw_watch
from tests.integration.published import SECOND, microseconds_of
from tests.integration.removal.model import Key, Samples, Spec
from tests.integration.removal.spans import Span, outside, union

Identity = tuple[str, int]
"""A policy's uid and generation."""


@dataclass(frozen=True, slots=True)
class Written:
    """One write that the API server did, of a node or a policy, at `at`; `now` None: a deletion."""

    version: int
    at: float
    kind: str
    key: Key
    now: Mapping[str, Any] | None
    before: Mapping[str, Any] | None
    by_test: bool


@dataclass(frozen=True, slots=True)
class Request:
    """What `labels` asked of the API server at `at`, when that had come to `version`."""

    at: float
    version: int
    call: Call


@dataclass(slots=True)
class Version:
    """One state of a policy: what the API server had from `since` until `until`; `spec` None: nothing."""

    spec: Spec | None
    since: float
    identity: Identity = ("", 0)
    until: float = inf


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node's uid and labels from `since` on; uid "": there was none."""

    since: float
    uid: str
    labels: Mapping[str, str]


@dataclass(slots=True)
class Life:
    """One life of the bus: until it lost all that it knew.

    Attributes:
        synced: When its list of policies was complete.
        policies: Of each what stood, and from when on; None: nothing any more.
    """

    began: float
    ended: float = inf
    synced: float = inf
    policies: dict[Key, list[tuple[float, Identity | None]]] = field(default_factory=dict)


@dataclass
class Observed:
    """The log.

    Attributes:
        early: By how many seconds others may have seen a write before it was seen here.
        setters: Whether it was the product that last changed a label, by node, uid and label.
        lists: When the API server was asked for all policies.
        patches: When it was asked to change a node.
    """

    early: float = 0.0
    samples: Samples = field(default_factory=Samples)
    policies: dict[Key, list[Version]] = field(default_factory=dict)
    nodes: dict[str, list[NodeState]] = field(default_factory=dict)
    setters: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    lists: list[Request] = field(default_factory=list)
    patches: dict[str, list[Request]] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=lambda: [Life(-inf)])
    _watched: dict[str, int] = field(default_factory=dict)

    # What the API server did

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
            if versions and versions[-1].spec is not None and versions[-1].identity == version.identity:
                return  # of its status
        if versions:
            versions[-1].until = written.at
        versions.append(version)

    # What stood on the bus

    def wiped(self, at: float) -> None:
        """The bus has lost all that it knew."""
        self.lives[-1].ended = at
        self.lives.append(Life(at))
        self.samples.wiped(at)

    def watches(self, bus: Bus) -> tuple[Watch, Watch]:
        """Both have to run."""

        def began(bucket: str, _: Epoch) -> None:
            self._watched[bucket] = len(self.lives) - 1

        return (
            raw_watch(bus, NODES, on_entry=self._samples_stand, on_epoch=lambda epoch: began(NODES.name, epoch)),
            raw_watch(bus, POLICIES, on_entry=self._policy_stands, on_epoch=lambda epoch: began(POLICIES.name, epoch)),
        )

    def _samples_stand(self, entry: RawEntry) -> None:
        token, _, kind = entry.key.partition(".")
        if kind != "metrics" or entry.value is None:
            return
        for scrape in json.loads(entry.value)["scrapes"]:
            for metric in scrape["metrics"]:
                measured = microseconds_of(scrape["measured"]) / SECOND
                life = self._watched[NODES.name]
                self.samples.seen(life, token.replace("_", "."), metric, measured, time.time())

    def _policy_stands(self, entry: RawEntry) -> None:
        life, now = self.lives[self._watched[POLICIES.name]], time.time()
        if entry.key == SYNCED:
            life.synced = min(life.synced, now)
            return
        namespace, _, token = entry.key.partition(".")
        standing = None
        if entry.value is not None:
            record = json.loads(entry.value)
            standing = (record["uid"], record["generation"])
        life.policies.setdefault((namespace, token.replace("_", ".")), []).append((now, standing))

    def unknown_policies(self) -> list[str]:
        """What stood on the bus though the API server never had it."""
        return [
            f"{key} stood as {identity}, which the API server never had"
            for life in self.lives
            for key, stood in life.policies.items()
            for _, identity in stood
            if identity is not None and identity not in {each.identity for each in self.policies.get(key, [])}
        ]

    # What could be known

    def readable(self, key: Key, number: int, *, fresh: float) -> list[Span]:
        """When a version of a policy may have stood on the bus: until something later is known to stand in its place.

        What the API server had no more `fresh` seconds before a life of the bus began is not written in that.
        """
        version = self.policies[key][number]
        spans = []
        for life in self.lives:
            if version.until >= life.began - fresh:
                start = max(life.began, version.since - self.early)
                spans.append((start, min(life.ended, self._replaced(key, number, life))))
        return union(spans)

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
        """When a policy was not among those of a complete list on the bus."""
        return [
            span
            for life in self.lives
            for span in outside((span for span, _ in self._stood(key, life)), (life.synced, life.ended))
        ]

    def stood(self, key: Key, version: Version) -> list[Span]:
        """When this version of a policy is known to have stood on the bus."""
        return [
            span for life in self.lives for span, identity in self._stood(key, life) if identity == version.identity
        ]

    def _stood(self, key: Key, life: Life) -> list[tuple[Span, Identity]]:
        stood = life.policies.get(key, [])
        ends = [*(at for at, _ in stood), life.ended][1:]
        return [((at, end), identity) for (at, identity), end in zip(stood, ends, strict=True) if identity is not None]

    def node_spans(self, node: str, uid: str) -> list[tuple[Span, Mapping[str, str]]]:
        """When this very node had which labels."""
        states = self.nodes.get(node, [])
        ends = [*(state.since for state in states), inf][1:]
        return [
            ((state.since - self.early, end), state.labels)
            for state, end in zip(states, ends, strict=True)
            if state.uid == uid
        ]
