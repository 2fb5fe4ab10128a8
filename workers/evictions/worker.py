"""Evictions: labels the pods that are to leave a card or tile, so that a descheduler evicts them.

The bus says which pods have which cards, and what policies say about these (`tas.gpu.eviction`). Of the API server
the worker only follows the pods that carry the label. Before patches it reads the node again, once for all pods of the
node: a label changes only if the labels of the node confirm the change, and the bus was not wiped. Then it reads each
pod. A patch has the pod's uid and resource version, so any number of replicas may run.
"""

import time
from collections.abc import Collection, Iterator, Mapping

from prometheus_client import CollectorRegistry

from bus.buckets import HOLDS
from bus.connection import Bus
from bus.errors import BusError
from tas.enforcing.managers import FIELD_MANAGER
from tas.enforcing.memory import PatchLimit
from tas.enforcing.pod import PodKey
from tas.gpu.card_view import CardView, NodeCards
from tas.gpu.eviction import EvictionLabel, Reasons, confirmed_changes, label_changes
from tas.gpu.names import EVICTION_LABEL, EVICTION_VALUE
from workers.evictions.reports import EvictionReports
from workers.following.followed_cards import FollowedCards
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import (
    ExpiredError,
    InvalidError,
    KubernetesError,
    NotFoundError,
    RejectedError,
    is_outdated,
)
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import LABELLED_NODES, LABELLED_PODS, LabelledNode, LabelledPod
from workers.process.tasks import together
from workers.reconcile.failed_requests import requeued
from workers.reconcile.lease_first import LeaseFirst
from workers.reconcile.work_queue import WorkQueue

MAX_CONCURRENT = 8
"""Nodes whose pods are patched at the same time."""

RESYNC_SECONDS = 600.0
"""The time after which a refused or unconfirmed change is tried again."""

PATCHES, PATCHES_SECONDS = 5, 60.0
"""After so many patches in so many seconds a pod must wait: somebody else probably reverts the patches."""


