"""How the device plugin of a node finds the cards of a container, from the annotations that the binder writes.

The plugin is asked about a container, and is not told of which pod: it takes the waiting pod whose `gas-ts` is the
first as text, and of this pod the next non-empty segments (facts.md g6, g7).
"""

from collections.abc import Mapping
from typing import NamedTuple


class Pending(NamedTuple):
    """A pod of the node that has not started: its annotations, and how many containers request cards."""

    annotations: Mapping[str, str]
    containers: int


class Allocation(NamedTuple):
    """What a container gets: the pod that the plugin takes it to be of, its cards, and the tiles of each card."""

    pod: str
    cards: list[str]
    tiles: list[str]


class DevicePlugin:
    """The plugin of one node.

    Attributes:
        allocated: How many containers of each pod have got their cards, by the pod's name.
    """

    def __init__(self) -> None:
        self.allocated: dict[str, int] = {}

    def allocate(self, pods: Mapping[str, Pending]) -> Allocation:
        """What the next container gets, when these pods are Pending, by name.

        Raises LookupError if no pod with annotations waits: then the plugin would choose any cards.
        """
        waiting = {name: pod for name, pod in pods.items() if self.allocated.get(name, 0) < pod.containers}
        if len(waiting) > 1:
            waiting = {name: pod for name, pod in waiting.items() if "gas-ts" in pod.annotations}
        elif not all("gas-container-cards" in pod.annotations for pod in waiting.values()):
            waiting = {}
        if not waiting:
            raise LookupError("no pod waits for cards")
        name = min(waiting, key=lambda each: waiting[each].annotations.get("gas-ts", ""))
        index = self.allocated.get(name, 0)
        self.allocated[name] = index + 1
        annotations = waiting[name].annotations
        cards = self._segment(annotations, "gas-container-cards", index)
        return Allocation(name, cards, self._segment(annotations, "gas-container-tiles", index))

    @staticmethod
    def _segment(annotations: Mapping[str, str], name: str, index: int) -> list[str]:
        filled = [segment for segment in annotations.get(name, "").split("|") if segment]
        return filled[index].split(",") if index < len(filled) else []
