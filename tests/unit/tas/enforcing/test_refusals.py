"""The refused labels of all nodes, by the names of their policies."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.enforcing.marks import Basis, MarkChange, MarkKind, Taint, mark_policy
from tas.enforcing.memory import DeclinedChange
from tas.enforcing.refusals import MAX_REASON, Refusals, combined, reason_of
from tas.policy.policy import LABEL_PREFIX
from tas.verdict.refused import MAX_LABELS, MAX_NODES, RefusedLabel

CARD = f"{LABEL_PREFIX}p/card"


def test_one_reason_on_many_nodes_is_one_short_entry() -> None:
    refusals = Refusals()
    for number in range(5000):
        node = f"n{number:04}"
        refusals.set(
            node, {"p": DeclinedChange("violating", reason_of(f'nodes "{node}" is forbidden: {"x" * 9999}', node))}
        )
    assert refusals.changed == set(refusals.names) == {"p"}
    (found,) = refusals.of("p", ())
    assert (found.label, found.value, found.count, found.nodes) == ("p", "violating", 5000, ("n0000", "n0001", "n0002"))
    assert len(found.reason) == MAX_REASON
    assert found.reason.startswith('nodes "NODE" is forbidden: x')


def test_a_refusal_again_changes_nothing_and_the_last_node_removes_the_entry() -> None:
    refusals = Refusals()
    refused = {"p": DeclinedChange("violating", "why"), CARD: DeclinedChange(None, "no")}
    refusals.set("a", refused)
    refusals.set("b", {"q": DeclinedChange("violating", "why")})
    assert [each.label for each in refusals.of("p", ())] == ["p", CARD]
    refusals.changed.clear()
    refusals.set("a", dict(refused))
    assert not refusals.changed
    refusals.set("a", {CARD: DeclinedChange(None, "no")})
    assert refusals.changed == {"p"}
    assert [each.label for each in refusals.of("p", ())] == [CARD]
    refusals.set("a", {})
    assert refusals.of("p", ()) == ()
    assert set(refusals.names) == {"q"}


def test_the_stored_reason_stays_while_it_is_that_of_a_node_else_the_commonest_counts() -> None:
    refusals = Refusals()
    for node, reason in (("a", "request 1"), ("b", "other"), ("c", "other")):
        refusals.set(node, {"p": DeclinedChange("violating", reason)})
    before = RefusedLabel(label="p", value="violating", reason="request 1", count=1, nodes=("a",))
    assert [each.reason for each in refusals.of("p", ())] == ["other"]
    assert [each.reason for each in refusals.of("p", (before,))] == ["request 1"]
    refusals.set("a", {"p": DeclinedChange("violating", "request 2")})
    assert [each.reason for each in refusals.of("p", (before,))] == ["other"]


def test_the_labels_of_a_policy_are_bounded() -> None:
    refusals = Refusals()
    refusals.set("a", {f"{CARD}{number:02}": DeclinedChange("1", "why") for number in reversed(range(40))})
    assert [each.label for each in refusals.of("p", ())] == [f"{CARD}{number:02}" for number in range(MAX_LABELS)]


def test_of_two_incomplete_lists_each_label_counts_as_on_the_more_nodes() -> None:
    def refused(label: str, count: int, reason: str) -> RefusedLabel:
        return RefusedLabel(label=label, value="1", reason=reason, count=count, nodes=("a",))

    before = [refused(f"{CARD}0", 2, "stored"), refused(f"{CARD}1", 1, "stored")]
    found = [refused(f"{CARD}{number}", 2, "found") for number in range(MAX_LABELS + 1)]
    reasons = [(each.label, each.reason) for each in combined(before, found)]
    assert reasons == [(f"{CARD}{n}", "stored" if n == 0 else "found") for n in [0, 1, 10, *range(2, MAX_LABELS - 1)]]


def test_refused_marks_are_by_the_name_of_their_policy() -> None:
    refusals = Refusals(mark_policy)
    taint = MarkChange(MarkKind.TAINT, "a.b", Taint("violating", "NoSchedule"), Basis.LABEL)
    refusals.set("n", {taint.mark: DeclinedChange(taint.text, "why")})
    assert refusals.changed == set(refusals.names) == {"a.b"}
    (found,) = refusals.of("a.b", ())
    assert (found.label, found.value) == ("taint telemetry.aware.scheduling/a.b", "NoSchedule")


@pytest.mark.parametrize(
    ("text", "node", "found"),
    [
        ('nodes "a" is forbidden: a b', "a", 'nodes "NODE" is forbidden: NODE b'),
        ("node-1 and node-10, node-1.example.com, node-1.", "node-1", "NODE and node-10, node-1.example.com, NODE."),
        ("two\nlines", "a", "two\\nlines"),
    ],
)
def test_a_reason_is_one_line_without_the_name_of_the_node(text: str, node: str, found: str) -> None:
    assert reason_of(text, node) == found


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"),
            st.dictionaries(
                st.sampled_from(["p", CARD]),
                st.builds(DeclinedChange, st.sampled_from(["1", None]), st.sampled_from("xy")),
            ),
        ),
        max_size=30,
    )
)
def test_the_entries_are_those_of_the_last_state_of_each_node(
    changes: list[tuple[str, dict[str, DeclinedChange]]],
) -> None:
    refusals = Refusals()
    nodes: defaultdict[tuple[str, str | None], list[str]] = defaultdict(list)
    for node, refused in changes:
        refusals.set(node, refused)
    for node, refused in sorted(dict(changes).items()):
        for label, refusal in refused.items():
            nodes[label, refusal.value].append(node)
    found = {(each.label, each.value): (each.count, each.nodes) for each in refusals.of("p", ())}
    assert found == {key: (len(names), tuple(names[:MAX_NODES])) for key, names in nodes.items()}
    assert set(refusals.names) == ({"p"} if nodes else set())