class Evictions:
    """The worker. Its state can be rebuilt from the bus and the API server."""

    name = "evictions"

    def __init__(self, bus: Bus, client: KubernetesClient, *, registry: CollectorRegistry) -> None:
        self._bus = bus
        self._client = client
        self._view = CardView()
        self._labels: dict[str, EvictionLabel] = {}  # of the pods that carry the label, by uid
        self._failed: dict[str, set[str]] = {}  # by node: the pods whose last attempt failed, by uid. They come last
        self._declined: dict[str, float] = {}  # until when a pod is not tried again, by uid
        self._limit = PatchLimit(PATCHES, seconds=PATCHES_SECONDS)
        self._queue = WorkQueue(self._handle, max_concurrent=MAX_CONCURRENT)
        self._reports = EvictionReports(registry, self._queue, labels=lambda: len(self._labels))
        self._cards = FollowedCards(bus, self._view, on_node=self._add, on_complete=self._add_all)
        labelled = Reflector(client, LABELLED_PODS, label_selector=EVICTION_LABEL)
        self._pods = labelled.consumer(on_list=self._take_in_list, on_change=self._take_in_change)
        self._lease = LeaseFirst(bus, self.name, self._queue, on_held=self._add_all)

    def unready(self) -> str | None:
        """Why nothing is written yet."""
        reasons = (None if self._pods.listed else f"pods: {self._pods.problem}", self._cards.unready())
        return "; ".join(reason for reason in reasons if reason is not None) or None

    def concerns(self) -> Iterator[str]:
        """An API server that is silent."""
        yield from self._pods.concerns()

    async def run(self) -> None:
        """Follows until cancelled."""
        await together(*(part.run() for part in (self._pods, self._cards, self._lease, self._queue)))

    async def _handle(self, name: str) -> float | None:
        cards = self._view.nodes.get(name)
        if cards is None:
            return None
        delay = self._delay(cards)
        if delay is None or delay > 0:
            return delay
        read_at = time.monotonic()
        try:
            if not await self._is_current():
                return None
            node = await self._client.get(LABELLED_NODES, name)
        except (BusError, KubernetesError) as error:
            if isinstance(error, NotFoundError) and is_outdated(error, name):
                self._reports.attempted("gone")
                return None
            self._reports.node_failed(name, error)
            raise requeued(error, self._bus) from error
        return await self._reconcile(name, cards, node, read_at=read_at)

    async def _is_current(self) -> bool:
        """Whether the labels are known, and all holds that the bus has now: it may have been wiped. Raises BusError.

        If not, all nodes are added as soon as this is known.
        """
        synced = self._cards.synced
        if synced is None or not self._pods.listed:
            return False
        return synced.epoch == (await self._bus.epoch(HOLDS)).created

    def _delay(self, cards: NodeCards, *, unconfirmed: Collection[str] = ()) -> float | None:
        """The seconds until the next change of a pod of the node; None: nothing is to change."""
        changes = label_changes(cards.hold, cards.facts, self._labels)
        now = time.monotonic()
        delays = (
            max(self._delay_of(uid, cards.hold.pods[uid].pod, now), RESYNC_SECONDS if uid in unconfirmed else 0.0)
            for uid in changes
        )
        return min(delays, default=None)

    def _delay_of(self, uid: str, pod: PodKey, now: float) -> float:
        if (declined := self._declined.get(uid, now) - now) > 0:
            return declined
        if (limited := self._limit.wait(uid, at=now)) > 0:
            self._reports.too_often(pod, patches=PATCHES, seconds=PATCHES_SECONDS)
        return limited

    async def _reconcile(self, name: str, cards: NodeCards, node: LabelledNode, *, read_at: float) -> float | None:
        """Changes the labels of the pods of a node; returns the seconds until it must be reconciled again, or None."""
        changes = label_changes(cards.hold, cards.facts, self._labels)
        confirmed: Mapping[str, Reasons] = {}
        if node.metadata.uid == cards.uid:
            confirmed = confirmed_changes(cards.hold, node.metadata.labels, self._labels)
        if unconfirmed := changes.keys() - confirmed.keys():
            self._reports.unconfirmed(name, [cards.hold.pods[uid].pod for uid in unconfirmed])
        await self._change_all(
            name, cards, {uid: confirmed[uid] for uid in changes if uid in confirmed}, read_at=read_at
        )
        return self._delay(cards, unconfirmed=unconfirmed)

    async def _change_all(self, name: str, cards: NodeCards, changes: Mapping[str, Reasons], *, read_at: float) -> None:
        """Changes the labels of pods of a node. Raises RequeueError at the first failure."""
        failed = self._failed.pop(name, set()) & changes.keys()
        # If a webhook of one namespace fails, the pods of others have their turn before it is asked again.
        for uid in sorted(changes, key=lambda uid: (uid in failed, uid)):
            pod = cards.hold.pods[uid].pod
            if self._delay_of(uid, pod, time.monotonic()) > 0:
                continue
            try:
                await self._change(pod, uid, changes[uid], node=name, read_at=read_at)
            except KubernetesError as error:
                self._failed[name] = failed | {uid}
                if isinstance(error, ExpiredError) or is_outdated(error, pod.name, plural=LABELLED_PODS.plural):
                    self._reports.attempted("conflict")
                else:
                    self._reports.failed(pod, name, error)
                raise requeued(error, self._bus) from error

    async def _change(self, pod: PodKey, uid: str, reasons: Reasons, *, node: str, read_at: float) -> None:
        """Sets the label of a pod, or removes it if there are no reasons. Raises KubernetesError."""
        try:
            found = await self._client.get(LABELLED_PODS, pod.name, namespace=pod.namespace)
        except NotFoundError as error:
            if not is_outdated(error, pod.name, plural=LABELLED_PODS.plural):
                raise
            self._gone(uid)
            return
        if found.metadata.uid != uid or found.metadata.deletion_timestamp is not None:
            self._gone(uid)
            return
        self._take_in(found)
        if not _differs(found.eviction, reasons):
            return
        patch = {
            "metadata": {
                "uid": uid,
                "resourceVersion": found.metadata.resource_version,
                "labels": {EVICTION_LABEL: EVICTION_VALUE if reasons else None},
            }
        }
        try:
            patched = await self._client.merge_patch(
                LABELLED_PODS,
                pod.name,
                patch,
                namespace=pod.namespace,
                field_manager=FIELD_MANAGER,
                read_at=read_at,
            )
        except (InvalidError, RejectedError) as error:
            self._refused(uid, pod, node, str(error))
            return
        self._take_in(patched)
        if (patched.eviction is None) is bool(reasons):
            self._refused(uid, pod, node, "accepted, but the label is as before")
            return
        self._limit.patched(uid, at=time.monotonic())
        self._reports.patched(pod, node, reasons, age=round(time.monotonic() - read_at, 4))

    def _gone(self, uid: str) -> None:
        """Notes that a pod does not exist any more, or is being deleted."""
        self._decline(uid)
        self._reports.attempted("gone")

    def _refused(self, uid: str, pod: PodKey, node: str, reason: str) -> None:
        self._decline(uid)
        self._reports.refused(pod, node, reason)

    def _decline(self, uid: str) -> None:
        """Leaves a pod alone for a while, and forgets the pods that may be tried again."""
        now = time.monotonic()
        self._declined = {other: until for other, until in self._declined.items() if until > now}
        self._declined[uid] = now + RESYNC_SECONDS

    # What the worker follows

    def _add(self, name: str) -> None:
        """Adds a node if a label of its pods differs from what the bus says."""
        cards = self._view.nodes.get(name)
        if cards is None:
            self._queue.forget(name)
            self._failed.pop(name, None)
        elif label_changes(cards.hold, cards.facts, self._labels):
            self._lease.add(name)

    def _add_all(self) -> None:
        for name in tuple(self._view.nodes):
            self._add(name)

    def _take_in_list(self, listing: Listing[LabelledPod]) -> None:
        self._labels.clear()
        for each in listing.items:
            self._take_in(each)
        self._add_all()

    def _take_in_change(self, change: Change[LabelledPod]) -> None:
        uid = change.object.metadata.uid
        before = self._labels.get(uid)
        if change.type is ChangeType.DELETED:
            self._labels.pop(uid, None)
        else:
            self._take_in(change.object)
        if self._labels.get(uid) != before:
            for name in [name for name, cards in self._view.nodes.items() if uid in cards.hold.pods]:
                self._add(name)

    def _take_in(self, pod: LabelledPod) -> None:
        label = pod.eviction
        if label is None:
            self._labels.pop(pod.metadata.uid, None)
            return
        self._labels[pod.metadata.uid] = label
        if label.is_foreign:
            self._reports.foreign(PodKey(pod.metadata.namespace, pod.metadata.name), label.value)


def _differs(label: EvictionLabel | None, reasons: Reasons) -> bool:
    """Whether the label of a pod is to change, as the API server has it now."""
    return label is None if reasons else label is not None and label.is_ours
