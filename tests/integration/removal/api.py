"""The API server of a history: the writes of users, and its faults."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from lab.sandbox.resources import NODES, TASPOLICIES
from tests.integration.removal.judge import Judge
from tests.integration.removal.model import Key, Spec
from tests.integration.removal.observed import NodeState, Request, Written
from tests.sandbox import Call, Drop, Sandbox, Which

ADMIN = "admin"
LABELS = "tas-on-nats/labels-"
"""The user agent of a replica of `labels`, without the number at its end."""

STATUSES = (404, 409, 410, 429, 500, 503)
SLOW_SECONDS = (0.2, 1.5)


class Api(Protocol):
    """The API server as a history needs it. An implementation reports every write to the judge."""

    def nodes(self) -> Mapping[str, NodeState]:
        """The current state of every node."""

    async def add_node(self, node: str, labels: Mapping[str, str]) -> None: ...
    async def delete_node(self, node: str) -> None: ...
    async def label_node(self, node: str, labels: Mapping[str, str | None], *, manager: str = ADMIN) -> None: ...
    async def put_policy(self, key: Key, spec: Spec, before: Spec | None) -> None:
        """Creates a policy, or replaces its spec `before` completely."""

    async def delete_policy(self, key: Key) -> None: ...

    async def disturb(self, chance: random.Random) -> None:
        """Causes a random fault."""

    def hide_policies(self, chance: random.Random) -> None:
        """Makes lists of policies fail for a while."""

    def calm(self) -> None:
        """Ends all faults."""


def replacing(old: Any, new: Any) -> Any:
    """The merge patch that changes `old` to exactly `new`."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return dict.fromkeys(old.keys() - new.keys()) | {key: replacing(old.get(key), value) for key, value in new.items()}


def manifest(key: Key, spec: Spec) -> dict[str, Any]:
    """A TASPolicy."""
    head = {"apiVersion": TASPOLICIES.group_version, "kind": TASPOLICIES.kind}
    return head | {"metadata": {"name": key[1], "namespace": key[0]}, "spec": dict(spec)}


@dataclass
class SandboxApi:
    """A sandbox whose objects the test changes without HTTP."""

    sandbox: Sandbox
    judge: Judge
    log: Callable[[str], None]
    _version: int = 0

    def __post_init__(self) -> None:
        self.report()
        self.calm()

    # Writes of users

    def nodes(self) -> Mapping[str, NodeState]:
        heads = [each["metadata"] for each in self.sandbox.cluster.store.items(NODES)]
        return {head["name"]: NodeState(0.0, head["uid"], head.get("labels", {})) for head in heads}

    async def add_node(self, node: str, labels: Mapping[str, str]) -> None:
        with self._by_test():
            self.sandbox.add_node(node, labels=dict(labels))

    async def delete_node(self, node: str) -> None:
        with self._by_test():
            self.sandbox.cluster.delete(NODES, "", node)

    async def label_node(self, node: str, labels: Mapping[str, str | None], *, manager: str = ADMIN) -> None:
        patch = {"metadata": {"labels": dict(labels)}}
        with self._by_test():
            self.sandbox.cluster.patch(NODES, "", node, patch, manager=manager)

    async def put_policy(self, key: Key, spec: Spec, before: Spec | None) -> None:
        cluster = self.sandbox.cluster
        with self._by_test():
            if before is None:
                cluster.create(TASPOLICIES, key[0], manifest(key, spec), manager=ADMIN)
            else:
                cluster.patch(TASPOLICIES, *key, {"spec": replacing(before, spec)}, manager=ADMIN)

    async def delete_policy(self, key: Key) -> None:
        with self._by_test():
            self.sandbox.cluster.delete(TASPOLICIES, *key)

    # Faults

    async def disturb(self, chance: random.Random) -> None:
        faults, kind = self.sandbox.faults, chance.random()
        verbs = chance.choice((("get",), ("patch",), ("get", "patch"), ("list",), ("list", "watch"), ("list", "watch")))
        times = chance.randint(1, 4)
        if kind < 0.5:
            status = chance.choice(STATUSES)
            self.log(f"API server: {times} times {status} to {verbs}")
            faults.answer(status, times=times, which=_of_product(verbs), retry_after=1 if status == 429 else None)
        elif kind < 0.7:
            seconds = chance.uniform(*SLOW_SECONDS)
            self.log(f"API server: {times} times slow by {seconds:.2f} s to {verbs}")
            faults.delay(seconds, times=times, which=_of_product(verbs))
        elif kind < 0.85:
            drop = chance.choice(list(Drop))
            self.log(f"API server: {times} connections of {verbs} are dropped {drop.value} the answer")
            faults.drop(drop, times=times, which=_of_product(verbs))
        if kind > 0.75:
            self.report()
            if forget := chance.random() < 0.6:
                self.sandbox.forget_history()
            self.log(f"API server: watches are cut, and {'all' if forget else 'no'} versions are forgotten")
            self.sandbox.cut_watches()

    def hide_policies(self, chance: random.Random) -> None:
        self.log("API server: policies cannot be listed")
        self.sandbox.faults.answer(chance.choice((404, 500)), times=30, which=_lists_policies)

    def calm(self) -> None:
        self.sandbox.faults.clear()
        self.sandbox.faults.answer(500, which=self._note)

    # Reports to the judge

    @contextmanager
    def _by_test(self) -> Iterator[None]:
        """Reports the writes of the body as writes of the test; earlier writes are reported first.

        A patch that changes nothing writes nothing. Its answer has the version of the last write of anybody.
        """
        self.report()
        yield
        self._report(by_test=True)

    def report(self) -> None:
        """Reports all writes of the product since the last report."""
        self._report(by_test=False)

    def _report(self, *, by_test: bool) -> None:
        store, now = self.sandbox.cluster.store, time.time()
        changes = [change for kind in (NODES, TASPOLICIES) for change in store.changes_after(kind, self._version)]
        self._version = store.version
        for change in sorted(changes, key=lambda change: change.version):
            self.judge.take(
                Written(
                    version=change.version,
                    at=now,
                    kind="node" if change.resource is NODES else "policy",
                    key=change.key,
                    now=None if change.type == "DELETED" else change.now,
                    before=change.before,
                    by_test=by_test,
                )
            )

    async def follow(self) -> None:
        """Reports writes of the product until cancelled."""
        while True:
            await self.sandbox.cluster.store.wait_beyond(self._version)
            self.report()

    def _note(self, call: Call) -> bool:
        """Notes every request, and matches none."""
        if not call.user_agent.startswith(LABELS):
            return False
        request = Request(time.time(), self.sandbox.cluster.store.version, call)
        if (call.verb, call.resource) == ("list", "taspolicies"):
            self.judge.observed.lists.append(request)
        elif (call.verb, call.resource) == ("patch", "nodes"):
            self.judge.observed.patches.setdefault(call.name, []).append(request)
        return False


def _of_product(verbs: Sequence[str]) -> Which:
    def matches(call: Call) -> bool:
        return call.user_agent.startswith("tas-on-nats/") and call.verb in verbs

    return matches


def _lists_policies(call: Call) -> bool:
    return call.user_agent.startswith(LABELS) and (call.verb, call.resource) == ("list", "taspolicies")
