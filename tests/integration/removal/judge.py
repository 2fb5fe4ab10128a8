"""Who looks on: every removal of a label, as the API server wrote it, against what could be known just before."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from bus.buckets import NODES, POLICIES
from bus.connection import Bus, Entry, Epoch
from bus.watch import Watch
from sandbox import Sandbox
from sandbox.faults import Call
from sandbox.resources import NODES as NODE_RESOURCE
from sandbox.resources import TASPOLICIES
from sandbox.store import Change
from tests.integration.published import SECOND, microseconds_of
from tests.integration.removal.model import PREFIX, VIOLATING, Key, Samples, Spec, confirms, keeps

FRESH_SECONDS = 2.0
"""How old what a removal stands on may be when it is sent."""

SLACK_SECONDS = 0.5
"""How late we may notice what happens, on a busy machine."""

SLOWEST_SECONDS = 3.0
"""Longer than the API server here takes to do what it is asked."""

LABELS = "tas-on-nats/labels"


@dataclass(slots=True)
class Version:
    """One state of a policy: what the API server had from `since` until `until`; `spec` None: nothing."""

    spec: Spec | None
    since: float
    uid: str = ""
    generation: int = 0
    until: float = inf
    replaced: float = inf
    """When something later was first seen on the bus, in its present life."""


@dataclass
class Judge:
    """Follows the sandbox's own store and the bus.

    Attributes:
        samples: What was sent and what stood.
        verdicts: How often which reason let a label go.
        wrongs: Removals without a reason.
        slower: By how many seconds a removal may be later at this time than it should, as a stop hit or the API
            server was slow.
    """

    sandbox: Sandbox
    default_stale_after: float
    tell: Callable[[str], None]
    slower: Callable[[float], float]
    samples: Samples = field(default_factory=Samples)
    verdicts: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)
    policies: dict[Key, list[Version]] = field(default_factory=dict)
    lists: list[tuple[float, Call]] = field(default_factory=list)
    patches: dict[str, list[tuple[float, int, Call]]] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    setter: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    version: int = 0
    _standing: dict[str, int] = field(default_factory=dict)

    # What the API server does

    def note(self, call: Call) -> bool:
        """Sees every request; matches none."""
        if (call.verb, call.resource, call.user_agent) == ("list", "taspolicies", LABELS):
            self.lists.append((time.time(), call))
        elif (call.verb, call.resource, call.user_agent) == ("patch", "nodes", LABELS):
            self.patches.setdefault(call.name, []).append((time.time(), self.sandbox.cluster.store.version, call))
        return False

    def mine(self, written: Mapping[str, Any]) -> None:
        """The test itself wrote this."""
        self.own.add(int(written["metadata"]["resourceVersion"]))
        self.look()

    def look(self) -> None:
        """Judges all that was written since the last look."""
        store, now = self.sandbox.cluster.store, time.time()
        changes = [
            change
            for resource in (NODE_RESOURCE, TASPOLICIES)
            for change in store.changes_after(resource, self.version)
        ]
        self.version = store.version
        for change in sorted(changes, key=lambda change: change.version):
            if change.resource is NODE_RESOURCE:
                self._node(change, now)
            else:
                self._policy(change, now)

    async def follow(self) -> None:
        while True:
            await self.sandbox.cluster.store.wait_beyond(self.version)
            self.look()

    def _policy(self, change: Change, now: float) -> None:
        versions = self.policies.setdefault(change.key, [])
        metadata = change.now["metadata"]
        spec = None if change.type == "DELETED" else change.now["spec"]
        generation = 0 if spec is None else metadata["generation"]
        if (
            versions
            and spec is not None
            and (versions[-1].uid, versions[-1].generation) == (metadata["uid"], generation)
        ):
            return  # of its status
        if versions:
            versions[-1].until = now
        versions.append(Version(spec, now, metadata["uid"], generation))

    def _node(self, change: Change, now: float) -> None:
        before = {} if change.before is None else change.before["metadata"].get("labels", {})
        if change.type == "DELETED":
            return
        after = change.now["metadata"].get("labels", {})
        ours = change.version not in self.own
        node, uid = change.now["metadata"]["name"], change.now["metadata"]["uid"]
        for label in before.keys() | after.keys():
            if before.get(label) == after.get(label):
                continue
            if label not in after and ours:
                self._removed(change, uid, label, before, now)
            self.setter[node, uid, label] = ours

    # What stands on the bus

    def watches(self, bus: Bus) -> tuple[Watch, Watch]:
        """Both have to run."""
        return (
            Watch(bus, NODES, on_entry=self._samples_stand, on_epoch=lambda epoch: self._began("nodes", epoch)),
            Watch(bus, POLICIES, on_entry=self._policy_stands, on_epoch=lambda epoch: self._began("policies", epoch)),
        )

    def _began(self, what: str, _epoch: Epoch) -> None:
        if what == "nodes":
            self.samples.stood.clear()
            return
        self._standing.clear()
        now = time.time()
        for versions in self.policies.values():
            for version in versions:
                # What the API server had no more before this life began is not written in it, but by who had just read.
                version.replaced = now if version.until < now - FRESH_SECONDS - SLACK_SECONDS else inf

    def _samples_stand(self, entry: Entry) -> None:
        token, _, kind = entry.key.partition(".")
        if kind != "metrics" or entry.value is None:
            return
        for scrape in json.loads(entry.value)["scrapes"]:
            for metric in scrape["metrics"]:
                measured = microseconds_of(scrape["measured"]) / SECOND
                self.samples.seen(token.replace("_", "."), metric, measured, time.time())

    def _policy_stands(self, entry: Entry) -> None:
        if entry.key.startswith("_"):
            return
        self.look()
        if entry.value is None:
            namespace, _, name = entry.key.partition(".")
            for version in self.policies.get((namespace, name), [])[: self._standing.pop(entry.key, -1) + 1]:
                version.replaced = min(version.replaced, time.time())
            return
        record = json.loads(entry.value)
        versions = self.policies.get((record["namespace"], record["name"]), [])
        standing = (record["uid"], record["generation"])
        numbers = [number for number, each in enumerate(versions) if (each.uid, each.generation) == standing]
        if not numbers:
            self.wrongs.append(f"{entry.key} stands as {standing}, which the API server never had")
            return
        self._standing[entry.key] = numbers[-1]
        for version in versions[: numbers[-1]]:
            version.replaced = min(version.replaced, time.time())

    # The law

    def _removed(self, change: Change, uid: str, label: str, before: Mapping[str, str], now: float) -> None:
        node = change.key[1]
        # Who wrote this had read the node as it was before, so it asked after that. The API server may be slow.
        was = 0 if change.before is None else int(change.before["metadata"]["resourceVersion"])
        sent = [
            at
            for at, version, call in self.patches.get(node, [])
            if version >= was and at > now - SLOWEST_SECONDS and call.status in (0, 200)
        ]
        if not sent:
            self.wrongs.append(f"{label}={before[label]} went from {node} by a patch that was sent before")
            return
        window = (min(sent) - FRESH_SECONDS - SLACK_SECONDS - self.slower(now), now)
        reason = self._reason(node, uid, label, before, window)
        self.tell(f"{label}={before[label]} goes from {node}: {reason}")
        if reason is None:
            known = {key: [(each.spec, each.since - now, each.replaced - now) for each in found[-3:]]
                     for key, found in self.policies.items() if key[1] == _policy_name(label)}  # fmt: skip
            seen = {
                metric: [(sample.value, sample.measured - now, replaced - now) for sample, replaced in
                         list(self.samples.readable(node, metric))[-6:]]
                for place, metric in self.samples.sent if place == node
            }  # fmt: skip
            self.wrongs.append(f"{label}={before[label]} went from {node} for no reason; {known}; {seen}")
        else:
            self.verdicts[reason] += 1

    def _reason(
        self, node: str, uid: str, label: str, before: Mapping[str, str], window: tuple[float, float]
    ) -> str | None:
        bare = not label.startswith(PREFIX)
        if bare and before[label] != VIOLATING:
            return None
        name = _policy_name(label)
        for key, versions in self.policies.items():
            for version in versions:
                if key[1] != name or version.spec is None or version.replaced < window[0]:
                    continue
                if confirms(
                    version.spec,
                    name,
                    label,
                    node=node,
                    labels=before,
                    samples=self.samples,
                    default_stale_after=self.default_stale_after,
                    window=window,
                ):
                    return "policy"
        asked = any(at >= window[0] and call.status == 200 for at, call in self.lists)
        # `extender` is the original's manager; the histories name those labels so.
        ours = not bare or self.setter.get((node, uid, label), False) or label.startswith("original-")
        return "orphan" if asked and ours and self._nobody_kept(name, label, window) else None

    def _nobody_kept(self, name: str, label: str, window: tuple[float, float]) -> bool:
        """Whether there was a moment at which no policy of the API server had to do with the label."""
        keeping = [
            (each.since, each.until)
            for key, versions in self.policies.items()
            if key[1] == name
            for each in versions
            if each.spec is not None and keeps(each.spec, name, label)
        ]
        moments = [window[0], *(end for _, end in keeping if window[0] <= end <= window[1])]
        return any(not any(start <= at < end for start, end in keeping) for at in moments)


def _policy_name(label: str) -> str:
    return label.removeprefix(PREFIX).partition("/")[0]
