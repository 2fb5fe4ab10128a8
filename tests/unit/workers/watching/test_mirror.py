"""What a replica does about a key: told by the API server, standing in the bucket."""

import pytest

from bus.records.nodes import NodeFacts
from workers.following.records import Stored
from workers.watching.mirror import Observation, Step, next_step, version_number


def observed(record: str | None, version: int, *, applied: int = 100) -> Observation[NodeFacts]:
    return Observation(
        record=None if record is None else facts(record, version), version=version, at=0.0, applied=applied
    )


def facts(uid: str, version: int) -> NodeFacts:
    return NodeFacts(uid=uid, labels={}, resource_version=str(version))


def stands(uid: str, version: int, *, revision: int = 50) -> Stored[NodeFacts]:
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
        pytest.param(observed("b", 7), stands("a", 6), Step.WRITE, id="changed"),
        pytest.param(observed("b", 7), stands("a", 6, revision=150), Step.WRITE, id="another-wrote-an-older-version"),
        pytest.param(observed("a", 6), stands("b", 7), Step.WAIT, id="another-has-read-a-later-version"),
        pytest.param(observed("a", 6), stands("b", 7, revision=150), Step.WAIT, id="and-wrote-it-since"),
        pytest.param(
            observed("a", 6), stands("b", 6, revision=150), Step.WAIT, id="another-says-otherwise-of-the-same"
        ),
        pytest.param(observed("a", 6), stands("b", 6), Step.WRITE, id="and-said-so-before-we-were-told"),
        pytest.param(observed("a", 7), DELETED_BEFORE, Step.WRITE, id="created-again"),
        pytest.param(observed("a", 7), DELETED_SINCE, Step.WAIT, id="deleted-after-we-were-told"),
        pytest.param(observed("a", 7), UNREADABLE_BEFORE, Step.WRITE, id="unreadable"),
        pytest.param(observed("a", 7), UNREADABLE_SINCE, Step.WAIT, id="unreadable-since"),
        pytest.param(observed(None, 7), stands("a", 6), Step.WRITE, id="gone"),
        pytest.param(observed(None, 6), stands("a", 7), Step.WAIT, id="gone-but-another-has-read-of-it-later"),
        pytest.param(observed(None, 7), UNREADABLE_BEFORE, Step.WRITE, id="gone-and-unreadable"),
        pytest.param(None, stands("a", 6), Step.WAIT, id="never-heard-of"),
        pytest.param(None, UNREADABLE_SINCE, Step.WAIT, id="never-heard-of-and-unreadable"),
        pytest.param(None, DELETED_SINCE, Step.LEAVE, id="never-heard-of-and-deleted"),
        pytest.param(None, NEVER, Step.LEAVE, id="nothing"),
    ],
)
def test_where_they_differ_the_later_reading_is_right(
    what: Observation[NodeFacts] | None, stored: Stored[NodeFacts], step: Step
) -> None:
    assert next_step(what, stored, same=False) is step


@pytest.mark.parametrize("stored", [stands("a", 7), stands("a", 8, revision=150), stands("a", 6)])
def test_what_is_the_same_is_left_alone_whoever_wrote_it(stored: Stored[NodeFacts]) -> None:
    assert next_step(observed("a", 7), stored, same=True) is Step.LEAVE


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("4711", 4711), ("", 0), ("x1", 0), ("-1", 0), ("²", 0)])
def test_versions_are_compared_as_numbers(text: str, number: int) -> None:
    assert version_number(text) == number
