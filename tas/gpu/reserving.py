"""What a bind writes to the hold of a node: the reservation of a pod's cards, its renewal, its end.

Each function is one step of a conditional write: from the hold that was read to the hold that is to be written. If the
write fails, the step is computed again from the hold that is stored then.
"""

from typing import NamedTuple

import msgspec

from tas.enforcing.pod import PodKey
from tas.gpu.assigning import assign
from tas.gpu.claim import Claim, Options
from tas.gpu.hold import RESERVED_SECONDS, Held, Hold, Phase, add, confirm, remove, replaced
from tas.gpu.inventory import Inventory
from tas.gpu.policy_facts import PolicyFacts
from tas.gpu.refusal import Refusal


class Reserved(NamedTuple):
    """A hold in which a pod has its cards until `held.until`; `is_new`: it had none before."""

    hold: Hold
    held: Held
    is_new: bool


def reserve(
    hold: Hold,
    inventory: Inventory,
    facts: PolicyFacts,
    claim: Claim,
    options: Options,
    *,
    pod: PodKey,
    now: float,
    nanoseconds: int,
) -> Reserved | Held | Refusal:
    """The hold in which the claim has its cards from now on, what the pod has if it is bound already, or a refusal.

    A pod that has a reservation keeps its cards, and the reservation is renewed: it must not end while a Binding is on
    its way. `nanoseconds` is the time `now` since 1970; the assignment gets a later one if a pod of the node has it.
    Raises HoldError if the cards cannot be added to the hold.
    """
    until = now + RESERVED_SECONDS
    known = hold.pods.get(claim.uid)
    if known is not None:
        if known.phase is Phase.BOUND:
            return known
        renewed = msgspec.structs.replace(known, until=until)
        return Reserved(replaced(hold, claim.uid, renewed), renewed, is_new=False)
    assignment = assign(hold, inventory, facts, claim, options)
    if isinstance(assignment, Refusal):
        return assignment
    last = max((held.nanoseconds for held in hold.pods.values()), default=0)
    held = Held(
        pod=pod,
        assignment=assignment,
        phase=Phase.RESERVED,
        until=until,
        nanoseconds=max(nanoseconds, last + 1),
    )
    return Reserved(add(hold, claim.uid, held), held, is_new=True)


def bound(hold: Hold, uid: str) -> Hold | None:
    """The hold with a pod that is bound now; None if there is nothing to write."""
    held = hold.pods.get(uid)
    return None if held is None or held.phase is Phase.BOUND else confirm(hold, uid)


def released(hold: Hold, uid: str, held: Held) -> Hold | None:
    """The hold without a reservation that has led to nothing; None if there is nothing to write.

    If the reservation is not exactly `held`, another binder has renewed it and may have sent a Binding: it stays.
    """
    return remove(hold, uid) if hold.pods.get(uid) == held else None
