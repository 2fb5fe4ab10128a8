"""Part of `inventory`: has the scheduler try the pods again that wait for cards (`tas.gpu.card_waking`)."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.records.devices import NodeHold, NodeInventory
from tas.gpu.card_waking import CardWakes, waits_for_cards
from workers.kubernetes.client import Change, ChangeType, KubernetesClient
from workers.kubernetes.followers import Gathered
from workers.kubernetes.node_waker import NodeWaker
from workers.kubernetes.resources import GpuPod


class CardWaking:
    """Gets the pods and the records of nodes that `Inventory` follows.

    Attributes:
        pods: Takes the pods in.
    """

    def __init__(self, client: KubernetesClient, registry: CollectorRegistry, *, is_active: Callable[[], bool]) -> None:
        """Only the replica that `is_active` annotates nodes."""
        self._wakes = CardWakes()
        self.pods: Gathered[GpuPod, None] = Gathered(
            lambda pod: (pod.metadata.uid, None) if _waits(pod) else None,
            on_list=self._list_pods,
            on_change=self._change_pod,
        )
        self._waker = NodeWaker(
            client,
            self._wakes,
            logger="inventory",
            sent=Counter(
                "tas_card_wakes", "Annotations of nodes that wake pods which wait for cards.", registry=registry
            ),
            failed=Counter(
                "tas_card_wakes_failed", "Attempts to annotate a node with cards that failed.", registry=registry
            ),
            is_active=is_active,
        )
        waiting = Gauge(
            "tas_pods_waiting_for_cards", "Pods that wait for a node with room on its cards.", registry=registry
        )
        waiting.set_function(lambda: self._wakes.waiting)

    async def run(self) -> None:
        """Annotates nodes until cancelled."""
        await self._waker.run()

    def _list_pods(self, waiting: dict[str, None]) -> None:
        self._wakes.set_pods(waiting, at=time.monotonic())
        self._waker.note_change()

    def _change_pod(self, change: Change[GpuPod]) -> None:
        uid = change.object.metadata.uid
        if change.type is ChangeType.DELETED or not _waits(change.object):
            self._wakes.drop_pod(uid)
            return
        self._wakes.set_pod(uid, at=time.monotonic())
        self._waker.note_change()

    def set_node(self, name: str, inventory: NodeInventory | None, hold: NodeHold | None) -> None:
        """Applies what the bus has of a node; without both nobody can get its cards."""
        if inventory is None or hold is None:
            self._wakes.drop_node(name)
            return
        holders, at = hold.pods.keys(), time.monotonic()
        self._wakes.set_node(name, inventory.uid, inventory.inventory, inventory.facts, holders, at=at)
        self._waker.note_change()

    def drop_nodes(self) -> None:
        """Forgets the nodes, because a new epoch of the bus begins."""
        self._wakes.drop_nodes()


def _waits(pod: GpuPod) -> bool:
    refused = pod.refusal()
    if refused is None or pod.spec.node_name or pod.metadata.deletion_timestamp is not None:
        return False
    return waits_for_cards(reason=refused.reason, message=refused.message)
