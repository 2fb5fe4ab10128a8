"""A small scheduler: places pods as kube-scheduler does, by labels, taints, cordons and extenders.

It places one pod at a time: cordons, taints, required node affinity and node selector, then the extenders' filter and
prioritize. The node with the highest total gets the pod; of nodes with equal totals, the node with the fewest pods. An
extender with a bind verb binds the pods that it is interested in.

A pod that fits no node waits for a change that may help (a node's label, annotation, taint, condition or allocatable, a
new node, a deleted pod), or for the flush every five minutes. After a failed attempt the scheduler tries again after 1
to 10 s.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from lab.sandbox.cluster import Cluster, with_condition
from lab.sandbox.errors import StatusError
from lab.sandbox.extender import Extender, ExtenderError
from lab.sandbox.fitting import misfit
from lab.sandbox.resources import EVENTS, NODES, PODS, Object
from lab.sandbox.store import Change, ForgottenError, Key, key_of

NAME = "default-scheduler"
MANAGER = "kube-scheduler"
FLUSH_SECONDS = 300.0
BACKOFF_SECONDS = (1.0, 10.0)
"""After a failed attempt: the first and the longest backoff. A pod that fits no node has no backoff after a wake."""

NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"


@dataclass(slots=True)
class Unfit:
    """The reason of each rejected node."""

    failed: dict[str, str]
    unresolvable: dict[str, str]

    def message(self, nodes: int) -> str:
        """The message of kube-scheduler, with the number of nodes for each reason."""
        counted = Counter([*self.failed.values(), *self.unresolvable.values()])
        available = f"0/{nodes} nodes are available:"
        rejected = f"{available} {_listed(counted)}." if counted else available
        preemption = Counter({NOT_HELPFUL: nodes - len(self.failed), NO_VICTIMS: len(self.failed)})
        return f"{rejected} no new claims to deallocate, preemption: {available} {_listed(+preemption)}."


class Scheduler:
    """Places the pods with `schedulerName: default-scheduler`."""

    def __init__(
        self,
        cluster: Cluster,
        session: aiohttp.ClientSession,
        extenders: Sequence[Extender],
        *,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._session = session
        self._extenders = extenders
        self._flush_seconds = flush_seconds
        self._active: dict[Key, None] = {}
        self._due: dict[Key, float] = {}
        """When a pod that is not active is tried again, on the loop's clock: at the flush, or after its backoff."""
        self._failures: Counter[Key] = Counter()
        """Failed attempts in a row; 0 for a pod that fits no node."""

    async def run(self) -> None:
        """Schedules until cancelled."""
        loop, store = asyncio.get_running_loop(), self._cluster.store
        version = store.version
        self._activate(store.items(PODS))
        while True:
            version = self._follow(version)
            due = [key for key, when in self._due.items() if when <= loop.time()]
            for key in due:
                self._wake(key)
            if self._active:
                key = next(iter(self._active))
                del self._active[key]
                await self._attempt(key)
                continue
            try:
                async with asyncio.timeout_at(min(self._due.values(), default=None)):
                    await store.wait_beyond(version)
            except TimeoutError:
                continue

    def _follow(self, version: int) -> int:
        """Processes the changes after this version, and returns the current version."""
        store = self._cluster.store
        try:
            changes = [*store.changes_after(NODES, version), *store.changes_after(PODS, version)]
        except ForgottenError:
            self._activate(store.items(PODS))
            changes = []
        for change in changes:
            if _may_help(change):
                for key in [key for key in self._due if not self._failures[key]]:
                    self._wake(key)
            if change.resource is PODS and change.type == "DELETED":
                self._forget(change.key)
            elif change.resource is PODS and (change.before is None or _differs(change, "labels")):
                self._activate([change.now])
        return store.version

    def _activate(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            if _is_pending(pod):
                self._wake(key_of(pod))

    def _wake(self, key: Key) -> None:
        self._due.pop(key, None)
        self._active[key] = None

    def _forget(self, key: Key) -> None:
        self._active.pop(key, None)
        self._due.pop(key, None)
        del self._failures[key]

    async def _attempt(self, key: Key) -> None:
        """Places one pod, or writes the reason to the pod and schedules the next attempt."""
        pod = self._cluster.store.get(PODS, *key)
        if pod is None or not _is_pending(pod):
            return
        now = asyncio.get_running_loop().time()
        nodes = self._cluster.store.items(NODES)
        try:
            feasible, unfit = await self._filter(pod, nodes)
            if feasible:
                best = feasible[0] if len(feasible) == 1 else await self._best(pod, feasible)
                if not self._is_current(pod):
                    return  # deleted meanwhile; a new pod of the same name is another attempt
                await self._bind(pod, best)
                self._write_event(pod, "Normal", "Scheduled", f"Successfully assigned {key[0]}/{key[1]} to {best}")
                self._forget(key)
                return
            reason, message = "Unschedulable", unfit.message(len(nodes))
            self._failures[key] = 0
            self._due[key] = now + self._flush_seconds
        except ExtenderError as error:
            reason, message = "SchedulerError", str(error)
            first, most = BACKOFF_SECONDS
            self._due[key] = now + min(first * 2 ** self._failures[key], most)
            self._failures[key] += 1
        except StatusError:
            return  # the pod was deleted or bound meanwhile
        self._reject(key, pod, reason, message)

    async def _filter(self, pod: Object, nodes: list[Object]) -> tuple[list[str], Unfit]:
        misfits = {node["metadata"]["name"]: misfit(pod, node) for node in nodes}
        feasible = [name for name, reason in misfits.items() if reason is None]
        unfit = Unfit({}, {name: reason for name, reason in misfits.items() if reason is not None})
        for extender in self._extenders:
            if not feasible:
                break
            if not extender.filter_verb or not extender.is_interested(pod):
                continue
            try:
                filtered = await extender.filter(self._session, pod, feasible)
            except ExtenderError:
                if extender.ignorable:
                    continue
                raise
            feasible = filtered.feasible
            unfit.failed |= filtered.failed
            unfit.unresolvable |= filtered.unresolvable
        return feasible, unfit

    async def _best(self, pod: Object, feasible: list[str]) -> str:
        called = [each for each in self._extenders if each.prioritize_verb and each.is_interested(pod)]
        answers = await asyncio.gather(*(each.prioritize(self._session, pod, feasible) for each in called))
        pods = Counter(other["spec"].get("nodeName", "") for other in self._cluster.store.items(PODS))

        def rank(name: str) -> tuple[int, int, str]:
            return -sum(scores.get(name, 0) for scores in answers), pods[name], name

        return min(feasible, key=rank)

    async def _bind(self, pod: Object, node: str) -> None:
        """Binds a pod, or has the extender do it that wants to (facts.md c30)."""
        for extender in self._extenders:
            if not extender.bind_verb or not extender.is_interested(pod):
                continue
            try:
                await extender.bind(self._session, pod, node)
            except ExtenderError:
                if not extender.ignorable:
                    raise
            else:
                return
        namespace, name = key_of(pod)
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
        self._cluster.bind(namespace, name, binding, manager=MANAGER)

    def _reject(self, key: Key, pod: Object, reason: str, message: str) -> None:
        if not self._is_current(pod):
            return
        current = self._cluster.get(PODS, *key)
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        since = [
            old["lastTransitionTime"]
            for old in current["status"].get("conditions", [])
            if (old["type"], old["status"]) == ("PodScheduled", "False")
        ]
        condition["lastTransitionTime"] = since[0] if since else self._cluster.time()
        status = with_condition(current["status"], condition)
        self._cluster.patch(PODS, *key, {"status": status}, manager=MANAGER, status=True)
        self._write_event(pod, "Warning", "FailedScheduling", message)

    def _is_current(self, pod: Object) -> bool:
        current = self._cluster.store.get(PODS, *key_of(pod))
        return current is not None and current["metadata"]["uid"] == pod["metadata"]["uid"]

    def _write_event(self, pod: Object, kind: str, reason: str, message: str) -> None:
        namespace, name = key_of(pod)
        about = {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": name}
        event = {
            "metadata": {"name": f"{name}.{uuid.uuid4().hex[:16]}"},
            "involvedObject": about | {"uid": pod["metadata"]["uid"]},
            "type": kind,
            "reason": reason,
            "message": message,
            "action": "Scheduling" if kind == "Warning" else "Binding",
            "eventTime": self._cluster.micro_time(),
            "reportingComponent": NAME,
        }
        self._cluster.create(EVENTS, namespace, event, manager=MANAGER)


@asynccontextmanager
async def scheduling(
    cluster: Cluster, entries: Sequence[Mapping[str, Any]], *, flush_seconds: float = FLUSH_SECONDS
) -> AsyncIterator[None]:
    """Runs a scheduler with these entries of `extenders` while the body runs."""
    extenders = [Extender.from_entry(entry) for entry in entries]
    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(Scheduler(cluster, session, extenders, flush_seconds=flush_seconds).run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()  # run() never returns: raises the error that ended it


def _is_pending(pod: Object) -> bool:
    spec = pod["spec"]
    return not spec.get("nodeName") and not spec.get("schedulingGates") and spec["schedulerName"] == NAME


def _may_help(change: Change) -> bool:
    """Whether a pod that fitted no node may fit a node now (kubernetes PR #122022)."""
    if change.resource is PODS:
        return change.type == "DELETED" and bool(change.now["spec"].get("nodeName"))
    if change.before is None:
        return True
    if change.type == "DELETED":
        return False
    return _differs(change, "labels") or _differs(change, "annotations") or _offer(change.now) != _offer(change.before)


def _differs(change: Change, key: str) -> bool:
    before = change.before or {"metadata": {}}
    return bool(change.now["metadata"].get(key) != before["metadata"].get(key))


def _offer(node: Object) -> tuple[Any, ...]:
    status = node.get("status", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    return node.get("spec"), status.get("allocatable"), conditions


def _listed(counted: Counter[str]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in counted.items()))
