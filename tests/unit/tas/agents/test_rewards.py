"""The agent `rl-priority`, by the vectors of its rewards."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tas.agents.rewards
from tas.agent import Outcome, PodDemand, Result
from tas.agents.hooks import to_points
from tas.agents.rewards import RewardOptions, Rewards
from tas.errors import InvalidInputError
from tests.unit.tas.agents.nodes import Nodes

FAILED, SUCCEEDED, RUNNING = Result.FAILED, Result.SUCCEEDED, Result.RUNNING


def outcome(number: int, result: Result, **fields: Any) -> Outcome:
    usual: dict[str, Any] = {
        "namespace": "n",
        "uid": f"u{number}",
        "node": "n0",
        "container": "main",
        "restart": 0,
        "at": 0.0,
        "labels": {"app": "web"},
    }
    return Outcome(result=result, **(usual | fields))


def after(*results: Result, options: RewardOptions | None = None) -> Rewards:
    agent = Rewards(options or RewardOptions())
    for number, result in enumerate(results):
        agent.observe(outcome(number, result))
    return agent


def known(agent: Rewards, namespace: str, kinds: Sequence[str], nodes: Sequence[str]) -> list[tuple[str, str]]:
    """The kinds and nodes among these of which the agent has a reward."""
    return [(kind, node) for kind in kinds for node in nodes if agent.reward(namespace, kind, node) != 1.0]


def count(agent: Rewards) -> int:
    return sum(len(rewards) for _, rewards in agent.snapshot()["rewards"])


def pod(**labels: str) -> PodDemand:
    return PodDemand(namespace="n", name="p", uid="u", labels=labels)


def score(agent: Rewards, **labels: str) -> list[int]:
    """As with `compat`; -1 without an opinion."""
    scores = agent.score(pod(**(labels or {"app": "web"})), Nodes(2))
    points = to_points(scores, agent.missing, agent.original_rounding)
    return [each if known else -1 for each, known in zip(points, scores.known, strict=True)]


@pytest.mark.parametrize(
    ("failures", "reward", "points"),
    [
        pytest.param(1, 0.9, 9, id="vector-R1"),
        pytest.param(2, 0.81, 8, id="vector-R2"),
        pytest.param(5, 0.59049, 5, id="vector-R3"),
        pytest.param(7, 0.4782969, 4, id="vector-R4"),
        pytest.param(22, 0.098477, 0, id="vector-R5"),
    ],
)
def test_vector_of_failures(failures: int, reward: float, points: int) -> None:
    agent = after(*[FAILED] * failures)
    assert agent.reward("n", "web", "n0") == pytest.approx(reward, abs=1e-6)
    assert score(agent) == [points, 10]


@pytest.mark.parametrize(
    ("successes", "reward", "points"),
    [(1, 0.91, 9), (44, 0.99903, 9), (115, 0.999999, 9), (116, 1.0, 10)],
)
def test_vector_r6_one_failure_and_then_successes(successes: int, reward: float, points: int) -> None:
    agent = after(FAILED, *[RUNNING] * successes)
    assert agent.reward("n", "web", "n0") == pytest.approx(reward, abs=1e-6)
    assert score(agent) == [points, 10]


def test_defect_k6_a_node_gets_to_the_best_score_again() -> None:
    """The original keeps 9 for 116 successes, by rounding to six digits."""
    agent = after(FAILED, *[RUNNING] * 30)
    (value, _) = agent.score(pod(app="web"), Nodes(2)).values
    assert math.floor(10 * value + 0.5) == 10


def test_defect_k1_and_vector_r7_a_new_node_is_tried() -> None:
    """The original begins with 0 there, and so never tries the node."""
    agent = after(*[RUNNING] * 5)
    assert agent.reward("n", "web", "new") == 1.0
    assert after(FAILED, FAILED).reward("n", "web", "new") == 1.0


def test_vector_r8_a_kind_that_was_never_seen_has_no_preference() -> None:
    assert score(after(FAILED), app="other") == [10, 10]


def test_defect_k7_a_pod_without_kind_is_no_kind_of_its_own() -> None:
    """Nothing is learned and nothing is said."""
    agent = Rewards(RewardOptions())
    agent.observe(outcome(0, FAILED, labels={"other": "x"}))
    assert agent.snapshot()["rewards"] == []
    assert score(agent, other="x") == [-1, -1]


@pytest.mark.parametrize(
    ("labels", "known"), [({"podtype": "web", "app": "x"}, True), ({"name": "web"}, True), ({"app": ""}, False)]
)
def test_the_labels_that_name_a_kind(labels: dict[str, str], known: bool) -> None:
    scores = after(FAILED).score(pod(**labels), Nodes(1))
    assert scores.known.tolist() == [known]
    assert not known or scores.values.tolist() == [0.9]


@pytest.mark.parametrize(
    ("times", "reward"),
    [
        pytest.param({"started": 50.0, "finished": 651.0}, 0.95, id="after a long time"),
        pytest.param({"started": 50.0, "finished": 650.0}, 0.9, id="soon"),
        pytest.param({"started": 350.0, "finished": 651.0, "previous_finished": 50.0}, 0.9, id="after a long back-off"),
        pytest.param({"started": 5410.0, "previous_finished": 50.0}, 0.95, id="vector-R9, without the end of the run"),
        pytest.param({"finished": 5410.0}, 0.9, id="without the start of the run"),
        pytest.param({}, 0.9, id="without times"),
    ],
)
def test_defect_k2_and_vector_r9_a_failure_after_a_long_time_counts_half(
    times: dict[str, float], reward: float
) -> None:
    """The original compares seconds of a minute, so it never sees a long time."""
    agent = Rewards(RewardOptions())
    agent.observe(outcome(0, FAILED, restart=1, **times))
    assert agent.reward("n", "web", "n0") == pytest.approx(reward)


def test_a_run_that_has_ended_well_gives_no_reward() -> None:
    """Else nodes on which Jobs end well would be worse than nodes that were never tried."""
    assert after(FAILED, SUCCEEDED).reward("n", "web", "n0") == pytest.approx(0.9)
    assert after(SUCCEEDED).reward("n", "web", "n0") == 1.0


@pytest.mark.parametrize("at", [math.inf, -math.inf, math.nan, 1e12])
def test_a_clock_that_is_ahead_or_none_forgets_nothing(at: float) -> None:
    """One event makes it at most an hour later."""
    agent = after(FAILED)
    agent.observe(outcome(1, FAILED, at=at))
    assert agent.reward("n", "web", "n0") <= 0.9


def test_defect_k3_a_run_counts_once() -> None:
    """Not for each change of the pod, and again after its end. Each restart is a run of its own."""
    agent = Rewards(RewardOptions())
    for result in (FAILED, FAILED, RUNNING, SUCCEEDED):
        agent.observe(outcome(0, result))
    assert agent.reward("n", "web", "n0") == pytest.approx(0.9)
    agent.observe(outcome(0, RUNNING, restart=1))
    assert agent.reward("n", "web", "n0") == pytest.approx(0.91)
    agent.observe(outcome(0, RUNNING, restart=1))
    agent.observe(outcome(0, FAILED, restart=1))
    assert agent.reward("n", "web", "n0") == pytest.approx(0.819)


def test_defect_k7_what_is_not_seen_any_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a time, and above a number."""
    agent = Rewards(RewardOptions(forget_seconds=100.0))
    agent.observe(outcome(0, FAILED, node="old", at=0.0))
    agent.observe(outcome(1, FAILED, node="new", at=99.0))
    assert count(agent) == 2
    agent.observe(outcome(2, FAILED, node="new", at=100.0))
    assert (count(agent), known(agent, "n", ["web"], ["old", "new"])) == (1, [("web", "new")])
    monkeypatch.setattr(tas.agents.rewards, "MAX_REWARDS", 3)
    monkeypatch.setattr(tas.agents.rewards, "MAX_RUNS", 4)
    for number in range(10):
        agent.observe(outcome(number, FAILED, node=f"n{number}", at=100.0))
    nodes = [f"n{number}" for number in range(10)]
    assert known(agent, "n", ["web"], nodes) == [("web", "n7"), ("web", "n8"), ("web", "n9")]
    assert (count(agent), len(agent.snapshot()["runs"])) == (3, 4)


