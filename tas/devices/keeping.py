"""What `inventory` changes in the hold of a node: pods that have ended go, reservations end, other pods are adopted.

Each function is one step of a conditional write, as in `reserving`. Nothing goes because it was not seen: the API
server was asked for the pod, and this is its answer.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from tas.devices.adoption import adopt, uses_cards
from tas.devices.annotations import annotations
from tas.devices.claim import DevicePod
from tas.devices.hold import Held, Hold, Phase, confirm, remove
from tas.devices.labels import LabelProblem
from tas.devices.names import CONTAINER_CARDS, CONTAINER_TILES
from tas.enforcing.pod import ENDED


class Ending(StrEnum):
    """Why a pod loses what it has of a hold."""

    GONE = "gone"
    """There is no pod of this uid, or the pod has ended."""
    ELSEWHERE = "elsewhere"
    """The pod is on another node, or on this one without these cards."""
    EXPIRED = "expired"
    """The reservation has ended, and the pod is not bound."""


def requests_cards(pod: DevicePod) -> bool:
    """Whether a container of the pod requests GPU resources, or annotations give it cards."""
    return CONTAINER_CARDS in pod.annotations or any(each.amounts() for each in (*pod.containers, *pod.init_containers))


def is_on_node(pod: DevicePod) -> bool:
    """Whether a pod is bound and has not ended."""
    return pod.node is not None and pod.phase not in ENDED


def to_ask_for(hold: Hold, pods: Mapping[str, DevicePod], expired: Collection[str]) -> list[str]:
    """The uids of the pods of a hold for which the API server is to be asked, sorted.

    Args:
        hold: Of a node.
        pods: The pods with GPU requests that the API server has shown, by uid.
        expired: The uids of reservations whose time is over.
    """
    found = []
    for uid, held in hold.pods.items():
        pod = pods.get(uid)
        has_ended = pod is None or pod.phase in ENDED
        if uid in expired or (held.phase is Phase.BOUND and has_ended):
            found.append(uid)
    return sorted(found)


def answered(hold: Hold, uid: str, held: Held, pod: DevicePod | None, node: str) -> tuple[Hold, Ending | None] | None:
    """The hold after the API server was asked for a pod that had `held`, and why the pod has lost it, if so.

    `pod` is the answer; None: there is none of this name. Returns None if nothing changes: also if the hold has
    something else for the pod now, because a binder was faster.
    """
    if hold.pods.get(uid) != held:
        return None
    if (ending := _ending(uid, held, pod, node)) is not None:
        return remove(hold, uid), ending
    return None if held.phase is Phase.BOUND else (confirm(hold, uid), None)


def _ending(uid: str, held: Held, pod: DevicePod | None, node: str) -> Ending | None:
    if pod is None or pod.uid != uid or pod.phase in ENDED:
        return Ending.GONE
    if pod.node is None:
        # A bound pod stays: only an answer of an earlier state can say that it is not bound.
        return None if held.phase is Phase.BOUND else Ending.EXPIRED
    if pod.node != node or (held.phase is Phase.RESERVED and not _has_these_cards(pod, held)):
        return Ending.ELSEWHERE
    return None


def adopted(hold: Hold, pods: Iterable[DevicePod]) -> tuple[Hold, dict[str, tuple[LabelProblem, ...]]]:
    """The hold with the pods of the node that use cards by their annotations, and what cannot be read of them by uid.

    They displace nobody: anybody who can create a pod may have written the annotations.
    """
    return adopt(hold, (pod for pod in pods if pod.uid not in hold.pods), verified=False)


def drifting(hold: Hold, pods: Iterable[DevicePod]) -> list[DevicePod]:
    """The pods of the node that request GPU resources, while nothing says which cards they use; sorted by key."""
    found = (pod for pod in pods if is_on_node(pod) and pod.uid not in hold.pods and not uses_cards(pod))
    return sorted(found, key=lambda pod: pod.key)


def _has_these_cards(pod: DevicePod, held: Held) -> bool:
    wanted = annotations(held.assignment, held.nanoseconds)
    return all(pod.annotations.get(name, "") == wanted.get(name, "") for name in (CONTAINER_CARDS, CONTAINER_TILES))
