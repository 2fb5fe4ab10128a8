"""Pods whose cards are known only by their annotations, for example those that the original assigned.

Such pods are adopted when the holds are built again, so that nobody gets their cards. What they have is never less than
what they may use: amounts are rounded up.
"""

import re
from collections.abc import Iterable

from tas.enforcing.pod import ENDED
from tas.gpu.amounts import AmountError, parse_amount
from tas.gpu.assignment import Assignment, Share, SlotAssignment
from tas.gpu.claim import ContainerRequest, DevicePod
from tas.gpu.hold import Held, Hold, HoldError, Phase, add
from tas.gpu.labels import LabelProblem, Problems
from tas.gpu.names import (
    CONTAINER_CARDS,
    CONTAINER_TILES,
    I915,
    MAX_RESOURCES,
    MONITORING,
    READ_FIRST,
    TIMESTAMP,
    XE,
)
from tas.gpu.pod_annotations import parse_cards, parse_tiles
from tas.values.nouns import counted

_NANOSECONDS = re.compile(r"[1-8][0-9]{18}")
"""Times from 2001 to 2255: with as many digits as all later times, since the device plugin compares them as texts."""


def uses_cards(pod: DevicePod) -> bool:
    """Whether the cards in a pod's annotations are in use: from its binding until it has ended or is gone.

    A pod that is being deleted still uses them, because its containers run until they have stopped.
    """
    return pod.node is not None and pod.phase not in ENDED and CONTAINER_CARDS in pod.annotations


def adopt(hold: Hold, pods: Iterable[DevicePod], *, verified: bool) -> tuple[Hold, dict[str, tuple[LabelProblem, ...]]]:
    """The hold of a node with its pods that use cards, and what cannot be read of them by uid.

    Args:
        hold: What is already known. It keeps what it has for a pod.
        pods: All pods of the node, in any order.
        verified: Whether only this product can have written the annotations.
    """
    found = {}
    for pod in sorted((each for each in pods if uses_cards(each)), key=lambda each: each.uid):
        assignment, problems = read_assignment(pod)
        for trusted in (True, False) if verified else (False,):
            held = Held(
                pod=pod.key,
                assignment=assignment,
                phase=Phase.BOUND,
                verified=trusted,
                nanoseconds=_assigned(pod.annotations.get(TIMESTAMP, "")),
            )
            try:
                hold = add(hold, pod.uid, held)
                break
            except HoldError as error:  # the pod runs all the same, so its cards count
                problems = (*problems, LabelProblem(field="cards", value=pod.uid, reason=str(error)))
        if problems:
            found[pod.uid] = problems
    return hold, found


def _assigned(text: str) -> int:
    """The time of the annotation `gas-ts`, so that later pods of the node get later ones; 0 if it is no such time."""
    return int(text) if _NANOSECONDS.fullmatch(text) else 0


def read_assignment(pod: DevicePod) -> tuple[Assignment, tuple[LabelProblem, ...]]:
    """What a pod has by its annotations and requests, and what cannot be read. The rest counts."""
    cards, card_problems = parse_cards(pod.annotations.get(CONTAINER_CARDS, ""))
    tiles, tile_problems = parse_tiles(pod.annotations.get(CONTAINER_TILES, ""))
    problems = Problems()
    slots = []
    node_amounts: dict[str, int] = {}
    for index, container in enumerate(pod.containers):
        amounts = _amounts(container, problems)
        for resource in MONITORING & amounts.keys():
            node_amounts[resource] = node_amounts.get(resource, 0) + amounts.pop(resource)
        own_cards = cards[index] if index < len(cards) else ()
        own_tiles = tiles[index] if index < len(tiles) else {}
        if amounts and not own_cards:
            problems.add(f"container {container.name}", ",".join(amounts), "requests GPU resources, and has no cards")
        for plugin in (I915, XE):
            if plugin in amounts and own_cards:
                amounts[plugin] = max(amounts[plugin], len(own_cards))
        of_each = {resource: -(-amount // len(own_cards)) for resource, amount in amounts.items()} if own_cards else {}
        shares = [Share(card=card, amounts=of_each, tiles=own_tiles.get(card, ())) for card in own_cards]
        shares += [Share(card=card, tiles=found) for card, found in own_tiles.items() if card not in own_cards]
        slots.append(SlotAssignment(container=container.name, shares=tuple(shares)))
    for annotation, count in ((CONTAINER_CARDS, len(cards)), (CONTAINER_TILES, len(tiles))):
        if count > len(pod.containers):
            reason = f"the pod has only {counted(len(pod.containers), 'container')}"
            problems.add(f"annotation {annotation}", f"{count} segments", reason)
    assignment = Assignment(slots=tuple(slots), node_amounts=node_amounts)
    return assignment, (*card_problems, *tile_problems, *problems.listed())


def _amounts(container: ContainerRequest, problems: Problems) -> dict[str, int]:
    """The amounts of a container that can be read, without those of 0; of at most `MAX_RESOURCES`.

    Each counts for each card of the container: 4,000 invented ones of 512 cards took 140 MiB.
    """
    amounts = {}
    texts = container.amounts()
    read = sorted(texts, key=lambda resource: (resource not in READ_FIRST, resource))
    for resource in read[:MAX_RESOURCES]:
        text = texts[resource]
        try:
            amount = parse_amount(text)
        except AmountError as error:
            problems.add(f"container {container.name}: {resource}", text, str(error))
        else:
            if amount:
                amounts[resource] = amount
    if len(read) > MAX_RESOURCES:
        reason = f"at most {MAX_RESOURCES} different ones are read"
        problems.add(f"container {container.name}", counted(len(read), "GPU resource"), reason)
    return amounts