def test_the_pods_of_another_namespace_are_of_another_kind() -> None:
    """Whoever may create pods anywhere could else make the pods of others avoid every node."""
    agent, original = Rewards(RewardOptions()), Rewards(RewardOptions(by_namespace=False))
    for each in (agent, original):
        each.observe(outcome(0, FAILED, namespace="hostile"))
    assert score(agent) == [10, 10]
    assert score(original) == [9, 10]
    agent.observe(outcome(1, FAILED))
    assert score(agent) == [9, 10]


def test_the_namespace_with_the_most_rewards_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tas.agents.rewards, "MAX_REWARDS", 5)
    agent = Rewards(RewardOptions())
    agent.observe(outcome(0, FAILED))
    for number in range(1, 10):
        agent.observe(outcome(number, FAILED, namespace="hostile", labels={"app": f"kind-{number}"}))
    kinds = [f"kind-{number}" for number in range(1, 10)]
    assert known(agent, "n", ["web"], ["n0"]) == [("web", "n0")]
    assert known(agent, "hostile", kinds, ["n0"]) == [(kind, "n0") for kind in kinds[5:]]
    assert count(agent) == 5
    other = Rewards(RewardOptions())
    other.restore(agent.snapshot())
    for each in (agent, other):
        each.observe(outcome(20, FAILED, labels={"app": "more"}))
    assert other.snapshot() == agent.snapshot()


