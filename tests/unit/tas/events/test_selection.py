import msgspec
import pytest

from bus.subjects import event_subject, selection_filters
from tas.errors import InvalidInputError
from tas.events.data import (
    BreakerReset,
    BreakerTripped,
    Data,
    EpochChanged,
    Gap,
    LabelApplied,
    LabelsPaused,
    LabelsResumed,
    PolicyAccepted,
    SourceDry,
    Unknown,
    ViolationStarted,
)
from tas.events.selection import TYPES, Selection, parse_policy_name

from .examples import EXAMPLES

OF_ALL_POLICIES = BreakerTripped(limit=20, wanted=21)
SELECTIONS = [
    Selection(),
    Selection(of=(ViolationStarted, LabelApplied)),
    Selection(of=(BreakerTripped, EpochChanged)),
    Selection(node="ip-10-0-0-1.ec2.internal"),
    Selection(node="other"),
    Selection(policy="demo.policy"),
    Selection(policy="demo.policy", namespace="default"),
    Selection(policy="demo.policy", namespace="other"),
    Selection(policy="demo", node="ip-10-0-0-1.ec2.internal", of=(LabelApplied,)),
]


def matches(filter_subject: str, subject: str) -> bool:
    """Whether a subject matches a filter of NATS."""
    pattern, tokens = filter_subject.split("."), subject.split(".")
    for at, wanted in enumerate(pattern):
        if wanted == ">":
            return len(tokens) > at
        if at >= len(tokens) or wanted not in ("*", tokens[at]):
            return False
    return len(pattern) == len(tokens)


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_the_filters_match_every_selected_event_once(selection: Selection) -> None:
    """The server refuses filters that overlap."""
    filters = selection_filters(selection)
    for data in (*EXAMPLES, OF_ALL_POLICIES):
        matching = [each for each in filters if matches(each, event_subject(data))]
        assert len(matching) <= 1
        assert matching or not selection.selects(data), data


def test_the_filters_leave_out_what_subjects_can_tell() -> None:
    selection = Selection(of=(ViolationStarted, PolicyAccepted), namespace="default", policy="web.v2", node="a.b")
    assert selection_filters(selection) == ["tas.events.gap", "tas.events.violation.a_b.default.web_v2.*"]
    assert selection_filters(Selection()) == ["tas.events.>"]


def selected(selection: Selection) -> set[type[Data]]:
    return {type(data) for data in EXAMPLES if selection.selects(data)}


def test_a_node_or_a_policy_selects_the_events_about_it_and_those_about_all() -> None:
    assert selected(Selection()) == set(TYPES)
    of_node = selected(Selection(node="ip-10-0-0-1.ec2.internal"))
    assert {ViolationStarted, LabelApplied, EpochChanged, Gap} <= of_node
    assert not of_node & {SourceDry, PolicyAccepted, BreakerTripped}
    of_all = {LabelsPaused, LabelsResumed, EpochChanged, Gap}
    assert selected(Selection(node="other")) == of_all
    of_policy = selected(Selection(policy="demo.policy", namespace="default"))
    assert {ViolationStarted, PolicyAccepted, BreakerTripped, EpochChanged} <= of_policy
    assert LabelApplied not in of_policy  # its policy is another one
    assert LabelApplied in selected(Selection(policy="demo", namespace="anywhere"))  # labels have no namespace
    of_other = selected(Selection(policy="demo.policy", namespace="other"))
    assert of_other == of_all | {BreakerTripped, BreakerReset}  # policies of a name share a breaker
    assert selected(Selection(of=(ViolationStarted,), node="other")) == {Gap}  # of any other type, too
    for selection in SELECTIONS:
        assert not selection.selects(Unknown(document={"policy": "demo.policy"}))
    for selection in SELECTIONS[3:8]:
        assert selection.selects(OF_ALL_POLICIES)


@pytest.mark.parametrize(("text", "parsed"), [("web", ("", "web")), ("prod/web.v2", ("prod", "web.v2"))])
def test_a_policy_is_named_with_or_without_its_namespace(text: str, parsed: tuple[str, str]) -> None:
    assert parse_policy_name(text) == parsed


@pytest.mark.parametrize("text", ["", "/web", "prod/", "a/b/c"])
def test_other_names_of_policies_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="policy"):
        parse_policy_name(text)


@pytest.mark.parametrize(
    ("field", "value"), [("node", "*"), ("node", "Node_1"), ("policy", ">"), ("policy", "a b"), ("namespace", "a.b")]
)
def test_names_that_are_no_names_are_refused(field: str, value: str) -> None:
    """They would be wildcards, or match nothing."""
    with pytest.raises(InvalidInputError):
        msgspec.structs.replace(Selection(), **{field: value})
