"""Writes what the bus knows of nodes to annotations, for extenders of other people (`tas.allocation.annotations`).

It is a part of `inventory`, which follows the nodes anyway. A node is patched at most once an interval, and only if a
value differs enough. Nothing is removed: an annotation of which nothing is known any more stays as it is.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, Counter

from bus.connection import Bus
from bus.kinds import NODE_ALLOCATION, NODE_SAMPLES
from bus.record_kind import Entry
from bus.watch import Watch
from tas.allocation.annotations import amounts, to_write
from tas.allocation.node import NodeAllocation
from tas.enforcing.managers import ANNOTATIONS_MANAGER
from tas.samples.sample import NodeSamples
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import ConflictError, ExpiredError, KubernetesError, NotFoundError, ThrottledError
from workers.kubernetes.resources import NODES, GpuNode, GpuPod
from workers.process.logs import ThrottledLog

log = structlog.get_logger("annotations")

INTERVAL_SECONDS = 60.0
"""The shortest time between two patches of a node: 60 patches an hour at most, as the original annotators."""

MAX_CONCURRENT = 8
"""Nodes that are patched at the same time."""

CHECK_SECONDS = 1.0
"""How often a replica that may not write yet looks whether it may."""


@dataclass(frozen=True, slots=True)
class _Node:
    uid: str
    resource_version: str
    annotations: dict[str, str]


class AnnotationWriter:
    """Patches nodes while `is_active()`; the nodes are those of the list of `inventory`."""

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        registry: CollectorRegistry,
        is_active: Callable[[], bool],
        *,
        prefix: str,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        """`prefix` comes before each name; `interval` is in seconds."""
        self._client = client
        self._is_active = is_active
        self._prefix = prefix
        self._interval = interval
        self._nodes: dict[str, _Node] = {}
        self._allocations: dict[str, NodeAllocation] = {}
        self._samples: dict[str, NodeSamples] = {}
        self._watch = Watch(
            bus,
            NODE_ALLOCATION.to(self._apply_allocation),
            NODE_SAMPLES.to(self._apply_samples),
            on_epoch=lambda _: self._forget(),
        )
        self._throttled = ThrottledLog(log)
        self._patches = Counter(
            "tas_annotation_patches",
            "Attempts to patch annotations of a node, by result.",
            ["result"],
            registry=registry,
        )
        for result in ("patched", "conflict", "gone", "failed"):
            self._patches.labels(result)

    async def run(self) -> None:
        """Follows the bus and writes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run())
            tasks.create_task(self._write())

    def begin(self) -> None:
        """The next pass comes when it is due: another replica may just have written."""

    # What `inventory` follows

    def list_nodes(self, listing: Listing[GpuNode]) -> None:
        """Takes in a complete list of nodes."""
        self._nodes = {found.metadata.name: self._read(found) for found in listing.items}

    def change_node(self, change: Change[GpuNode]) -> None:
        """Takes in a change of a node."""
        name = change.object.metadata.name
        if change.type is ChangeType.DELETED:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = self._read(change.object)

    def list_pods(self, listing: Listing[GpuPod]) -> None:
        """The sums of pods come from the bus."""

    def change_pod(self, change: Change[GpuPod]) -> None:
        """The sums of pods come from the bus."""

    def _read(self, found: GpuNode) -> _Node:
        metadata = found.metadata
        annotations = {key.removeprefix(self._prefix): text for key, text in metadata.annotations.items()}
        return _Node(metadata.uid, metadata.resource_version, annotations)

    # What the bus knows

    def _apply_allocation(self, entry: Entry[str, NodeAllocation]) -> None:
        if (record := entry.readable()) is None:
            self._allocations.pop(entry.key, None)
        else:
            self._allocations[entry.key] = record

    def _apply_samples(self, entry: Entry[str, NodeSamples]) -> None:
        if (record := entry.readable()) is None:
            self._samples.pop(entry.key, None)
        else:
            self._samples[entry.key] = record

    def _forget(self) -> None:
        self._allocations.clear()
        self._samples.clear()

    # Writing

    async def _write(self) -> None:
        while True:
            if not (self._is_active() and self._watch.status.caught_up):
                await asyncio.sleep(min(CHECK_SECONDS, self._interval))
                continue
            began = time.monotonic()
            left = iter(sorted(self._nodes))
            async with asyncio.TaskGroup() as tasks:
                for _ in range(MAX_CONCURRENT):
                    tasks.create_task(self._write_nodes(left))
            await asyncio.sleep(max(0.0, began + self._interval - time.monotonic()))

    async def _write_nodes(self, left: Iterator[str]) -> None:
        for name in left:
            await self._write_node(name)

    async def _write_node(self, name: str) -> None:
        node, allocation = self._nodes.get(name), self._allocations.get(name)
        if node is None or allocation is None or allocation.uid != node.uid or not self._is_active():
            return
        wanted = amounts(allocation, self._samples.get(name, ()), time.time())
        texts = to_write(node.annotations, wanted)
        if not texts:
            return
        annotations = {self._prefix + key: text for key, text in texts.items()}
        metadata = {"uid": node.uid, "resourceVersion": node.resource_version, "annotations": annotations}
        read_at = time.monotonic()
        try:
            await self._client.merge_patch(
                NODES, name, {"metadata": metadata}, field_manager=ANNOTATIONS_MANAGER, read_at=read_at
            )
        except (ConflictError, ExpiredError):
            self._patches.labels("conflict").inc()  # the next pass has a later version
        except NotFoundError:
            self._patches.labels("gone").inc()
        except KubernetesError as error:
            self._patches.labels("failed").inc()
            self._throttled.warning("annotations_not_written", node=name, error=str(error))
            if isinstance(error, ThrottledError):
                await asyncio.sleep(error.retry_after)
        else:
            self._patches.labels("patched").inc()