def test_a_kind_is_no_node_and_the_parts_of_a_run_are_not_mixed_up() -> None:
    """Names are remembered as digests."""
    agent = after(FAILED)
    agent.observe(outcome(1, FAILED, node="web", labels={"app": "n1"}))
    assert known(agent, "n", ["web", "n0", "n1"], ["web", "n0", "n1"]) == [("web", "n0"), ("n1", "web")]
    agent = Rewards(RewardOptions())
    runs = [("a", 1, "b"), ("a", 1, "c"), ("a", 2, "b"), ("a1", 1, "b"), ("a", 11, "b"), ("a", 1, "1b")]
    for uid, restart, container in runs * 2:
        agent.observe(outcome(0, FAILED, uid=uid, restart=restart, container=container))
    assert agent.reward("n", "web", "n0") == pytest.approx(0.9 ** len(runs))


@pytest.mark.parametrize(("kind", "container", "node"), [("k", "c", "n"), ("k" * 63, "c" * 63, "n" * 253)])
def test_long_names_make_no_larger_state(kind: str, container: str, node: str) -> None:
    """What is stored must fit a message of the bus."""
    agent = Rewards(RewardOptions())
    for number in range(20):
        usual = {"node": f"{number:02}{node}", "container": container, "labels": {"app": kind}}
        agent.observe(outcome(number, FAILED, **usual))
    assert len(msgspec.json.encode(agent.snapshot())) < 20 * 75


def test_of_names_of_any_length_in_requests_nothing_is_kept() -> None:
    """A request may have 4 MiB of names, and the digests of 65,536 names are kept."""
    agent = after(FAILED)

    def ask(namespace: str, kind: str, node: str) -> list[float]:
        nodes = Nodes(2)
        nodes.names = (node, "n0")
        asked = PodDemand(namespace=namespace, name="p", uid="u", labels={"app": kind})
        return list(agent.score(asked, nodes).values)

    assert ask("n", "web", "other") == [1.0, 0.9]
    kept = tas.agents.rewards._kept_digest.cache_info().currsize
    for number in range(3):
        assert ask("n", "web", "x" * 254 + str(number)) == [1.0, 0.9]
        assert ask("n", "x" * 254 + str(number), "other") == [1.0, 1.0]
        assert ask("x" * 254 + str(number), "web", "other") == [1.0, 1.0]
    assert tas.agents.rewards._kept_digest.cache_info().currsize == kept


