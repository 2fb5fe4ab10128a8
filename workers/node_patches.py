"""Patches of nodes: what stands on one, and how a change of it is sent.

A patch stands on the node's uid and resource version, so it cannot create a node, hit its successor or be stale, and
it is not sent once its reads are too old. A label that the API server refuses is left out, so that the others stand.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tas.policy import PolicyKey
from tas.verdict import VIOLATING
from tas.waking import ANNOTATION
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConflictError, InvalidError, KubernetesError, NotFoundError, RejectedError
from workers.kubernetes.resources import NODES, POLICIES, Metadata

FIELD_MANAGER = "tas-on-nats"
"""Whose our fields are, in every patch of this product."""

LIST_SECONDS = 0.5
"""How old a list of policies may be that several nodes' patches share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLabels:
    """What of a node as the API server has it matters to labels.

    Attributes:
        uid: The node's.
        labels: All of them.
        managers: Of each label without a prefix whose value is `violating`: the field managers that set it.
        recovered: The annotation that wakes pods, if it stands.
        resource_version: The version that all this is of. Two that differ in it alone are equal.
    """

    uid: str
    labels: Mapping[str, str]
    managers: Mapping[str, tuple[str, ...]]
    recovered: str | None
    resource_version: str = field(compare=False)

    @classmethod
    def of(cls, metadata: Metadata) -> "NodeLabels":
        """What is known of a node by its metadata."""
        bare = {key for key, value in metadata.labels.items() if value == VIOLATING and "/" not in key}
        return cls(
            uid=metadata.uid,
            labels=metadata.labels,
            managers=_label_managers(metadata, bare),
            recovered=metadata.annotations.get(ANNOTATION),
            resource_version=metadata.resource_version,
        )


@dataclass(frozen=True, slots=True)
class NodePatch:
    """What is to change: labels to their values, None for a removal, and annotations."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def body(self, metadata: Metadata) -> dict[str, Any]:
        """The merge patch that stands on the node as `metadata` has it."""
        changes: dict[str, Any] = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        if self.labels:
            changes["labels"] = dict(self.labels)
        if self.annotations:
            changes["annotations"] = dict(self.annotations)
        return {"metadata": changes}

    def parts(self) -> tuple["NodePatch", ...]:
        """The same in two patches, to find what of it is refused; one if it cannot be parted."""
        if self.annotations and self.labels:
            return NodePatch(labels=self.labels), NodePatch(annotations=self.annotations)
        if len(self.labels) < 2:
            return (self,)
        labels = sorted(self.labels.items())
        middle = len(labels) // 2
        return NodePatch(labels=dict(labels[:middle])), NodePatch(labels=dict(labels[middle:]))


Refused = dict[str, InvalidError | RejectedError]
"""Labels that the API server does not take, with what it said."""


async def send_patch(
    client: KubernetesClient, metadata: Metadata, patch: NodePatch, *, read_at: float
) -> tuple[Metadata, Refused]:
    """The node after the patch, and what of it was refused: everything else stands.

    Of `metadata` name, uid and version matter; it is given back itself if all was refused.
    `read_at` is the monotonic time of the oldest read behind the patch.

    Raises:
        KubernetesError: where the node is another one by now, has changed, or cannot be asked.
    """
    try:
        answer = await client.merge_patch(
            NODES, metadata.name, patch.body(metadata), field_manager=FIELD_MANAGER, read_at=read_at
        )
    except (InvalidError, RejectedError) as error:
        if _is_successor(error):
            raise
        parts = patch.parts()
        if len(parts) == 1:
            if not patch.labels:
                raise
            return metadata, dict.fromkeys(patch.labels, error)
    else:
        return answer.metadata, {}
    refused: Refused = {}
    for part in parts:
        metadata, more = await send_patch(client, metadata, part, read_at=read_at)
        refused |= more
    return metadata, refused


def is_outdated(error: KubernetesError, name: str) -> bool:
    """Whether a patch was refused because the node is not any more what it stood on: changed, another one, or gone."""
    if isinstance(error, NotFoundError):
        return error.names(group="", plural="nodes", name=name)
    return isinstance(error, ConflictError) or _is_successor(error)


class PolicyLists:
    """The API server's complete list of policies, shared by whoever needs it at about the same time."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._asked_at = float("-inf")
        self._changed_at = float("-inf")
        self._specs: list[tuple[PolicyKey, object]] = []

    def forget(self) -> None:
        """A policy has changed: what was asked before says nothing any more."""
        self._changed_at = time.monotonic()

    def is_current(self, asked_at: float) -> bool:
        """Whether no policy has changed since, as far as is known here."""
        return asked_at > self._changed_at

    async def get(self) -> tuple[float, list[tuple[PolicyKey, object]]]:
        """The monotonic time before it was asked for, and each policy's key and `spec`. Raises KubernetesError."""
        async with self._lock:
            asked_at = time.monotonic()
            if asked_at - self._asked_at > LIST_SECONDS or not self.is_current(self._asked_at):
                listing = await self._client.list(POLICIES)
                self._specs = [
                    (PolicyKey(each.metadata.namespace, each.metadata.name), each.spec) for each in listing.items
                ]
                self._asked_at = asked_at
            return self._asked_at, self._specs


def _label_managers(metadata: Metadata, labels: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Who set each of `labels`, by `managedFields`."""
    setters = [(fields.manager, _labels_of(fields.fields_v1)) for fields in metadata.managed_fields] if labels else []
    return {label: tuple(manager for manager, owned in setters if f"f:{label}" in owned) for label in labels}


def _labels_of(fields: Mapping[str, Any]) -> Collection[str]:
    of_metadata = fields.get("f:metadata")
    of_labels = of_metadata.get("f:labels") if isinstance(of_metadata, dict) else None
    return of_labels if isinstance(of_labels, dict) else ()


def _is_successor(error: KubernetesError) -> bool:
    """Whether it was refused because the node is another one of this name by now."""
    causes: Iterable[Any] = error.status.details.causes if error.status.details is not None else ()
    return any(cause.field == "metadata.uid" for cause in causes)
