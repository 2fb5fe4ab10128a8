"""Edits of YAML: the result has the wanted value, and every line about something else stays as it is."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tas.configuring.editing import MAX_COMPARED, EditError, edited, rendered
from tests.unit.growth import grows_linearly
from workers.process.manifests import read_yaml_tree

TEXT = st.sampled_from(
    ["a", "b: c", "yes", "1", "1s", "", "- x", "--v=2", "é", "#", "null", "a,b", "0x1", ".5", "a #b"]
)
SCALARS = st.one_of(TEXT, st.integers(-9, 9), st.booleans(), st.none())
KEYS = st.sampled_from(["name", "on", "path", "x", "y z", "10"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)


def value_of(text: str) -> Any:
    return read_yaml_tree(text).value


@given(DOCUMENTS)
@settings(max_examples=40)
def test_a_rendered_value_is_read_back(document: dict[str, Any]) -> None:
    assert value_of(rendered(document)) == document


@given(DOCUMENTS, DOCUMENTS, st.sampled_from(["block", "flow", "mixed", "json"]))
@settings(max_examples=60)
def test_an_edited_text_has_the_wanted_value(before: dict[str, Any], after: dict[str, Any], style: str) -> None:
    flow = {"block": False, "flow": True, "mixed": None}
    text = json.dumps(before) if style == "json" else yaml.safe_dump(before, default_flow_style=flow[style])
    try:
        result = edited(text, after, read_yaml_tree)
    except EditError:
        assume(False)  # refused, and nothing is written; Hypothesis fails if most are
    assert json.dumps(value_of(result), sort_keys=True) == json.dumps(after, sort_keys=True)


ITEMS = st.lists(st.sampled_from(["--a=1", "--b", "--c=x"]), min_size=1, max_size=4)


@settings(max_examples=60)
@given(ITEMS, ITEMS, st.sampled_from(["", "  "]), st.sampled_from(["\n", "\r\n"]))
def test_only_the_lines_of_changed_items_differ(before: list[str], after: list[str], indent: str, end: str) -> None:
    """The hard case: comments and blank lines between, at the end and around; odd spaces; no order of keys."""
    head = ["# first  ", "zeta:   1 # odd", "words:"]
    tail = ["# after the list", "", "alpha: {b: 2,   a: [1,  2]} # flow", "text: |", "  # no comment", "", "# last"]
    items = [line for word in before for line in (f"{indent}# about {word}", f"{indent}- {word}   # trailing")]
    text = end.join([*head, *items, *tail])
    document = value_of(text)

    result = edited(text, document | {"words": after}, read_yaml_tree)

    assert value_of(result)["words"] == after
    assert result.startswith(end.join(head) + end)
    assert result.rstrip("\r\n").endswith(end.join(tail))
    kept = [line for line in result.split(end) if line in items]
    comments = [line for line in items if line.lstrip().startswith("#")]
    assert [line for line in kept if line.lstrip().startswith("#")] == comments
    if before == after:
        assert result == text


def test_equal_values_are_no_edit() -> None:
    text = "b:    1\na: [ 1,2 ]"
    assert edited(text, {"a": [1, 2], "b": 1}, read_yaml_tree) is text


def test_a_value_that_another_one_uses_by_its_anchor_is_not_edited() -> None:
    with pytest.raises(EditError, match="anchors"):
        edited("a: &x {b: 1}\nc: *x\n", {"a": {"b": 2}, "c": {"b": 1}}, read_yaml_tree)


def test_an_item_that_shares_its_line_is_deleted_alone() -> None:
    assert edited("- - a\n  - b # b\n", [["b"]], read_yaml_tree) == "- - b # b\n"


def test_a_new_key_has_its_comment() -> None:
    text = edited("a: 1 # mine\n", {"a": 1, "weight": 5}, read_yaml_tree, {"weight": "the reason", "a": "no"})
    assert text == "a: 1 # mine\nweight: 5  # the reason\n"


@pytest.mark.parametrize("style", ["block", "flow"])
def test_a_long_list_is_edited_in_linear_time(style: str) -> None:
    """The hard case: equal items, of which each may be any other one."""

    def prepare(size: int) -> Callable[[], object]:
        before = ["first", *["a"] * size, "last"]
        lines = "".join(f"\n- {each}" for each in before)
        text = f"words: {json.dumps(before) if style == 'flow' else lines}\n"
        after = {"words": [*before[:-1], "new"]}

        def edit() -> None:
            assert value_of(edited(text, after, read_yaml_tree)) == after

        return edit

    assert grows_linearly(prepare, 4_000)


def test_a_list_that_changes_around_many_items_is_refused_before_a_comment_gets_to_another_item() -> None:
    def lines_after(size: int, *kept: str) -> list[str]:
        items = [f"a{number}" for number in range(size)]
        lines = [f"- {each}  # about {each}" for each in items]
        text = "\n".join(["words:", "- first", *lines, "- last", ""])
        result = edited(text, {"words": list(kept) or [*items, "new"]}, read_yaml_tree)
        assert kept or result.splitlines()[1:-1] == lines
        return result.splitlines()

    assert lines_after(MAX_COMPARED - 2)[-1] == "- new"
    with pytest.raises(EditError, match=f"a list changes around more than {MAX_COMPARED} items"):
        lines_after(MAX_COMPARED - 1)
    assert lines_after(2 * MAX_COMPARED, "first", "last") == ["words:", "- first", "- last"], "nothing is compared"
