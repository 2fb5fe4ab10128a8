"""Writes what the bus knows of nodes to annotations, for extenders of other people (`tas.allocation.node_annotations`).

It is a part of `inventory`, which follows the nodes anyway. A node is patched at most once an interval, and only if a
value differs enough. Nothing is removed: an annotation of which nothing is known any more stays as it is.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

import structlog
from prometheus_client import CollectorRegistry, Counter

from bus.connection import Bus
from bus.kinds import NODE_SAMPLES, NODE_TABLES
from bus.record_kind import Entry
from bus.records.nodes import StoredSamples
from bus.watch import Watch
from tas.allocation.node import NodeAllocation
from tas.allocation.node_annotations import MEASURED, amounts, needed, needed_of_table, to_write
from tas.enforcing.managers import ANNOTATIONS_MANAGER
from tas.samples.sample import NodeSamples, since
from tas.samples.table import Table, TableKey, combined_samples
from workers.kubernetes.client import Change, ChangeType, KubernetesClient
from workers.kubernetes.errors import ConflictError, ExpiredError, KubernetesError, NotFoundError, ThrottledError
from workers.kubernetes.followers import Gathered
from workers.kubernetes.resources import NODES, GpuNode
from workers.process.logs import ThrottledLog
from workers.process.tasks import together

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
    created: float
    annotations: dict[str, str]


class AnnotationWriter:
    """Patches nodes while `is_active()`.

    Attributes:
        nodes: Takes the nodes of `inventory` in.
    """

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        registry: CollectorRegistry,
        is_active: Callable[[], bool],
        allocation: Callable[[str], NodeAllocation | None],
        *,
        prefix: str,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        """`allocation` is that of a node, if it is known. `prefix` comes before each name; `interval` is in seconds."""
        self._bus = bus
        self._allocation = allocation
        self.nodes: Gathered[GpuNode, _Node] = Gathered(
            lambda found: (found.metadata.name, self._read(found)),
            on_list=self._list_nodes,
            on_change=self._change_node,
        )
        self._client = client
        self._is_active = is_active
        self._prefix = prefix
        self._interval = interval
        self._nodes: dict[str, _Node] = {}
        self._samples: dict[str, NodeSamples] = {}
        self._tables: dict[TableKey, Table] = {}
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
        """Follows the samples and writes, while it is active, until cancelled. On standby it follows nothing."""
        while True:
            if self._is_active():
                watch = Watch(
                    self._bus,
                    NODE_SAMPLES.to(self._apply),
                    NODE_TABLES.to(self._apply_table),
                    on_epoch=lambda _: self._forget_samples(),
                )
                async with asyncio.TaskGroup() as tasks:
                    following = tasks.create_task(watch.run())
                    await self._write(watch)
                    following.cancel()
                self._forget_samples()
            await asyncio.sleep(min(CHECK_SECONDS, self._interval))

    def begin(self) -> None:
        """The next pass comes when it is due: another replica may just have written."""

    # What `inventory` follows

    def _list_nodes(self, nodes: dict[str, _Node]) -> None:
        self._nodes = nodes

    def _change_node(self, change: Change[GpuNode]) -> None:
        name = change.object.metadata.name
        if change.type is ChangeType.DELETED:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = self._read(change.object)

    def _read(self, found: GpuNode) -> _Node:
        metadata = found.metadata
        annotations = {key.removeprefix(self._prefix): text for key, text in metadata.annotations.items()}
        created = -inf if metadata.creation_timestamp is None else metadata.creation_timestamp.timestamp()
        return _Node(metadata.uid, metadata.resource_version, created, annotations)

    # What the bus knows

    def _apply(self, entry: Entry[str, StoredSamples]) -> None:
        if kept := needed((entry.readable() or StoredSamples()).samples):
            self._samples[entry.key] = kept
        else:
            self._samples.pop(entry.key, None)

    def _apply_table(self, entry: Entry[TableKey, Table]) -> None:
        # Most tables have nothing that is written, and need not be decoded.
        table = entry.readable() if entry.mentioned(MEASURED) else None
        if table is not None and (kept := needed_of_table(table)).nodes:
            self._tables[entry.key] = kept
        else:
            self._tables.pop(entry.key, None)

    def _forget_samples(self) -> None:
        self._samples.clear()
        self._tables.clear()

    def _samples_of(self, name: str, created: float) -> NodeSamples:
        rows = [table.scrapes(name) for key, table in self._tables.items() if key.part.has(name)]
        return since(combined_samples(self._samples.get(name, ()), rows), created)

    # Writing

    async def _write(self, watch: Watch) -> None:
        while self._is_active():
            if not watch.status.caught_up:
                await asyncio.sleep(min(CHECK_SECONDS, self._interval))
                continue
            began = time.monotonic()
            left = iter(sorted(self._nodes))
            await together(*(self._write_nodes(left) for _ in range(MAX_CONCURRENT)))
            await asyncio.sleep(max(0.0, began + self._interval - time.monotonic()))

    async def _write_nodes(self, left: Iterator[str]) -> None:
        for name in left:
            await self._write_node(name)

    async def _write_node(self, name: str) -> None:
        node, allocation = self._nodes.get(name), self._allocation(name)
        if node is None or allocation is None or allocation.uid != node.uid or not self._is_active():
            return
        wanted = amounts(allocation, self._samples_of(name, node.created), time.time())
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
