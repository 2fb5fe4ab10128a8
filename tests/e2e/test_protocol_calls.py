"""How a real scheduler calls extenders: its time limit, the order of extenders, the nodes, and the sum of scores.

As in `test_protocol`, our answers rely on these facts; `cN` is the id of a fact in docs/background/facts.md.
"""

import time
from collections.abc import Callable, Iterator

import pytest

from .cluster import NODES, Cluster, extender
from .processes import until
from .recorder import FILTER, PREEMPT, PRIORITIZE, Answer, Request, Response, answer_with, passing, recording, scoring

LATE_SECONDS = 40.0
"""Much longer than the time limit of the scheduler."""

FIRST, SECOND, THIRD = NODES


def filtering(answer: Callable[[Request], Response], scores: dict[str, int] | None = None) -> Answer:
    """Answers filter with `answer`, and prioritize with these scores."""
    return lambda request: answer(request) if request.verb == FILTER else scoring(scores or {})


def test_facts_c1_an_error_is_not_retried_in_the_same_cycle_and_slashes_after_the_prefix_are_ignored(
    cluster: Cluster, namespace: str
) -> None:
    """The next cycle begins at least a second after a failed one (facts.md c18), so an earlier call is of the same."""
    times: list[float] = []

    def answer(_: Request) -> Response:
        times.append(time.monotonic())
        return Response(503, b"")

    with recording(answer) as recorder, cluster.scheduler(extender(f"{recorder.url}///", names_only=True)):
        cluster.create_pod(namespace, "web")
        cluster.rejected(namespace, "web", containing="code 503")
        until(lambda: len(times) >= 2, "the next cycle")
    assert {request.verb for request in recorder.requests} == {FILTER}
    assert times[1] - times[0] > 0.9


@pytest.mark.parametrize("late", ["headers", "body"])
def test_facts_c2_the_time_limit_includes_the_body_of_the_answer(cluster: Cluster, namespace: str, late: str) -> None:
    def answer(request: Request) -> Response:
        if late == "headers":
            until(lambda: released, "the scheduler has given up")
        return Response(200, passing(request, NODES).raw, pause=LATE_SECONDS if late == "body" else 0.0)

    released: list[bool] = []
    with recording(filtering(answer)) as recorder:
        with cluster.scheduler(extender(recorder.url, names_only=True, httpTimeout="300ms")):
            cluster.create_pod(namespace, "web")
            message = cluster.rejected(namespace, "web")
        # Only now: the scheduler tries again each few seconds, and an answer to that would be in time.
        released.append(True)
    assert "deadline exceeded" in message or "Client.Timeout" in message
    assert cluster.node_of(namespace, "web") is None


def test_facts_c13_each_extender_gets_the_nodes_that_passed_the_previous_one_and_none_is_called_without_nodes(
    cluster: Cluster, namespace: str
) -> None:
    """In the order of the configuration, after the in-tree filters."""

    def keeping(*names: str) -> Answer:
        return filtering(lambda request: passing(request, names))

    with (
        recording(keeping(FIRST, SECOND)) as one,
        recording(keeping(THIRD)) as two,
        recording(keeping(*NODES)) as three,
    ):
        entries = [extender(each.url, names_only=True, managedResources=[]) for each in (one, two, three)]
        with cluster.scheduler(*entries):
            cluster.create_pod(namespace, "web", managed=False)
            cluster.rejected(namespace, "web")
            request, *_ = two.about("web", FILTER)
            assert sorted(request.names) == [FIRST, SECOND]
            assert not three.about("web")

            cluster.create_pod(namespace, "pinned", managed=False, nodeSelector={"kubernetes.io/hostname": FIRST})
            cluster.rejected(namespace, "pinned")
            request, *_ = one.about("pinned", FILTER)
            assert request.names == [FIRST]


def test_facts_c20_equal_reasons_are_counted_and_the_event_is_truncated(cluster: Cluster, namespace: str) -> None:
    words = [f"reason {number} " + "x" * 600 for number in range(2)]

    def answer(request: Request) -> Response:
        reasons = {FIRST: words[0], SECOND: words[0], THIRD: words[1]}
        return answer_with({"NodeNames": [], "FailedAndUnresolvableNodes": reasons})

    with recording(filtering(answer)) as recorder, cluster.scheduler(extender(recorder.url, names_only=True)):
        cluster.create_pod(namespace, "web")
        condition = cluster.rejected(namespace, "web")
        assert f"2 {words[0]}" in condition
        assert f"1 {words[1]}" in condition
        for message in cluster.events(namespace, "web", reason="FailedScheduling"):
            assert len(message.encode()) <= 1024
            assert not condition.startswith(message)


