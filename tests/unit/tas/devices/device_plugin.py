"""How the device plugin of a node finds the cards of a container, from the annotations that the binder writes.

The plugin is asked about a container, and is not told of which pod: it takes the waiting pod whose `gas-ts` is the
first as text, and of this pod the next non-empty segment of `gas-container-cards`.
"""

from collections.abc import Mapping


class DevicePlugin:
    """The plugin of one node.

    Attributes:
        allocated: How many containers of each pod have got their cards, by the pod's name.
    """

    def __init__(self) -> None:
        self.allocated: dict[str, int] = {}

    def allocate(self, pending: Mapping[str, Mapping[str, str]]) -> tuple[str, list[str], list[str]]:
        """The pod that the plugin takes, with the cards and the tiles for its next container.

        `pending` has the annotations of the pods of the node that are Pending, by name. Raises LookupError if none of
        them waits for cards; then the plugin would choose any devices.
        """
        waiting = {
            annotations["gas-ts"]: name
            for name, annotations in pending.items()
            if "gas-ts" in annotations and self._next_segment(name, annotations) is not None
        }
        if not waiting:
            raise LookupError("no pod waits for cards")
        name = waiting[min(waiting)]
        annotations = pending[name]
        index = self._next_segment(name, annotations)
        assert index is not None
        self.allocated[name] = self.allocated.get(name, 0) + 1
        cards = annotations["gas-container-cards"].split("|")[index].split(",")
        tiles = annotations.get("gas-container-tiles", "")
        return name, cards, tiles.split("|")[index].split(",") if tiles else []

    def _next_segment(self, name: str, annotations: Mapping[str, str]) -> int | None:
        segments = annotations["gas-container-cards"].split("|")
        filled = [index for index, segment in enumerate(segments) if segment]
        done = self.allocated.get(name, 0)
        return filled[done] if done < len(filled) else None
