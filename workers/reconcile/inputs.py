"""What `labels` and `marks` follow on the bus: verdicts, policies, and whether all that they act on is complete."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from bus.buckets import NODES, POLICIES, SYNCED, VERDICTS, Bucket
from bus.connection import Bus, Epoch
from bus.kinds import NODE_VERDICTS, POLICY_RECORDS
from bus.record_kind import Entry
from bus.records.policies import PolicyRecord
from bus.records.synced import Synced
from bus.watch import Watch
from tas.policy.policy import PolicyKey
from tas.verdict.verdict import NodeVerdict
from workers.following.synced import SyncedWatch
from workers.process.tasks import together

T = TypeVar("T")


class Inputs:
    """Follows VERDICTS, POLICIES, and `_synced` of NODES. Part of a worker that writes what verdicts desire.

    `on_epoch` is called before the first entry of an epoch of VERDICTS or POLICIES, `on_verdict` and `on_policy` get
    each entry, and `on_policies` is called when all policies are known. After a burst, an epoch and a complete list,
    `on_change` is called: `unready` may have begun or ended.

    Attributes:
        nodes: The watch of NODES.
        verdicts: The watch of VERDICTS.
        policies: The watch of POLICIES.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        on_epoch: Callable[[Bucket, Epoch], None],
        on_verdict: Callable[[Entry[str, NodeVerdict]], None],
        on_policy: Callable[[Entry[PolicyKey, PolicyRecord]], None],
        on_policies: Callable[[Synced], None],
        on_change: Callable[[], None],
    ) -> None:
        def then_change(handle: Callable[[T], None]) -> Callable[[T], None]:
            def handle_and_change(what: T) -> None:
                handle(what)
                on_change()

            return handle_and_change

        self.nodes = SyncedWatch(bus, bucket=NODES, on_epoch=lambda _: on_change(), on_complete=lambda _: on_change())
        self.verdicts = Watch(
            bus, NODE_VERDICTS.to(on_verdict), on_epoch=then_change(partial(on_epoch, VERDICTS)), on_batch=on_change
        )
        self.policies = SyncedWatch(
            bus,
            POLICY_RECORDS.to(on_policy),
            on_epoch=then_change(partial(on_epoch, POLICIES)),
            on_complete=then_change(on_policies),
        )

    def unready(self) -> Iterator[str]:
        """Why nothing may be written yet."""
        policies, nodes = self.policies.synced, self.nodes.synced
        if (reason := self.policies.unready()) is not None:
            yield reason
        if policies is not None and not policies.cluster:
            yield f"{POLICIES.name}: its policies are not those of a cluster"
        if nodes is None or not nodes.cluster:
            yield f"{NODES.name}: no complete list of a cluster yet (key {SYNCED})"
        if not self.verdicts.status.caught_up:
            yield f"{VERDICTS.name}: not caught up with the bus"

    async def run(self) -> None:
        """Follows until cancelled."""
        await together(*(part.run() for part in (self.nodes, self.verdicts, self.policies)))
