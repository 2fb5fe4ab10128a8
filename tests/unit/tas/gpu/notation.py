"""Reads nodes and pods in a short notation, for tables of test cases.

A node: `N(0,1) i20 mem16 prefer-gpu=card1 ; card0: i1 mem5 ; card1: gt0`. `N` has the numbers of the cards. Amounts are
those of the whole node: `i` (i915), `xe`, `mc` (millicores), `mem` (memory.max in G), `t` (tiles), `mon`
(i915_monitoring), or any other name. Labels are `name=value`, and `@b` after the name of a policy fact is the policy.
After each `;` comes what a running pod has of one card, with its tiles; `!` is a pod that is only reserved.

A pod: `A{i1 mc100} B{} init{i1} same=A,B xelink numa=true allow=card0 deny=card1`. `_` in a value is a blank.
"""

import re
from collections.abc import Mapping
from itertools import count

import msgspec

from tas.enforcing.pod import PodKey
from tas.gpu.assigning import assign, fits
from tas.gpu.assignment import Assignment, Share, SlotAssignment
from tas.gpu.claim import Claim, ContainerRequest, DevicePod, Options, read_claim
from tas.gpu.hold import EMPTY, Held, Hold, Phase, add
from tas.gpu.inventory import Inventory, read_inventory
from tas.gpu.pod_annotations import cards_text, tiles_text
from tas.gpu.policy_facts import PolicyFacts, read_policy_facts
from tas.gpu.refusal import Refusal

GPU = "gpu.intel.com/"
NAMES = {"i": "i915", "mc": "millicores", "mem": "memory.max", "t": "tiles", "mon": "i915_monitoring"}
LABELS = {"numa": "numa-gpu-map", "links": "xe-links", "groups": "pci-groups", "numbers": "gpu-numbers"}
FACTS = ("disable-", "prefer-gpu", "deschedule-pods-", "tile-")
ANNOTATIONS = {
    "same": "gas-same-gpu",
    "xelink": "gas-allocate-xelink",
    "numa": "gas-allocate-single-numa",
    "allow": "gas-allow",
    "deny": "gas-deny",
}


def amounts(text: str) -> dict[str, str]:
    """Amounts by resource: `i1 mem5`."""
    found = {}
    for word in text.split():
        match = re.fullmatch(r"([a-z_]+)(-?[0-9].*)", word)
        assert match is not None, word
        found[GPU + NAMES.get(match[1], match[1])] = match[2] + ("G" if match[1] == "mem" else "")
    return found


def whole(texts: Mapping[str, str]) -> dict[str, int]:
    """The numbers of amounts in this notation."""
    return {name: int(text.removesuffix("G")) * (10**9 if text.endswith("G") else 1) for name, text in texts.items()}


def numbers(text: str) -> str:
    """The value of `gpu-numbers`: `0..2` and `0,1,2` are `0.1.2`."""
    first, dots, last = text.partition("..")
    return ".".join(map(str, range(int(first), int(last) + 1))) if dots else text.replace(",", ".")


def split_label(name: str, value: str) -> dict[str, str]:
    """The labels over which node feature discovery splits a long value."""
    first, rest = value[:63], value[63:]
    parts = [rest[start : start + 62] for start in range(0, len(rest), 62)]
    return {name: first} | {f"{name}{number}": f"Z{part}" for number, part in enumerate(parts, 2)}


