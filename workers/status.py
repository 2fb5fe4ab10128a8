"""The status of TASPolicies: written by one replica at a time, seldom, and only where it differs.

Who holds the lease follows VERDICTS for the states, NODES for whether metrics are seen at all, and the policies
themselves at the API server. A lease alone keeps no late write away, so each patch stands on the policy's uid and
resource version as well.
"""

import asyncio
import os
import socket
import time
from collections.abc import Iterable
from math import inf

import structlog
from prometheus_client import CollectorRegistry, Counter

from bus.buckets import LEASES, NODES, VERDICTS
from bus.connection import Bus, Entry, Epoch
from bus.errors import BusError
from bus.lease import Lease
from bus.messages import Synced, decode_verdict
from bus.subjects import parse_node_key, parse_verdict_key
from bus.watch import Watch
from tas.errors import InvalidInputError
from tas.manifest import parse_policy
from tas.policy import Policy, PolicyKey, Problem
from tas.status import MetricUse, StateBook, differs, metrics_of, policy_status, shared_labels
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import ConflictError, ExpiredError, KubernetesError, NotFoundError
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import POLICIES, Metadata, PolicyObject
from workers.logs import Throttle
from workers.node_patches import FIELD_MANAGER
from workers.seen_metrics import SeenMetrics
from workers.synced import SyncedWatch

log = structlog.get_logger("status")

PATCH_SECONDS = 5.0
"""At most one patch of a policy in so long."""

LOOK_SECONDS = 0.5
"""How often is looked at the policies of which something has changed."""

LOOK_ALL_SECONDS = 5.0
"""How often all are looked at: a metric falls silent without any event."""

AT_ONCE = 4
"""Statuses that are patched at the same time."""

LEASE_KEY = "status"
LEASE_SECONDS = 5


class _Written:
    """A policy as it stands at the API server, and as it is read."""

    __slots__ = ("metadata", "policy", "problems", "status")

    def __init__(self, found: PolicyObject) -> None:
        self.metadata: Metadata = found.metadata
        self.status: object = found.status
        self.policy: Policy
        self.problems: tuple[Problem, ...]
        self.policy, self.problems = parse_policy(PolicyKey(found.metadata.namespace, found.metadata.name), found.spec)


