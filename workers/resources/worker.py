"""Resources: makes nodes offer `telemetry/scheduling`, and again when something resets it.

The worker watches complete nodes, so it runs only on request. When it is switched off, nodes keep the resource until
somebody removes it.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter

from bus.connection import Bus
from bus.errors import BusError
from bus.events import Expected, last_events, last_of, publish_events
from bus.subjects import event_subject
from tas.enforcing.managers import FIELD_MANAGER
from tas.enforcing.node_resource import RESOURCE, is_offered
from tas.events.data import ResourcePatched
from tas.events.event import SOURCE, Cause, Event, event_of
from tas.values.backoff import Backoff
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import ConflictError, ExpiredError, KubernetesError, NotFoundError
from workers.kubernetes.reflectors import Reflectors
from workers.kubernetes.resources import WHOLE_NODES, WholeNode
from workers.process.logs import GroupedLog, ThrottledLog
from workers.process.tasks import together
from workers.reconcile.failed_requests import requeued
from workers.reconcile.lease_first import LeaseFirst
from workers.reconcile.work_queue import WorkQueue

BATCH = 256
RETRY = Backoff(first=0.1, longest=5.0)
"""The waits after attempts that failed."""


class ResourceEvents:
    """The nodes that offer the resource and are not announced yet."""

    def __init__(self, bus: Bus, *, source: str) -> None:
        self._bus = bus
        self._source = source
        self._noted: dict[str, ResourcePatched] = {}
        self._due: dict[str, bool] = {}
        self._wake = asyncio.Event()
        self._throttled = ThrottledLog(log)

    def note(self, node: str, uid: str, count: int, *, is_listed: bool = False) -> None:
        """Notes that the API server shows the resource on a node; `is_listed`: in a list, so perhaps for long."""
        data = ResourcePatched(node=node, node_uid=uid, resource=RESOURCE, count=count)
        if self._noted.get(node) != data:
            self._noted[node] = data
            self._due[node] = is_listed
            self._wake.set()

    def forget(self, node: str) -> None:
        """Forgets a deleted node."""
        self._noted.pop(node, None)
        self._due.pop(node, None)

    async def run(self) -> None:
        """Announces until cancelled."""
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._announce()
                failures = 0
            except BusError as error:
                failures += 1
                self._throttled.warning("resource_not_announced", error=str(error))
                await asyncio.sleep(RETRY.after(failures))
                self._wake.set()

    async def _announce(self) -> None:
        """Announces what is due, if it differs from what was announced last. Raises BusError."""
        found = {message.subject: message.event for message in await last_events(self._bus, "resource")}
        while self._due:
            due = {node: self._noted[node] for node in list(self._due)[:BATCH]}
            # The copy of the last events may be late, and knows no sequence of an event that the stream has discarded.
            stored = {each.subject: each for each in await last_of(self._bus, list(map(event_subject, due.values())))}
            last: dict[str, Event | None] = {**found, **{subject: each.event for subject, each in stored.items()}}
            expected: list[Expected] = []
            for node, data in due.items():
                subject = event_subject(data)
                if (known := last.get(subject)) is None or known.data != data:
                    # The same id for every replica: a node of this uid is announced once.
                    cause, is_listed = Cause(data.node_uid, data.count), self._due.get(node, False)
                    event = event_of(data, cause, time=time.time(), resync=is_listed, source=self._source)
                    expected.append(Expected(event, stored[subject].sequence if subject in stored else 0))
            for outcome in await publish_events(self._bus, expected) if expected else ():
                if isinstance(outcome, BusError):
                    raise outcome  # also a conflict: then another replica was first, and the next attempt reads it
            for node, data in due.items():
                if self._noted.get(node, data) is data:
                    self._due.pop(node, None)


log = structlog.get_logger("resources")

MAX_CONCURRENT = 8
"""Nodes that are patched at the same time."""

PATCH_SECONDS = 1.0
"""The shortest time between two patches of a node, in case somebody else always resets the resource."""


class Resources:
    """The worker. Its only state is the queue of nodes to check."""

    name = "resources"

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        reflectors: Reflectors,
        *,
        registry: CollectorRegistry,
        count: int,
        event_source: str = SOURCE,
    ) -> None:
        self._bus = bus
        self._client = client
        self._count = count
        self._patched: dict[str, float] = {}
        self._failed = GroupedLog(log, kind="node")
        self._queue = WorkQueue(self._handle, max_concurrent=MAX_CONCURRENT)
        self._followed = reflectors.whole_nodes.consumer(on_list=self._listed, on_change=self._change)
        self._lease = LeaseFirst(bus, "resources", self._queue, on_held=self._followed.relist)
        self._events = ResourceEvents(bus, source=event_source)
        self._patches = Counter(
            "tas_node_resource_patches",
            "Attempts to patch a node's status, by result.",
            ["result"],
            registry=registry,
        )
        for result in ("patched", "conflict", "gone", "failed"):
            self._patches.labels(result)

    def unready(self) -> str | None:
        """Why the nodes are not known yet."""
        return None if self._followed.listed else f"nodes: {self._followed.problem}"

    def concerns(self) -> Iterator[str]:
        """An API server that is silent, and nodes whose status cannot be written."""
        yield from self._followed.concerns()
        yield from self._queue.concerns("node")

    async def run(self) -> None:
        """Follows until cancelled."""
        await together(self._followed.run(), self._queue.run(), self._lease.run(), self._events.run())

    async def _handle(self, name: str) -> float | None:
        try:
            return await self._offer(name)
        except KubernetesError as error:
            if isinstance(error, (ConflictError, ExpiredError)):
                self._patches.labels("conflict").inc()
            else:
                self._patches.labels("failed").inc()
                cause = str(error).replace(name, "NODE")
                self._failed.warning("node_resource_failed", cause, name, error=str(error))
            raise requeued(error, self._bus) from error

    async def _offer(self, name: str) -> float | None:
        wait = self._patched.get(name, float("-inf")) + PATCH_SECONDS - time.monotonic()
        if wait > 0:
            return wait
        read_at = time.monotonic()
        try:
            node = await self._client.get(WHOLE_NODES, name)
            if self._is_correct(node):
                return None
            await self._client.merge_patch(
                WHOLE_NODES, name, self._patch(node), subresource="status", field_manager=FIELD_MANAGER, read_at=read_at
            )
        except NotFoundError as error:
            if not error.confirms_missing(group="", plural="nodes", name=name):
                raise
            self._patches.labels("gone").inc()
            return None
        self._patched[name] = time.monotonic()
        self._patches.labels("patched").inc()
        self._events.note(name, node.metadata.uid, self._count)
        log.info("node_resource_offered", node=name, resource=RESOURCE, count=self._count)
        return None

    def _patch(self, node: WholeNode) -> Mapping[str, Any]:
        offer = {RESOURCE: str(self._count)}
        return {
            "metadata": {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version},
            "status": {"capacity": offer, "allocatable": offer},
        }

    def _is_correct(self, node: WholeNode) -> bool:
        return is_offered(self._count, node.status.capacity, node.status.allocatable)

    def _listed(self, listing: Listing[WholeNode]) -> None:
        names = {node.metadata.name for node in listing.items}
        self._patched = {name: when for name, when in self._patched.items() if name in names}
        for node in listing.items:
            self._check(node, is_listed=True)

    def _change(self, change: Change[WholeNode]) -> None:
        if change.type is ChangeType.DELETED:
            self._patched.pop(change.object.metadata.name, None)
            self._queue.forget(change.object.metadata.name)
            self._events.forget(change.object.metadata.name)
        else:
            self._check(change.object)

    def _check(self, node: WholeNode, *, is_listed: bool = False) -> None:
        if self._is_correct(node):
            self._events.note(node.metadata.name, node.metadata.uid, self._count, is_listed=is_listed)
        else:
            self._lease.add(node.metadata.name)
