"""A `tas.view.View` that follows the bus: whoever answers or shows something stands on this.

It takes NODES and POLICIES in and goes on through losses of the bus. After a wipe it holds what it knew: policies and
labels leave when a complete list of the new life does not name them, samples when they are stale.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from bus.buckets import NODES, POLICIES
from bus.connection import Bus, Entry, Epoch
from bus.messages import PolicyRecord, Synced, decode_node_facts, decode_node_samples, decode_policy
from bus.subjects import parse_node_key, parse_policy_key
from bus.watch import WatchStatus
from tas.epoch import Survivors
from tas.errors import InvalidInputError
from tas.policy import PolicyKey
from tas.sample import NodeSamples
from tas.view import View
from workers.synced import SyncedWatch

log = structlog.get_logger("view")

ADVANCE_SECONDS = 0.25
"""How often time passes in the view at least, so that no answer pays for a whole cluster gone stale."""

LEAST_ADVANCE_SECONDS = 0.01
"""How often it passes at most, however many samples become stale one after the other."""


class FollowedView:
    """The view and how well it stands.

    Attributes:
        view: What is known.
        records: Each policy as it stands on the bus, with what was wrong with it.
        node_uids: Of each node that the API server has.
        node_revisions: The last revision of each node's entries in the present life of NODES, deletions included.
        invalid_entries: How many entries could not be read; they are logged and leave everything as it was.
        completed: Set once both lists were taken in; stays so through later lives of the bus.
    """

    name = "view"

    def __init__(
        self,
        bus: Bus,
        *,
        default_stale_after: float,
        verdicts: bool = False,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """With `verdicts` the view notes what a change touches; `on_change` is called after each, also of readiness."""
        self.view = View(default_stale_after=default_stale_after, verdicts=verdicts)
        self._on_change = on_change
        self.records: dict[PolicyKey, PolicyRecord] = {}
        self.node_uids: dict[str, str] = {}
        self.node_revisions: dict[str, int] = {}
        self.invalid_entries = 0
        self.completed = asyncio.Event()
        self._heard_at = time.monotonic()
        self._named_policies: Survivors[PolicyKey] = Survivors()
        self._named_nodes: Survivors[str] = Survivors()
        self._policies = SyncedWatch(
            bus,
            POLICIES,
            on_entry=self._apply_policy,
            on_epoch=self._policies_begin,
            on_complete=self._policies_complete,
            on_invalid=self._invalid,
        )
        self._nodes = SyncedWatch(
            bus,
            NODES,
            on_entry=self._apply_node,
            on_epoch=self._nodes_begin,
            on_complete=self._nodes_complete,
            on_invalid=self._invalid,
        )

    def unready(self) -> str | None:
        """Why the view is not to be relied on yet; None once both lists of the present life are taken in."""
        reasons = [reason for watch in (self._policies, self._nodes) if (reason := watch.unready()) is not None]
        return "; ".join(reasons) or None

    @property
    def watches(self) -> dict[str, WatchStatus]:
        """Where the watch of each bucket stands."""
        return {POLICIES.name: self._policies.status, NODES.name: self._nodes.status}

    @property
    def cluster(self) -> bool:
        """Whether the list of nodes is complete, and comes from a Kubernetes API: then there are no other nodes."""
        return self._nodes.synced is not None and self._nodes.synced.cluster

    @property
    def silent_seconds(self) -> float:
        """Seconds since anything was last heard from the bus: the age of the view."""
        return time.monotonic() - self._heard_at

    @property
    def was_complete(self) -> bool:
        """Whether both lists were ever taken in."""
        return self.completed.is_set()

    async def run(self) -> None:
        """Follows until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._policies.run())
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._let_time_pass())

    async def _let_time_pass(self) -> None:
        while True:
            now = time.time()
            self.view.advance(now)
            if self.view.touched:
                self._on_change()
            next_stale = self.view.next_deadline()
            wait = ADVANCE_SECONDS if next_stale is None else min(ADVANCE_SECONDS, next_stale - now)
            await asyncio.sleep(max(wait, LEAST_ADVANCE_SECONDS))

    def _policies_begin(self, epoch: Epoch) -> None:
        self._named_policies.begin(epoch.created)
        self._on_change()

    def _nodes_begin(self, epoch: Epoch) -> None:
        self._named_nodes.begin(epoch.created)
        self.node_revisions.clear()
        self._on_change()

    def _apply_policy(self, entry: Entry) -> None:
        self._heard_at = time.monotonic()
        self._take_policy(entry)
        self._on_change()

    def _take_policy(self, entry: Entry) -> None:
        try:
            key = parse_policy_key(entry.key)
            if entry.value is None:
                self._named_policies.unname(key)
                self._drop_policy(key)
                return
            self._named_policies.name(key)
            record = decode_policy(key, entry.value)
        except InvalidInputError as error:
            self._invalid(error)
            return
        known = self.records.get(key)
        self.records[key] = record
        if self.was_complete:
            self.view.set_policy(record.policy, time.time())
        if known is not None and (known.uid, known.generation) != (record.uid, record.generation):
            self.view.touch_policy(key)

    def _apply_node(self, entry: Entry) -> None:
        self._heard_at = time.monotonic()
        self._take_node(entry)
        self._on_change()

    def _take_node(self, entry: Entry) -> None:
        try:
            node, kind = parse_node_key(entry.key)
            self.node_revisions[node] = entry.revision
            if kind == "metrics":
                if entry.value is None:
                    self.view.drop_samples(node)
                else:
                    self._take_samples(node, decode_node_samples(entry.value))
            elif entry.value is None:
                self._named_nodes.unname(node)
                self._drop_facts(node)
            else:
                self._named_nodes.name(node)
                facts = decode_node_facts(entry.value)
                self.view.set_labels(node, facts.labels)
                if self.node_uids.get(node) != facts.uid:
                    self.node_uids[node] = facts.uid
                    self.view.touch_node(node)
        except InvalidInputError as error:
            self._invalid(error)

    def _take_samples(self, node: str, samples: NodeSamples) -> None:
        now = time.time()
        self.view.advance(now)  # what was stale before they came was so, however soon they came
        if self.view.touched:
            self._on_change()
        self.view.add_samples(node, samples, now)

    def _policies_complete(self, synced: Synced) -> None:
        for key in self._named_policies.finish(synced.epoch, self.view.policies.keys()):
            log.info("policy_gone", policy=str(key), reason="not in the complete list of this life of the bus")
            self._drop_policy(key)
        self._note_complete()

    def _nodes_complete(self, synced: Synced) -> None:
        for node in self._named_nodes.finish(synced.epoch, self.view.labelled_nodes):
            log.info("node_gone", node=node, reason="not in the complete list of this life of the bus")
            self._drop_facts(node)
        self._note_complete()

    def _note_complete(self) -> None:
        if self.unready() is None:
            if not self.was_complete:
                # Only now: to judge all nodes at once by sets is ten times as cheap as one by one as they come.
                self.view.set_policies([record.policy for record in self.records.values()], time.time())
            self.completed.set()
            log.info("view_complete", policies=len(self.view.policies), nodes=len(self.view.nodes))
        self._on_change()

    def _drop_policy(self, key: PolicyKey) -> None:
        self.records.pop(key, None)
        self.view.drop_policy(key)

    def _drop_facts(self, node: str) -> None:
        self.node_uids.pop(node, None)
        self.view.drop_labels(node)

    def _invalid(self, error: InvalidInputError) -> None:
        self.invalid_entries += 1
        log.warning("entry_invalid", object=error.subject, field=error.field, value=error.value, reason=error.reason)
