"""Whether a replica or a stored verdict is newer, and what follows."""

import pytest

from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tas.verdict.knowledge import (
    Action,
    Known,
    LastRevisions,
    action,
    is_ahead,
    is_confirmed,
    is_outdated,
    is_void,
    of_node,
)
from tas.verdict.verdict import ABSENT, HOLD, DesiredLabel, LabelVerdict, NodeVerdict, PolicyVerdict, StrategyVerdict

P, Q = PolicyKey("default", "p"), PolicyKey("default", "q")


def stored(*, uid: str = "u", nodes: int = 5, policies: int = 5, **of: PolicyVerdict) -> NodeVerdict:
    verdicts = {PolicyKey("default", name): verdict for name, verdict in of.items()}
    return NodeVerdict(node_uid=uid, nodes_revision=nodes, policies_revision=policies, policies=verdicts)


def policy(*, generation: int = 1, desired: DesiredLabel = ABSENT) -> PolicyVerdict:
    label = LabelVerdict(state=State.MET, desired=desired, met_since=1.0)
    strategy = StrategyVerdict(state=State.MET, changed=1.0, labels={"p": label})
    return PolicyVerdict(uid="u", generation=generation, strategies={StrategyType.DESCHEDULE: strategy})


@pytest.mark.parametrize(
    ("verdict", "known", "does"),
    [
        (None, Known("u", 5, 5), Action.EVALUATE),
        (stored(), Known("u", 5, 5), Action.EVALUATE),
        (stored(), Known("u", 6, 6), Action.EVALUATE),
        (stored(), Known("u", 4, 5), Action.WAIT),
        (stored(), Known("u", 5, 4), Action.WAIT),
        (stored(), Known("u", 4, 9), Action.WAIT),
        (stored(), Known("u", 9, 4), Action.WAIT),
        (stored(), Known("another", 5, 5), Action.EVALUATE),
        (stored(), Known("another", 4, 5), Action.WAIT),
        (stored(uid=""), Known("", 5, 5), Action.EVALUATE),
        (None, Known(None, 5, 5), Action.LEAVE),
        (stored(), Known(None, 6, 5), Action.DELETE),
        (stored(), Known(None, 5, 5), Action.DELETE),
        (stored(), Known(None, 4, 5), Action.WAIT),  # the node may have come back
        (stored(), Known(None, 6, 4), Action.WAIT),
    ],
)
def test_a_replica_that_is_behind_waits(verdict: NodeVerdict | None, known: Known, does: Action) -> None:
    assert action(verdict, known) is does


LAST = LastRevisions(nodes=8, policies=7)


@pytest.mark.parametrize(
    ("verdict", "uid", "does"),
    [
        pytest.param(stored(nodes=8, policies=7), "u", Action.WAIT, id="the last ones"),
        pytest.param(stored(nodes=9, policies=5), "u", Action.EVALUATE, id="nodes beyond the last"),
        pytest.param(stored(nodes=5, policies=8), "u", Action.EVALUATE, id="policies beyond the last"),
        pytest.param(stored(nodes=2**62, policies=2**62), "u", Action.EVALUATE, id="both far beyond"),
        pytest.param(stored(nodes=2**62, policies=6), "u", Action.EVALUATE, id="one far beyond, one ahead"),
        pytest.param(stored(nodes=2**62, policies=2**62), None, Action.DELETE, id="of a node that is gone"),
        pytest.param(stored(nodes=8), None, Action.WAIT, id="ahead, of a node that is gone"),
        pytest.param(None, "u", Action.EVALUATE, id="none"),
        pytest.param(None, None, Action.LEAVE, id="none, of a node that is gone"),
    ],
)
def test_a_verdict_with_revisions_that_nothing_has_is_void(
    verdict: NodeVerdict | None, uid: str | None, does: Action
) -> None:
    known = Known(uid, 5, 5)
    assert action(verdict, known, LAST) is does
    if verdict is not None:
        assert action(verdict, known) is Action.WAIT  # without the last revisions it may be that of a faster replica
        assert is_ahead(verdict, known)
        assert is_void(verdict, LAST) is (does is not Action.WAIT)


@pytest.mark.parametrize(
    ("verdict", "outdated"),
    [
        (None, True),
        (stored(), False),  # equal revisions
        (stored(nodes=6, policies=6), False),
        (stored(nodes=4), True),
        (stored(policies=4), True),
        (stored(nodes=4, policies=6), True),
        (stored(nodes=6, policies=4), True),
        (stored(uid="another", nodes=9, policies=9), True),
        (stored(uid=""), True),
    ],
)
def test_a_stored_verdict_from_older_data_is_outdated(verdict: NodeVerdict | None, outdated: bool) -> None:
    assert is_outdated(verdict, Known("u", 5, 5)) is outdated


@pytest.mark.parametrize(
    ("verdict_uid", "node_uid", "valid"),
    [("u", "u", True), ("u", "another", False), ("u", None, False), ("u", "", False), ("", "", True), ("", "u", False)],
)
def test_a_verdict_of_another_uid_is_void(verdict_uid: str, node_uid: str | None, valid: bool) -> None:
    verdict = stored(uid=verdict_uid)
    assert of_node(verdict, node_uid) == (verdict if valid else None)
    assert of_node(None, node_uid) is None


@pytest.mark.parametrize(
    ("verdict", "evaluated", "keys", "confirmed"),
    [
        (stored(p=policy()), {P: policy()}, {P}, True),
        (stored(p=policy()), {P: policy(generation=2)}, {P}, False),
        (stored(p=policy()), {}, {P}, False),  # the policy is gone
        (stored(), {P: policy()}, {P}, False),  # it is new
        (stored(), {}, {P}, True),  # it came and went
        (stored(p=policy(), q=policy()), {P: policy()}, {P}, True),  # the other was not touched
        (stored(p=policy(), q=policy()), {P: policy()}, {P, Q}, False),
        (stored(p=policy(), q=policy()), {P: policy(), Q: policy(desired=HOLD)}, {P, Q}, False),
        (stored(), {}, set(), True),
    ],
)
def test_a_verdict_is_confirmed_if_no_policy_differs(
    verdict: NodeVerdict, evaluated: dict[PolicyKey, PolicyVerdict], keys: set[PolicyKey], confirmed: bool
) -> None:
    assert is_confirmed(verdict, evaluated, keys, None) is confirmed


def test_a_hold_that_replaces_absent_confirms_if_the_node_lacks_the_label() -> None:
    verdict, evaluated = stored(p=policy()), {P: policy(desired=HOLD)}
    assert is_confirmed(verdict, evaluated, {P}, {"other"})
    assert not is_confirmed(verdict, evaluated, {P}, {"p"})