@pytest.mark.parametrize("at", [100.0, 100.2])
def test_a_reward_that_is_over_counts_for_no_replica(at: float) -> None:
    """From the end of its time on. A replica that has just searched for old rewards keeps it for a second longer than
    one that has just started.
    """
    running = Rewards(RewardOptions(forget_seconds=100.0))
    running.observe(outcome(0, FAILED, at=0.0))
    running.observe(outcome(1, FAILED, node="other", at=99.5))
    started = Rewards(RewardOptions(forget_seconds=100.0))
    started.restore(running.snapshot())
    for each in (running, started):
        each.observe(outcome(2, FAILED, at=at))
    assert running.reward("n", "web", "n0") == started.reward("n", "web", "n0") == 0.9


def test_what_changed_last_is_forgotten_last_and_nothing_is_left_of_a_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tas.agents.rewards, "MAX_REWARDS", 2)
    agent = Rewards(RewardOptions(forget_seconds=100.0))
    for number, node in enumerate(("a", "b", "a", "c")):
        agent.observe(outcome(number, FAILED, node=node, at=0.0))
    assert (count(agent), known(agent, "n", ["web"], "abc")) == (2, [("web", "a"), ("web", "c")])
    # At the end of their time, even if the event itself is older than the last one.
    agent.observe(outcome(10, SUCCEEDED, at=100.0))
    assert (agent.snapshot()["rewards"], agent._rewards) == ([], {})


def test_a_restored_agent_knows_the_time() -> None:
    """So a clock that is ahead makes it at most an hour later."""
    agent, before = after(FAILED), after(FAILED).snapshot()
    agent.restore(before)
    agent.observe(outcome(1, SUCCEEDED, at=1e12))
    assert agent.snapshot()["rewards"] == before["rewards"]
    # A running agent that gets an older state searches for old rewards anew.
    running = Rewards(RewardOptions(forget_seconds=100.0))
    running.observe(outcome(0, FAILED, at=1000.0))
    running.restore(before)
    running.observe(outcome(1, SUCCEEDED, at=100.0))
    assert running.snapshot()["rewards"] == []


RUNS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from(list(Result)), st.floats(0.0, 1e6)), max_size=30
)


def observe(agent: Rewards, runs: Sequence[tuple[int, int, Result, float]]) -> None:
    for number, restart, result, at in runs:
        agent.observe(outcome(number, result, restart=restart, node=f"n{number % 2}", at=at, previous_finished=at / 2))


@given(RUNS, st.floats(0.0, 1.0))
def test_a_reward_is_a_part_and_what_comes_again_has_no_effect(
    runs: list[tuple[int, int, Result, float]], weight: float
) -> None:
    agent = Rewards(RewardOptions(weight=weight))
    observe(agent, runs)
    assert all(0.0 <= value <= 1.0 for _, rewards in agent.snapshot()["rewards"] for _, value, _ in rewards)
    again = Rewards(RewardOptions(weight=weight))
    again.restore(agent.snapshot())
    observe(again, runs)
    assert again.snapshot() == agent.snapshot()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"rewards": [[1, [[2, 1.5, 0.0]]]]},
        {"rewards": [["web"]]},
        {"rewards": [[1, [[key, 0.5, 0.0] for key in range(10_001)]], [2, [[key, 0.5, 0.0] for key in range(10_000)]]]},
        {"runs": "x"},
        {"runs": [[1, "lost"]]},
        {"runs": [[key, "failed"] for key in range(10_001)]},
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    agent = after(FAILED)
    before = agent.snapshot()
    with pytest.raises(InvalidInputError, match="rl-priority"):
        agent.restore({**before, **change})
    assert agent.snapshot() == before