@pytest.fixture
def two_hundred(cluster: Cluster) -> Iterator[int]:
    """So many nodes that a scheduler filters only a part of them."""
    names = [f"many-{number:03d}" for number in range(200 - len(NODES))]
    cluster.create_nodes(*names)
    yield 200
    cluster.delete_nodes(*names)


def test_facts_c21_of_many_nodes_the_extender_gets_only_a_part(
    cluster: Cluster, namespace: str, two_hundred: int
) -> None:
    """Of 200 nodes 50 − 200/125 percent are 96, and the minimum is 100. All 100 may be rejected while others pass."""
    with (
        recording(filtering(lambda request: passing(request, []))) as recorder,
        cluster.scheduler(extender(recorder.url, names_only=True)),
    ):
        cluster.create_pod(namespace, "web")
        cluster.rejected(namespace, "web")
        for request in recorder.about("web", FILTER):
            assert len(request.names) == 100


@pytest.mark.parametrize(("weight", "wins"), [(2, False), (4, True)], ids=["200-points", "400-points"])
def test_facts_c24_c27_a_score_is_worth_ten_times_its_weight_against_the_in_tree_plugins(
    cluster: Cluster, namespace: str, weight: int, *, wins: bool
) -> None:
    """A taint `PreferNoSchedule` costs a node 300 points: 100 of the plugin TaintToleration, with weight 3."""
    taint = [{"key": "e2e", "value": "avoid", "effect": "PreferNoSchedule"}]
    best = filtering(lambda request: passing(request, NODES), {FIRST: 10})
    cluster.api.patch(f"/api/v1/nodes/{FIRST}", {"spec": {"taints": taint}})
    try:
        with recording(best) as recorder, cluster.scheduler(extender(recorder.url, names_only=True, weight=weight)):
            for number in range(3):
                cluster.create_pod(namespace, f"web-{number}")
                assert (cluster.placed(namespace, f"web-{number}") == FIRST) is wins
                cluster.delete_pods(namespace)  # so that the in-tree scores of all nodes stay equal
    finally:
        cluster.api.patch(f"/api/v1/nodes/{FIRST}", {"spec": {"taints": None}})


def test_facts_c24_the_scores_of_several_extenders_are_added(cluster: Cluster, namespace: str) -> None:
    """One point of weight 300 and one of 200 for the second node; one of 400 for the third."""

    def favouring(name: str) -> Answer:
        return filtering(lambda request: passing(request, NODES), {name: 1})

    with recording(favouring(SECOND)) as one, recording(favouring(SECOND)) as two, recording(favouring(THIRD)) as three:
        weights = ((one, 300), (two, 200), (three, 400))
        entries = [extender(each.url, names_only=True, weight=weight, managedResources=[]) for each, weight in weights]
        with cluster.scheduler(*entries):
            cluster.create_pod(namespace, "web", managed=False)
            assert cluster.placed(namespace, "web") == SECOND
        assert all(each.about("web", PRIORITIZE) for each in (one, two, three))


@pytest.mark.parametrize("ignorable", [False, True])
def test_facts_c30_an_error_of_bind_stops_the_pod_or_is_skipped_if_ignorable(
    cluster: Cluster, namespace: str, *, ignorable: bool
) -> None:
    def answer(request: Request) -> Response:
        if request.verb == "bind":
            return answer_with({"Error": "no card is free"})
        return passing(request, NODES) if request.verb == FILTER else scoring({})

    with (
        recording(answer) as recorder,
        cluster.scheduler(extender(recorder.url, names_only=True, bindVerb="scheduler/bind", ignorable=ignorable)),
    ):
        cluster.create_pod(namespace, "web")
        if ignorable:
            assert cluster.placed(namespace, "web") in NODES
        else:
            assert cluster.rejected(namespace, "web", containing="no card is free")
            assert cluster.node_of(namespace, "web") is None
    binding = recorder.about("web", "bind")[0].body
    assert binding.keys() == {"PodName", "PodNamespace", "PodUID", "Node"}
    assert (binding["PodName"], binding["PodNamespace"]) == ("web", namespace)
    assert not [request for request in recorder.requests if request.verb == PREEMPT]
