"""How many nodes sources may invent."""

import pytest

from tas.samples import new_nodes
from tas.samples.new_nodes import RECOUNT_SECONDS, NewNodes


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_nodes, "MAX_NODES_OF_SOURCE", 3)
    monkeypatch.setattr(new_nodes, "MAX_NODES", 5)


def admitted(nodes: NewNodes, source: str, *names: str, now: float = 0.0) -> list[str]:
    return [name for name in names if nodes.admit(source, name, now)]


def test_a_source_that_invents_nodes_leaves_room_for_others_and_known_nodes_go_on() -> None:
    nodes = NewNodes(lambda: ["known"])
    nodes.note(["known"])
    assert admitted(nodes, "bad", "a", "b", "c", "d", "e", "known", "a") == ["a", "b", "c", "known", "a"]
    assert str(nodes.refusal("sample d/bad", "node", "bad", "d")) == (
        "sample d/bad: node = 'd': is one new node too many: bad brought 3, at most 3, and all sources 4, at most 5, "
        "while no cluster says which nodes exist"
    )
    assert admitted(nodes, "good", "x", "y", "a") == ["x", "a"]
    nodes.clear()
    assert admitted(nodes, "bad", "p", "q", "r", "s") == ["p", "q", "r"]


def test_who_finds_no_room_is_told_which_source_brought_most_also_after_a_recount_and_a_restart() -> None:
    stored: list[str] = []
    nodes = NewNodes(lambda: stored)
    assert admitted(nodes, "other", "x", "y") == ["x", "y"]
    assert admitted(nodes, "bad", "a", "b", "c", "d") == ["a", "b", "c"]

    def refused(now: float) -> str:
        assert admitted(nodes, "good", "real", now=now) == []
        return str(nodes.refusal("sample real/good", "node", "good", "real"))

    named = "good brought 0, at most 3, and all sources 5 (most of the new ones bad: 3), at most 5"
    assert named in refused(1.0)
    stored += ["x", "y", "a", "b", "c"]
    assert named in refused(1.0 + RECOUNT_SECONDS)
    nodes = NewNodes(lambda: stored)  # as after a restart: which source brought the stored ones is not known
    nodes.note(stored)
    assert "good brought 0, at most 3, and all sources 5, at most 5" in refused(1.0)


def test_nodes_that_are_gone_make_room_and_are_counted_once_a_minute() -> None:
    asked: list[float] = []
    left = ["a", "seen"]

    def stored() -> list[str]:
        asked.append(now)
        return left

    nodes, now = NewNodes(stored), RECOUNT_SECONDS
    assert admitted(nodes, "one", "a", "b", "c", "d", now=now) == ["a", "b", "c"]
    assert asked == [now]
    left += ["b", "c"]  # stored only now
    now += RECOUNT_SECONDS - 1
    assert admitted(nodes, "one", *(f"n{number}" for number in range(100)), now=now) == []
    assert len(asked) == 1
    left[:] = ["a", "seen"]
    now += 1
    assert admitted(nodes, "one", "d", now=now) == [], "samples of those of the last minute may be on the way"
    now += RECOUNT_SECONDS
    assert admitted(nodes, "one", "d", "e", "f", now=now) == ["d", "e"]
    assert len(asked) == 3
