"""The pods that nodes have been given, from PODS into the view, for policies with a `podCost`.

PODS is followed only once a policy has a `podCost`: without one the pods cost an extender nothing. An extender is ready
without PODS: a pod that is not known costs nothing, as without `podCost`.
"""

import asyncio
import time

from bus.connection import Bus
from bus.kinds import POD_RECORDS
from bus.record_kind import Entry
from bus.records.pods import PodRecord
from bus.watch import Watch
from tas.enforcing.pod import PodKey
from tas.policy.policy import PolicyKey
from tas.view.view import View


def place(view: View, key: PodKey, pod: PodRecord | None, now: float) -> None:
    """Notes in the view where a pod is; None: the pod is deleted or its record cannot be read."""
    if pod is None or pod.node is None or pod.bound_since is None:
        view.drop_pod(key)
    else:
        view.place_pod(key, PolicyKey(key.namespace, pod.policy), pod.node, pod.bound_since.timestamp(), now)


class PlacedPods:
    """Keeps the placements of a view up to date. After a wipe of the bus they stay until they count no more."""

    def __init__(self, bus: Bus, view: View) -> None:
        self._view = view
        self._wanted = asyncio.Event()
        self._watch = Watch(bus, POD_RECORDS.to(self._apply), on_epoch=lambda _: None)

    def start_if_wanted(self) -> None:
        """Begins to follow once the view has a policy with a `podCost`; called after each change of policies."""
        if self._view.counts_pods:
            self._wanted.set()

    async def run(self) -> None:
        """Follows until cancelled, once it is wanted."""
        await self._wanted.wait()
        await self._watch.run()

    def _apply(self, entry: Entry[PodKey, PodRecord]) -> None:
        place(self._view, entry.key, entry.readable(), time.time())
