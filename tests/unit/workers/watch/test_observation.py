"""What a replica does with a key, by what it observed in the API server and what the bucket has."""

import pytest

from bus.records.nodes import NodeFacts
from workers.following.records import Stored
from workers.kubernetes.resources import version_number
from workers.watch.observation import Observation, Step, next_step


def observed(record: str | None, version: int, *, applied: int = 100) -> Observation[NodeFacts]:
    return Observation(
        record=None if record is None else facts(record, version), version=version, at=0.0, applied=applied
    )


def facts(uid: str, version: int) -> NodeFacts:
    return NodeFacts(uid=uid, labels={}, resource_version=str(version))


def record(uid: str, version: int, *, revision: int = 50) -> Stored[NodeFacts]:
    return Stored(revision, facts(uid, version), present=True)


NEVER: Stored[NodeFacts] = Stored(0)
DELETED_BEFORE: Stored[NodeFacts] = Stored(50)
DELETED_SINCE: Stored[NodeFacts] = Stored(150)
UNREADABLE_BEFORE: Stored[NodeFacts] = Stored(50, None, present=True)
UNREADABLE_SINCE: Stored[NodeFacts] = Stored(150, None, present=True)


@pytest.mark.parametrize(
    ("what", "stored", "step"),
    [
        pytest.param(observed("a", 7), NEVER, Step.WRITE, id="new"),
        pytest.param(observed("b", 7), record("a", 6), Step.WRITE, id="changed"),
        pytest.param(observed("b", 7), record("a", 6, revision=150), Step.WRITE, id="an-older-version-written-since"),
        pytest.param(observed("a", 6), record("b", 7), Step.WAIT, id="a-later-version-is-stored"),
        pytest.param(observed("a", 6), record("b", 7, revision=150), Step.WAIT, id="a-later-version-written-since"),
        pytest.param(observed("a", 6), record("b", 6, revision=150), Step.WAIT, id="equal-version-written-since"),
        pytest.param(observed("a", 6), record("b", 6), Step.WRITE, id="equal-version-written-before"),
        pytest.param(observed("a", 7), DELETED_BEFORE, Step.WRITE, id="created-again"),
        pytest.param(observed("a", 7), DELETED_SINCE, Step.WAIT, id="deleted-since"),
        pytest.param(observed("a", 7), UNREADABLE_BEFORE, Step.WRITE, id="unreadable"),
        pytest.param(observed("a", 7), UNREADABLE_SINCE, Step.WAIT, id="unreadable-since"),
        pytest.param(observed(None, 7), record("a", 6), Step.WRITE, id="deleted-object"),
        pytest.param(observed(None, 6), record("a", 7), Step.WAIT, id="deleted-object-but-a-later-version-is-stored"),
        pytest.param(observed(None, 7), UNREADABLE_BEFORE, Step.WRITE, id="deleted-object-and-unreadable"),
        pytest.param(None, record("a", 6), Step.WAIT, id="never-observed"),
        pytest.param(None, UNREADABLE_SINCE, Step.WAIT, id="never-observed-and-unreadable"),
        pytest.param(None, DELETED_SINCE, Step.LEAVE, id="never-observed-and-deleted"),
        pytest.param(None, NEVER, Step.LEAVE, id="nothing"),
    ],
)
def test_of_two_different_versions_the_later_counts(
    what: Observation[NodeFacts] | None, stored: Stored[NodeFacts], step: Step
) -> None:
    assert next_step(what, stored, same=False) is step


@pytest.mark.parametrize("stored", [record("a", 7), record("a", 8, revision=150), record("a", 6)])
def test_an_equal_record_is_not_written_again(stored: Stored[NodeFacts]) -> None:
    assert next_step(observed("a", 7), stored, same=True) is Step.LEAVE


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("4711", 4711), ("", 0), ("x1", 0), ("-1", 0), ("²", 0)])
def test_versions_are_compared_as_numbers(text: str, number: int) -> None:
    assert version_number(text) == number


def test_a_record_with_a_version_of_any_length_is_replaced() -> None:
    endless = Stored(50, NodeFacts(uid="a", labels={}, resource_version="9" * 5000), present=True)
    assert next_step(observed("a", 7), endless, same=False) is Step.WRITE
