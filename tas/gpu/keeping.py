"""What `inventory` changes in the hold of a node: pods that have ended go, reservations end, other pods are adopted.

Each function is one step of a conditional write, as in `reserving`. Nothing goes because it was not seen: the API
server was asked for the pod, and this is its answer.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tas.enforcing.pod import ENDED
from tas.gpu.adoption import adopt, uses_cards
from tas.gpu.claim import DevicePod
from tas.gpu.hold import Held, Hold, Phase, confirm, remove
from tas.gpu.labels import LabelProblem
from tas.gpu.names import CONTAINER_CARDS, CONTAINER_TILES, MAX_RESOURCES, MONITORING, TIMESTAMP
from tas.gpu.pod_annotations import annotations

_OUTPUT = (CONTAINER_CARDS, CONTAINER_TILES, TIMESTAMP)
"""The annotations that say which cards a pod has."""

SETTLED_SECONDS = 1.0
"""How long a reservation is known before the API server is asked for a pod that is bound or gone, as its list says.

Mostly its binder is about to write the same, or the API server is about to show the pod.
"""


MAX_ADOPTED_BYTES = 512 << 10
"""The most bytes of what all adopted pods of a node have, as JSON: a record of the bus has about 1 MiB.

Anybody may write the annotations: 240 kB of them, 60 containers with 512 cards each, are 1.4 MB of a hold. 200 pods
with a card each have less than 80 kB.
"""


_NAME_BYTES, _AMOUNT_BYTES = 20, 40
"""Of a container beside its name, and of an amount that it has of a card."""


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


def remembered(pod: DevicePod) -> DevicePod | None:
    """What is to be remembered of a pod, without annotations that say nothing about its cards.

    None if nothing is: the pod does not concern cards, or has ended.
    """
    if pod.phase in ENDED or not requests_cards(pod):
        return None
    kept = {name: pod.annotations[name] for name in _OUTPUT if name in pod.annotations}
    return msgspec.structs.replace(pod, annotations=kept)


def to_ask_for(
    pods: Mapping[str, Held], known: Mapping[str, DevicePod], reservations: Collection[str], node: str
) -> list[str]:
    """The uids of the pods of a hold for which the API server is to be asked, sorted.

    Args:
        pods: What each pod has, in the hold of `node`.
        known: The remembered pods that the API server has shown, by uid.
        reservations: The uids of reservations that are over, or whose pod is not known (`Reservations`).
        node: The name of the node.
    """
    return sorted(
        uid
        for uid, held in pods.items()
        if uid in reservations or (held.phase is Phase.BOUND and _seems_to_have_left(known.get(uid), node))
    )


def _seems_to_have_left(pod: DevicePod | None, node: str) -> bool:
    return pod is None or pod.node not in (None, node)


def _seems_settled(pod: DevicePod | None) -> bool:
    return pod is None or pod.node is not None


class _Reservation(NamedTuple):
    """A reservation as its binder has made or renewed it; `since`: from when it is known."""

    until: float | None
    since: float
    is_answered: bool = False


class Reservations:
    """Since when each reservation has not changed, by the clock of the reader: that of the binder may be wrong."""

    def __init__(self, seconds: float) -> None:
        """A reservation is over when it was seen unchanged for so many seconds: no Binding is on its way any more."""
        self._seconds = seconds
        self._of_node: dict[str, dict[str, _Reservation]] = {}

    def set_node(self, node: str, pods: Mapping[str, Held], *, at: float) -> None:
        """Applies what the hold of a node has at the monotonic time `at`."""
        before = self._of_node.pop(node, {})
        found = {}
        for uid, held in pods.items():
            if held.phase is Phase.RESERVED:
                known = before.get(uid)
                found[uid] = known if known is not None and known.until == held.until else _Reservation(held.until, at)
        if found:
            self._of_node[node] = found

    def clear(self) -> None:
        """Forgets all nodes."""
        self._of_node.clear()

    def nodes(self, now: float, known: Mapping[str, DevicePod]) -> set[str]:
        """The nodes with a reservation for which `to_ask_for` has an answer."""
        return {node for node in self._of_node if self.to_ask_for(node, now, known)}

    def to_ask_for(self, node: str, now: float, known: Mapping[str, DevicePod]) -> dict[str, bool]:
        """The uids of the reservations for whose pods the API server is to be asked, and whether each is over.

        No Binding can take effect any more for a pod that is bound or gone. So the API server is asked once for a pod
        that has a node by what it has shown (`known`), or that it does not show.
        """
        return {
            uid: is_over
            for uid, each in self._of_node.get(node, {}).items()
            if (is_over := now - each.since >= self._seconds)
            or (not each.is_answered and now - each.since >= SETTLED_SECONDS and _seems_settled(known.get(uid)))
        }

    def answered(self, node: str, uid: str) -> None:
        """Notes that the API server has answered about a pod."""
        found = self._of_node.get(node, {})
        if uid in found:
            found[uid] = found[uid]._replace(is_answered=True)


def answered(
    hold: Hold, uid: str, held: Held, pod: DevicePod | None, node: str, *, is_over: bool
) -> tuple[Hold, Ending | None] | None:
    """The hold after the API server was asked for a pod that had `held`, and why the pod has lost it, if so.

    `pod` is the answer; None: there is none of this name. `is_over` says whether a reservation was over before the
    request. Returns None if nothing changes: also if the hold has something else for the pod now, because a binder was
    faster.
    """
    if hold.pods.get(uid) != held:
        return None
    if (ending := _ending(uid, held, pod, node, is_over=is_over)) is not None:
        return remove(hold, uid), ending
    if held.phase is Phase.BOUND or pod is None or pod.node is None:
        return None
    return confirm(hold, uid), None


def _ending(uid: str, held: Held, pod: DevicePod | None, node: str, *, is_over: bool) -> Ending | None:
    # No Binding can take effect any more unless the pod is there and has no node: only then the time counts.
    if pod is None or pod.uid != uid or pod.phase in ENDED:
        return Ending.GONE
    if pod.node is None:
        # A bound pod stays: only an answer of an earlier state can say that it is not bound.
        return Ending.EXPIRED if held.phase is Phase.RESERVED and is_over else None
    if pod.node != node or (held.phase is Phase.RESERVED and not _has_these_cards(pod, held)):
        return Ending.ELSEWHERE
    return None


class Adopted(NamedTuple):
    """A hold with pods of which only annotations say what they have, and what is wrong with these pods.

    Attributes:
        hold: The hold.
        problems: What cannot be read of a pod, by uid.
        missing: The pods that the hold cannot have: their amounts would be above all bounds, or there is no room.
    """

    hold: Hold
    problems: dict[str, tuple[LabelProblem, ...]]
    missing: list[DevicePod]


def to_adopt(pods: Mapping[str, Held], on_node: Iterable[DevicePod]) -> list[DevicePod]:
    """The pods on a node that use cards by their annotations, while its hold has only `pods`."""
    return [pod for pod in on_node if pod.uid not in pods and uses_cards(pod)]


def adopted(hold: Hold, pods: Collection[DevicePod], *, most: int = MAX_ADOPTED_BYTES) -> Adopted:
    """The hold with the pods of `to_adopt`.

    They displace nobody: anybody who can create a pod may have written the annotations. All adopted pods of a node have
    `most` bytes together, and the pods that take few come first. After the first pod for which there is no room, no
    other one is read: this would take as long for each of them, in each pass.
    """
    problems: dict[str, tuple[LabelProblem, ...]] = {}
    missing: list[DevicePod] = []
    room = most - sum(_bytes_of(uid, held) for uid, held in hold.pods.items() if not held.verified)
    ordered = sorted(pods, key=lambda each: (_estimated_bytes(each), each.uid))
    for number, pod in enumerate(ordered):
        if _length(pod) > 2 * room:  # a tile takes two characters for each byte, and a card fewer
            return Adopted(hold, problems, [*missing, *ordered[number:]])
        following, found = adopt(hold, (pod,), verified=False)
        problems |= found
        held = following.pods.get(pod.uid)
        if held is None:
            missing.append(pod)
        elif (size := _bytes_of(pod.uid, held)) > room:
            return Adopted(hold, problems, [*missing, *ordered[number:]])
        else:
            hold, room = following, room - size
    return Adopted(hold, problems, missing)


def _length(pod: DevicePod) -> int:
    """The characters of the annotations that say which cards a pod has."""
    return sum(len(pod.annotations.get(name, "")) for name in _OUTPUT)


def _estimated_bytes(pod: DevicePod) -> int:
    """About how many bytes the pod takes: its annotations are not read, as this may take long."""
    found = _length(pod) + sum(_NAME_BYTES + len(each.name) for each in pod.containers)
    for container, cards in zip(pod.containers, pod.annotations.get(CONTAINER_CARDS, "").split("|"), strict=False):
        if cards:
            found += (cards.count(",") + 1) * min(len(container.amounts()), MAX_RESOURCES) * _AMOUNT_BYTES
    return found


def _bytes_of(uid: str, held: Held) -> int:
    return len(msgspec.json.encode({uid: held}))


def drifting(pods: Mapping[str, Held], on_node: Iterable[DevicePod]) -> list[DevicePod]:
    """The pods on a node that request cards, while nothing says which cards they use; sorted by key."""
    found = (pod for pod in on_node if pod.uid not in pods and not uses_cards(pod) and _needs_cards(pod))
    return sorted(found, key=lambda pod: pod.key)


def _needs_cards(pod: DevicePod) -> bool:
    """Whether a container asks for more than to see all cards of the node, which uses no card (facts.md g5)."""
    return any(name not in MONITORING for each in (*pod.containers, *pod.init_containers) for name in each.amounts())


def _has_these_cards(pod: DevicePod, held: Held) -> bool:
    wanted = annotations(held.assignment, held.nanoseconds)
    return all(pod.annotations.get(name, "") == wanted.get(name, "") for name in (CONTAINER_CARDS, CONTAINER_TILES))