def labels_of(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """The labels and the allocatable amounts of a node."""
    labels: dict[str, str] = {}
    rest: list[str] = []
    for word in text.split():
        key, equals, value = word.partition("=")
        name, _, policy = key.partition("@")
        if word.startswith("N("):
            labels |= split_label(f"{GPU}gpu-numbers", numbers(word[2:-1]))
        elif name.startswith(FACTS):
            labels[f"telemetry.aware.scheduling.{policy or 'p'}/gas-{name}"] = value or "true"
        elif equals:
            base = name.rstrip("0123456789")
            labels |= split_label(GPU + LABELS.get(base, base) + name[len(base) :], value)
        else:
            rest.append(word)
    return labels, amounts(" ".join(rest))


class Node:
    """A node in this notation."""

    def __init__(self, text: str) -> None:
        described, *used = text.split(";")
        self.labels, self.allocatable = labels_of(described)
        self.inventory: Inventory = read_inventory(self.labels, self.allocatable)
        self.facts: PolicyFacts = read_policy_facts(self.labels, self.inventory.pci_groups)
        self.hold: Hold = EMPTY
        for number, each in enumerate(used):
            self.hold = add(self.hold, f"used-{number}", _held(each))


def _held(text: str) -> Held:
    """What a running pod has: `card0: i1 mem5`, `card0: gt0+gt1`."""
    card, _, rest = text.strip().removesuffix("!").partition(":")
    tiles = [int(word[2:]) for words in rest.split() if words.startswith("gt") for word in words.split("+")]
    found = whole(amounts(" ".join(word for word in rest.split() if not word.startswith("gt"))))
    if tiles:
        found[f"{GPU}tiles"] = len(tiles)
    share = Share(card=int(card.removeprefix("card")), amounts=found, tiles=tuple(tiles))
    slots = (SlotAssignment(container="c", shares=(share,)),)
    phase = Phase.RESERVED if text.strip().endswith("!") else Phase.BOUND
    return Held(pod=PodKey("default", "used"), assignment=Assignment(slots=slots), phase=phase)


_uids = count()

NO_OPTIONS = Options()


def pod(text: str, *, uid: str | None = None) -> DevicePod:
    """A pod in this notation."""
    containers: list[ContainerRequest] = []
    init: list[ContainerRequest] = []
    annotations: dict[str, str] = {}
    for name, body, word in re.findall(r"(\w+)\{([^}]*)\}|(\S+)", text):
        if name:
            container = ContainerRequest(name=name, requests=amounts(body))
            (init if name == "init" else containers).append(container)
        else:
            key, _, value = word.partition("=")
            annotations[ANNOTATIONS[key]] = value.replace("_", " ")
    uid = uid or f"pod-{next(_uids)}"
    return DevicePod(
        key=PodKey("default", uid),
        uid=uid,
        containers=tuple(containers),
        init_containers=tuple(init),
        annotations=annotations,
    )


def bound(text: str, cards: str, tiles: str = "", *, uid: str = "u", phase: str = "Running") -> DevicePod:
    """A pod in this notation that is on a node, with these annotations of its cards and tiles."""
    found = {"gas-container-cards": cards} | ({"gas-container-tiles": tiles} if tiles else {})
    return msgspec.structs.replace(pod(text, uid=uid), annotations=found, node="n", phase=phase)


def claim(text: str, options: Options = NO_OPTIONS, *, uid: str | None = None) -> Claim:
    """The claim of a pod in this notation, which some node can fulfil."""
    found = read_claim(pod(text, uid=uid), options)
    assert isinstance(found, Claim), found
    return found


def placed(node: Node, pod_text: str, options: Options = NO_OPTIONS) -> Assignment | Refusal:
    """What the pod gets of the node."""
    found = read_claim(pod(pod_text), options)
    if isinstance(found, Refusal):
        return found
    assigned = assign(node.hold, node.inventory, node.facts, found, options)
    assert fits(node.hold, node.inventory, node.facts, found, options) is isinstance(assigned, Assignment)
    return assigned


def result(found: Assignment | Refusal) -> str:
    """Cards and tiles as in the table: `card0//card0 ; -`; a refusal is its cause, with `!` if it is permanent."""
    if isinstance(found, Refusal):
        return f"{found.cause}{'!' if found.permanent else ''}"
    cards, tiles = cards_text(found), tiles_text(found)
    return f"{cards} ; {tiles or '-'}".replace("|", "/")
