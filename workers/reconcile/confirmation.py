"""Confirms removals by new reads (`tas.enforcing.removal`): of policies, samples, and the API server's policies."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from math import inf

from bus.connection import Bus
from bus.kinds import POLICY_RECORDS
from bus.record_kind import Entry
from bus.records.policies import PolicyRecord
from tas.enforcing.labels import policy_name
from tas.enforcing.removal import Evidence, StoredPolicy, confirmed_removals, may_remove_orphan
from tas.policy.policy import PolicyKey
from tas.verdict.ownership import Claims, claim_of
from tas.verdict.verdict import PolicyVerdict
from workers.following.node_samples import NodeSamplesReads
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.resources import POLICIES

LIST_SECONDS = 0.5
"""The maximum age of the list of policies that a node shares, when the node asks for it."""


class Confirmation:
    """Finds the labels that may be removed. `take_in_policy` keeps the `claims` of the stored policies up to date."""

    def __init__(self, bus: Bus, client: KubernetesClient, *, default_stale_after: float) -> None:
        self.claims = Claims()
        self._bus = bus
        self._client = client
        self._default_stale_after = default_stale_after
        self._samples = NodeSamplesReads(bus)
        self._lock = asyncio.Lock()
        self._list: list[tuple[PolicyKey, object]] = []
        self._listed_at = self._changed_at = -inf

    def take_in_policy(self, entry: Entry[PolicyKey, PolicyRecord]) -> bool:
        """Applies a changed policy: an earlier list of the API server is outdated.

        Returns whether other policies may own labels now.
        """
        self._changed_at = time.monotonic()
        if not entry.present:
            return self.claims.drop(entry.key)
        record = entry.readable()
        claim = None if record is None else claim_of(record.policy, uid=record.uid, created=record.created)
        return self.claims.set(entry.key, claim)

    async def confirmed(
        self,
        node: str,
        requested: Mapping[str, PolicyKey],
        verdicts: Mapping[PolicyKey, PolicyVerdict],
        labels: Mapping[str, str],
    ) -> frozenset[str]:
        """The labels of `requested` whose removal the stored data confirms. Raises BusError."""
        if not requested:
            return frozenset()
        keys = sorted({*requested.values()}.union(*(self.claims.named(policy_name(label)) for label in requested)))
        samples, policies = await asyncio.gather(
            self._samples.read(node),
            asyncio.gather(*(POLICY_RECORDS.get(self._bus, key) for key in keys)),
        )
        evidence = Evidence(
            policies={
                entry.key: None
                if (record := entry.readable()) is None
                else StoredPolicy(record.uid, record.generation, record.policy, record.created)
                for entry in policies
                if entry.present
            },
            samples=samples.samples or (),  # missing or invalid samples confirm nothing
            labels=labels,
            default_stale_after=self._default_stale_after,
            now=time.time(),
        )
        return confirmed_removals(requested, verdicts, evidence)

    async def orphans_that_may_go(self, orphans: Collection[str]) -> tuple[frozenset[str], float]:
        """The orphans that no policy keeps, and the monotonic time at which the list of policies was requested.

        Raises:
            KubernetesError: nothing is known of the policies.
        """
        if not orphans:
            return frozenset(), inf
        policies, listed_at = await self.listed_policies()
        return frozenset(label for label in orphans if may_remove_orphan(label, policies)), listed_at

    async def listed_policies(self) -> tuple[Sequence[tuple[PolicyKey, object]], float]:
        """A new and complete list of all policies with their `spec`, and the monotonic time of its request.

        Who waited for the list of another node shares it, however long it took: else each node that waits would list
        again, and a slow API server would get a list for each node with an orphan. Raises KubernetesError.
        """
        asked_at = time.monotonic()
        async with self._lock:  # several nodes share a list
            if asked_at - self._listed_at > LIST_SECONDS or not self.is_current(self._listed_at):
                requested_at = time.monotonic()
                listing = await self._client.list(POLICIES)
                self._list = [
                    (PolicyKey(each.metadata.namespace, each.metadata.name), each.spec) for each in listing.items
                ]
                self._listed_at = requested_at
            return self._list, self._listed_at

    def is_current(self, listed_at: float) -> bool:
        """Whether no policy change was received since."""
        return listed_at > self._changed_at
