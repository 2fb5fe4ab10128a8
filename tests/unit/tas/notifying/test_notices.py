"""Every type of event has words."""

import pytest

from tas.events.data import (
    BreakerReset,
    BreakerTripped,
    EndReason,
    EventData,
    PolicyRefused,
    SourceBack,
    Unknown,
    ViolationEnded,
)
from tas.events.event import DATA_TYPES
from tas.notifying.notices import KINDS, kind_of, notice_of
from tests.unit.tas.events.examples import EXAMPLES, NODE, STRATEGY
from tests.unit.tas.notifying.making import event, notice


def test_there_is_an_example_of_every_type() -> None:
    assert {type(data) for data in EXAMPLES} >= set(DATA_TYPES.values())


@pytest.mark.parametrize("data", EXAMPLES, ids=lambda data: type(data).__name__)
def test_an_event_has_words_and_names_its_object(data: EventData) -> None:
    found = notice_of(event(data))
    if isinstance(data, Unknown):
        assert found is None
        return
    assert found is not None
    assert kind_of(event(data)) == found.kind
    assert found.kind in KINDS
    assert found.text
    assert found.text.isprintable()
    if found.node:
        assert found.node in found.text
    if found.policy is not None:
        assert str(found.policy) in found.text
    assert (found.begins is True) == (found.begins is not None and found.reason == found.condition)


def test_a_begin_and_its_end_are_one_condition_with_the_same_labels() -> None:
    tripped = notice(BreakerTripped(policy="demo", limit=1, wanted=2))
    reset = notice(BreakerReset(policy="demo"))
    assert (tripped.condition, tripped.labels) == (reset.condition, reset.labels)
    assert (tripped.begins, reset.begins) == (True, False)


def test_an_end_says_why() -> None:
    words = {reason: notice(ViolationEnded(**STRATEGY, reason=reason)).text for reason in EndReason}
    what = "default/demo.policy (deschedule)"
    assert words == {
        EndReason.MET: f"{NODE['node']} no longer violates {what}",
        EndReason.POLICY_REMOVED: f"{NODE['node']} no longer violates {what}: the policy or this strategy was deleted",
        EndReason.NODE_REMOVED: f"{NODE['node']} was deleted, and no longer violates {what}",
    }


def test_a_source_whose_state_has_expired_is_not_said_to_give_samples() -> None:
    """Its collect has ended an hour ago, and nobody reads it."""
    back = notice(SourceBack(source="prometheus", kind="prometheus"))
    assert back.text == "source prometheus gives samples again, or no policy needs them"
    expired = notice(SourceBack(source="prometheus"))
    assert expired.text == "source prometheus is read by nobody any more"
    assert "nobody needs or reads them" in expired.group_text


def test_the_breaker_over_all_policies_is_about_no_policy() -> None:
    tripped = BreakerTripped(limit=20, wanted=21)
    assert notice(tripped).labels == {}
    assert "all policies" in notice(tripped).text


def test_a_text_of_a_policy_is_one_line_of_limited_length() -> None:
    refused = PolicyRefused(
        namespace="default", policy="p", policy_uid="u", generation=1, problems=("a\nb\x1b[2J" + "x" * 5000,), total=3
    )
    text = notice(refused).text
    assert text.isprintable()
    assert len(text) < 1100
    assert text.endswith("(and 2 more)")
