"""Conditional patches of nodes.

A patch has the node's uid and resource version, so it cannot create a node, change a later node of the same name or
overwrite a change, and it is not sent if its reads are too old. If the API server refuses a label, other labels are
set without it.
"""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tas.enforcing.managers import FIELD_MANAGER
from tas.enforcing.refusals import reason_of
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import InvalidError, KubernetesError, RejectedError, is_successor
from workers.kubernetes.resources import LABELLED_NODES, NodeMetadata, labels_of

PATCHES, PATCHES_SECONDS = 50, 5.0
"""After so many patches in so many seconds a node must wait: somebody else probably reverts the patches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLabels:
    """The parts of a node of the API server that `labels` needs.

    Attributes:
        uid: The node's.
        labels: All of them.
        managers: Of each label without a prefix whose value is `violating`: the field managers that set it.
        resource_version: The version that all this is of. Two that differ in it alone are equal.
    """

    uid: str
    labels: Mapping[str, str]
    managers: Mapping[str, tuple[str, ...]]
    resource_version: str = field(compare=False)

    @classmethod
    def of(cls, metadata: NodeMetadata) -> "NodeLabels":
        """The parts of a node's metadata."""
        return cls(
            uid=metadata.uid,
            labels=metadata.labels,
            managers=_label_managers(metadata, metadata.unprefixed),
            resource_version=metadata.resource_version,
        )


Refused = dict[str, InvalidError | RejectedError]
"""Labels that the API server refused, with its error."""


class Patched(NamedTuple):
    """What a patch has changed.

    `node` has the version after the patch, or is as given if every label was refused. `left` are the labels that were
    not sent for the version of the node: the breaker admits a node at one version, so the next one needs a new permit.
    """

    node: NodeMetadata
    refused: Refused
    left: frozenset[str] = frozenset()


async def send_patch(
    client: KubernetesClient, metadata: NodeMetadata, labels: Mapping[str, str | None], *, read_at: float
) -> Patched:
    """Patches a node with new values of labels (None: removal): all of them, or a part if some are refused.

    A refused patch is divided until the API server accepts a part of it; nothing is sent after that.
    Name, uid and version of `metadata` are used. `read_at` is the monotonic time of the oldest read behind the patch.
    Raises KubernetesError if the node was replaced or has changed, or if the request failed.
    """
    refused: Refused = {}
    parts = [sorted(labels)]
    while parts:
        part = parts.pop()
        values = {label: labels[label] for label in part}
        patch = {"metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version, "labels": values}}
        try:
            answer = await client.merge_patch(
                LABELLED_NODES, metadata.name, patch, field_manager=FIELD_MANAGER, read_at=read_at
            )
        except (InvalidError, RejectedError) as error:
            if is_successor(error):
                raise
            if len(part) == 1:
                refused[part[0]] = error
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
        else:
            return Patched(answer.metadata, refused, frozenset().union(*parts))
    return Patched(metadata, refused)


def refusal_reason(error: KubernetesError, name: str) -> str:
    """Why the API server refused a change of a node. The same text is stored once for all nodes."""
    return sys.intern(reason_of(error.status.message or str(error), name))


def _label_managers(metadata: NodeMetadata, labels: Collection[str]) -> dict[str, tuple[str, ...]]:
    setters = [(fields.manager, labels_of(fields.fields_v1)) for fields in metadata.managed_fields] if labels else []
    return {label: tuple(manager for manager, owned in setters if f"f:{label}" in owned) for label in labels}
