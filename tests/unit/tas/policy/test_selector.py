"""Selectors of nodes, by cases and by properties."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.policy.selector import (
    MAX_REQUIREMENTS,
    MAX_VALUES,
    LabelSelector,
    Requirement,
    SelectorError,
    SelectorOperator,
    parse_selector,
    selector_spec,
)
from tests.unit.tas.generators import anything, selectors

IN, NOT_IN = SelectorOperator.IN, SelectorOperator.NOT_IN
EXISTS, DOES_NOT_EXIST = SelectorOperator.EXISTS, SelectorOperator.DOES_NOT_EXIST

requirements = st.builds(
    Requirement,
    key=st.sampled_from("ab"),
    operator=st.sampled_from(SelectorOperator),
    values=st.frozensets(st.sampled_from(["", "x", "y"])),
)
node_labels = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "x", "y", "z"]))


@pytest.mark.parametrize(
    ("operator", "absent", "empty", "listed", "other"),
    [
        (IN, False, False, True, False),
        (NOT_IN, True, True, False, True),
        (EXISTS, False, True, True, True),
        (DOES_NOT_EXIST, True, False, False, False),
    ],
)
def test_a_requirement_by_the_value_of_the_label(
    operator: SelectorOperator, absent: bool, empty: bool, listed: bool, other: bool
) -> None:
    requirement = Requirement(key="a", operator=operator, values=frozenset({"x", "y"}))
    assert requirement.holds({"b": "x"}) is absent
    assert requirement.holds({"a": ""}) is empty
    assert requirement.holds({"a": "y"}) is listed
    assert requirement.holds({"a": "z"}) is other


def test_an_empty_selector_selects_every_node() -> None:
    assert LabelSelector().matches({})
    assert LabelSelector().matches({"a": "x"})


@given(st.lists(requirements), node_labels)
def test_all_requirements_must_hold(several: list[Requirement], labels: dict[str, str]) -> None:
    selected = LabelSelector(requirements=tuple(several)).matches(labels)
    failing = [each for each in several if not LabelSelector(requirements=(each,)).matches(labels)]
    assert selected is not bool(failing)


@given(requirements, node_labels)
def test_opposites_never_agree(requirement: Requirement, labels: dict[str, str]) -> None:
    opposite = {IN: NOT_IN, NOT_IN: IN, EXISTS: DOES_NOT_EXIST, DOES_NOT_EXIST: EXISTS}[requirement.operator]
    against = Requirement(key=requirement.key, operator=opposite, values=requirement.values)
    assert requirement.holds(labels) is not against.holds(labels)


def test_match_labels_and_match_expressions_are_read() -> None:
    found = {
        "matchLabels": {"example.com/pool": "a", "empty": ""},
        "matchExpressions": [
            {"key": "zone", "operator": "NotIn", "values": ["x", "y", "x"]},
            {"key": "gone", "operator": "DoesNotExist"},
            {"key": "there", "operator": "Exists", "values": []},
        ],
    }
    assert parse_selector(found).requirements == (
        Requirement(key="example.com/pool", operator=IN, values=frozenset({"a"})),
        Requirement(key="empty", operator=IN, values=frozenset({""})),
        Requirement(key="zone", operator=NOT_IN, values=frozenset({"x", "y"})),
        Requirement(key="gone", operator=DOES_NOT_EXIST),
        Requirement(key="there", operator=EXISTS),
    )


def test_an_empty_object_selects_every_node() -> None:
    assert parse_selector({}) == LabelSelector()


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        "a=b",
        "\ud800",
        {"matchLabels": {"\ud800": "b"}},
        {"matchlabels": {"a": "b"}},
        {1: {"a": "b"}},
        {"matchLabels": None},
        {"matchLabels": [["a", "b"]]},
        {"matchLabels": {"a": 1}},
        {"matchLabels": {1: "a"}},
        {"matchLabels": {"a b": "c"}},
        {"matchLabels": {"a/b/c": "d"}},
        {"matchLabels": {"": "d"}},
        {"matchLabels": {"a": "b c"}},
        {"matchLabels": {"a": "x" * 64}},
        {"matchExpressions": {}},
        {"matchExpressions": ["a"]},
        {"matchExpressions": [{"operator": "Exists"}]},
        {"matchExpressions": [{"key": "a"}]},
        {"matchExpressions": [{"key": "a", "operator": "exists"}]},
        {"matchExpressions": [{"key": "a", "operator": "Exists", "value": "b"}]},
        {"matchExpressions": [{"key": "a", "operator": "In"}]},
        {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]},
        {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": "b"}]},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": [1]}]},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["-b"]}]},
    ],
    ids=repr,
)
def test_values_that_the_api_server_refuses_and_unknown_fields_are_refused(found: Any) -> None:
    with pytest.raises(SelectorError):
        parse_selector(found)


@given(selectors)
def test_a_written_selector_reads_back(selector: LabelSelector) -> None:
    assert parse_selector(json.loads(json.dumps(selector_spec(selector)))) == selector


@given(anything(("matchLabels", "matchExpressions", "key", "operator", "values", "In", "Exists", "a")))
def test_anything_is_a_selector_or_refused(found: Any) -> None:
    try:
        selector = parse_selector(found)
    except SelectorError as error:
        str(error).encode()
    else:
        assert parse_selector(selector_spec(selector)) == selector


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ({}, ""),
        ({"matchLabels": {"zone": "a", "arch": "arm64"}}, "zone in (a),arch in (arm64)"),
        ({"matchExpressions": [{"key": "k", "operator": "NotIn", "values": ["b", "a"]}]}, "k notin (a,b)"),
        (
            {"matchExpressions": [{"key": "x", "operator": "Exists"}, {"key": "y", "operator": "DoesNotExist"}]},
            "x,!y",
        ),
    ],
)
def test_the_text_of_a_selector_is_that_of_kubectl(selector: dict[str, object], text: str) -> None:
    assert str(parse_selector(selector)) == text


def test_a_selector_is_refused_beyond_each_bound() -> None:
    labels = {f"label-{number}": "" for number in range(20)}
    exists = [{"key": f"key-{number}", "operator": "Exists"} for number in range(MAX_REQUIREMENTS - 20)]
    full = parse_selector({"matchLabels": labels, "matchExpressions": exists})
    assert len(full.requirements) == MAX_REQUIREMENTS
    assert parse_selector(selector_spec(full)) == full
    with pytest.raises(SelectorError, match="51 matchLabels and matchExpressions"):
        parse_selector({"matchLabels": labels | {"one-more": ""}, "matchExpressions": exists})
    values = [f"value-{number}" for number in range(MAX_VALUES)]
    assert parse_selector({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]})
    with pytest.raises(SelectorError, match="51 values of 'a'"):
        parse_selector({"matchExpressions": [{"key": "a", "operator": "In", "values": [*values, "one-more"]}]})