class PolicyStatus:
    """The worker, which runs beside `watch` and as it. What it keeps another copy of it can read anew."""

    name = "status"

    def __init__(
        self, bus: Bus, client: KubernetesClient, *, registry: CollectorRegistry, default_stale_after: float
    ) -> None:
        self._bus = bus
        self._client = client
        self._default_stale_after = default_stale_after
        self._lease = Lease(bus, LEASE_KEY, f"{socket.gethostname()}-{os.getpid()}", ttl_seconds=LEASE_SECONDS)
        self._lines = Throttle()
        self._patches = Counter(
            "tas_policy_status_patches",
            "Attempts to patch a policy's status, by what became of them.",
            ["result"],
            registry=registry,
        )
        for result in ("patched", "conflict", "gone", "failed"):
            self._patches.labels(result)

    def unready(self) -> str | None:
        """Never: who does not hold the lease stands by."""
        return None

    async def run(self) -> None:
        """Writes while it holds the lease, and waits for it else, until cancelled."""
        while True:
            await self._bus.wait_connected()  # at the start there is no lease that could be lost
            try:
                first = await self._bus.get(LEASES, LEASE_KEY) is None
                async with self._lease.hold():
                    # Somebody else may have patched just now.
                    following = _Following(self, patch_after=0.0 if first else PATCH_SECONDS)
                    await following.run()
            except BusError as error:
                log.info("status_lease_lost", error=str(error))
                await asyncio.sleep(LOOK_SECONDS)

    async def patch(self, written: _Written, following: "_Following") -> bool:
        """Patches a policy's status if it differs. Returns whether something was sent."""
        read_at = time.monotonic()
        metadata, policy = written.metadata, written.policy
        others = (each.policy for key, each in following.policies.items() if key.name == policy.key.name)
        status = policy_status(
            policy,
            generation=metadata.generation,
            problems=(*written.problems, *shared_labels(policy, others)),
            states=following.book.states(policy.key, metadata.uid),
            unseen=following.unseen(policy),
            before=written.status,
            now=time.time(),
        )
        if not differs(written.status, status):
            return False
        patch = {"metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version}, "status": status}
        try:
            after = await self._client.merge_patch(
                POLICIES,
                metadata.name,
                patch,
                namespace=metadata.namespace,
                subresource="status",
                field_manager=FIELD_MANAGER,
                read_at=read_at,
            )
        except (ConflictError, ExpiredError):
            self._patches.labels("conflict").inc()
            following.changed.add(policy.key)
        except NotFoundError:
            self._patches.labels("gone").inc()
        except KubernetesError as error:
            self._patches.labels("failed").inc()
            following.changed.add(policy.key)
            self.warn("policy_status_failed", policy=str(policy.key), error=str(error))
        else:
            self._patches.labels("patched").inc()
            following.patched(written, after)
        return True

    def warn(self, event: str, **fields: object) -> None:
        """Tells it, unless the same was told a moment ago."""
        held_back = self._lines.admit((event, fields.get("policy")), time.monotonic())
        if held_back is not None:
            log.warning(event, alike_before=held_back, **fields)


class _Following:
    """All that statuses are made of, as long as the lease is held."""

    def __init__(self, writer: PolicyStatus, *, patch_after: float) -> None:
        bus, client = writer._bus, writer._client
        self.policies: dict[PolicyKey, _Written] = {}
        self.book = StateBook()
        self.changed: set[PolicyKey] = set()
        self._writer = writer
        self._default_stale_after = writer._default_stale_after
        self._seen = SeenMetrics()
        self._began = time.monotonic() + patch_after
        self._patched: dict[PolicyKey, float] = {}
        self._reflector = Reflector(client, POLICIES, on_list=self._listed, on_change=self._change)
        self._verdicts = Watch(bus, VERDICTS, on_entry=self._verdict, on_epoch=self._verdicts_began)
        self._nodes = SyncedWatch(
            bus,
            NODES,
            on_entry=self._node,
            on_epoch=lambda _: self._seen.clear(),
            on_complete=self._complete,
            on_invalid=self._invalid,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for work in (self._reflector.run(), self._verdicts.run(), self._nodes.run(), self._write()):
                tasks.create_task(work)

    def unseen(self, policy: Policy) -> list[MetricUse]:
        """Which of its metrics no node had a fresh sample of when it was last looked."""
        return self._seen.unseen(metrics_of(policy), self._stale_after(policy))

    @property
    def _ready(self) -> bool:
        return bool(self._reflector.listed) and self._verdicts.status.caught_up and self._nodes.unready() is None

    async def _write(self) -> None:
        looked_at_all = float("-inf")
        turns = asyncio.Semaphore(AT_ONCE)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if not self._ready or now < self._began:
                continue
            if now - looked_at_all >= LOOK_ALL_SECONDS:
                looked_at_all = now
                self.changed.update(self.policies)
            due = {key for key in self.changed if now - self._patched.get(key, float("-inf")) >= PATCH_SECONDS}
            self.changed -= due
            looked_at = [written for key in sorted(due) if (written := self.policies.get(key)) is not None]
            await self._seen.look(self._uses(looked_at), time.time())
            await asyncio.gather(*(self._patch(written, turns) for written in looked_at))

    def _uses(self, policies: Iterable[_Written]) -> dict[MetricUse, float]:
        """What their rules read, with the shortest time after which one of them calls it stale."""
        uses: dict[MetricUse, float] = {}
        for written in policies:
            for use in metrics_of(written.policy):
                uses[use] = min(self._stale_after(written.policy), uses.get(use, inf))
        return uses

    def _stale_after(self, policy: Policy) -> float:
        return policy.stale_after or self._default_stale_after

    async def _patch(self, written: _Written, turns: asyncio.Semaphore) -> None:
        key = written.policy.key
        async with turns:
            if self.policies.get(key) is not written:
                self.changed.add(key)  # it was told anew meanwhile: its metrics are looked for first
            elif await self._writer.patch(written, self):
                self._patched[key] = time.monotonic()
            await asyncio.sleep(0)  # others of this process have their turn between two policies

    def patched(self, written: _Written, after: PolicyObject) -> None:
        """What an answer says of a policy, unless the watch has told of it meanwhile, and maybe of more since."""
        if self.policies.get(written.policy.key) is written:
            self.take(after)

    def take(self, found: PolicyObject) -> None:
        """A policy as it stands now."""
        written = _Written(found)
        self.policies[written.policy.key] = written

    def _listed(self, listing: Listing[PolicyObject]) -> None:
        self.policies.clear()
        for found in listing.items:
            self.take(found)
        self.changed.update(self.policies)

    def _change(self, change: Change[PolicyObject]) -> None:
        metadata = change.object.metadata
        key = PolicyKey(metadata.namespace, metadata.name)
        if change.type is ChangeType.DELETED:
            self.policies.pop(key, None)
            self._patched.pop(key, None)
        else:
            self.take(change.object)
        self.changed.update(self._of_name(key.name))

    def _of_name(self, name: str) -> Iterable[PolicyKey]:
        """Those that share labels."""
        return [key for key in self.policies if key.name == name]

    def _verdicts_began(self, _: Epoch) -> None:
        self.book.clear()

    def _verdict(self, entry: Entry) -> None:
        try:
            node = parse_verdict_key(entry.key)
            policies = {} if entry.value is None else decode_verdict(entry.value).policies
        except InvalidInputError as error:
            self._invalid(error)
            return
        states = {
            (key, policy.uid): {kind: strategy.state for kind, strategy in policy.strategies.items()}
            for key, policy in policies.items()
        }
        self.changed.update(self.book.take(node, states))

    def _node(self, entry: Entry) -> None:
        try:
            node, kind = parse_node_key(entry.key)
        except InvalidInputError as error:
            self._invalid(error)
            return
        if kind != "metrics":
            return
        self._seen.take(node, entry.value)

    def _complete(self, synced: Synced) -> None:
        log.info("status_ready", nodes=synced.count, policies=len(self.policies))

    def _invalid(self, error: InvalidInputError) -> None:
        self._writer.warn("entry_invalid", object=error.subject, field=error.field, value=error.value)
