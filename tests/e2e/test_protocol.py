"""A real scheduler and an extender with fixed answers: facts of the protocol, on which our answers rely.

`cN` is the id of a fact in docs/background/facts.md.
"""

from collections.abc import Iterator

import pytest

from . import golden
from .cluster import NODES, Cluster, extender
from .processes import until
from .recorder import FILTER, PRIORITIZE, Answer, Request, Response, answer_with, passing, recording, scoring

both_forms = pytest.mark.parametrize("names_only", [True, False], ids=["names", "nodes"])
ZERO = dict.fromkeys(NODES, 0)


@both_forms
def test_pods_go_where_the_extender_scores_highest(cluster: Cluster, namespace: str, names_only: bool) -> None:
    """Each node has the highest score once, so that no in-tree score can decide."""

    def answer(request: Request) -> Response:
        return passing(request, NODES) if request.verb == FILTER else scoring(ZERO | {request.pod: 10})

    with recording(answer) as recorder, cluster.scheduler(extender(recorder.url, names_only=names_only)):
        for name in NODES:
            cluster.create_pod(namespace, name)
        assert {name: cluster.placed(namespace, name) for name in NODES} == {name: name for name in NODES}


@both_forms
def test_a_pod_goes_to_the_only_node_that_passes_and_facts_c22_prioritize_is_then_not_called(
    cluster: Cluster, namespace: str, names_only: bool
) -> None:
    def answer(request: Request) -> Response:
        return passing(request, [request.pod]) if request.verb == FILTER else scoring(ZERO)

    with recording(answer) as recorder, cluster.scheduler(extender(recorder.url, names_only=names_only)):
        for name in NODES:
            cluster.create_pod(namespace, name)
        assert {name: cluster.placed(namespace, name) for name in NODES} == {name: name for name in NODES}
        assert {request.verb for request in recorder.requests} == {FILTER}


@pytest.mark.parametrize("woken_by", ["node", "pod"])
def test_a_pod_waits_while_all_nodes_are_rejected_and_facts_c29_is_retried_after_a_change(
    cluster: Cluster, namespace: str, woken_by: str
) -> None:
    """A change of a node, or of the pod itself. The condition of the first rejection is such a change of the pod.

    The event has the reason and its number of nodes.
    """
    allowed: list[str] = []

    def answer(request: Request) -> Response:
        return passing(request, allowed, reason="Node violates demo") if request.verb == FILTER else scoring(ZERO)

    with recording(answer) as recorder, cluster.scheduler(extender(recorder.url, names_only=True)):
        cluster.create_pod(namespace, "waiting")
        cluster.rejected(namespace, "waiting", containing="0/3 nodes are available: 3 Node violates demo.")
        events = cluster.events(namespace, "waiting", reason="FailedScheduling")
        assert all("3 Node violates demo." in message for message in events)
        until(lambda: recorder.answered("waiting", FILTER) >= 2, "the pod is retried because of its condition")
        tried = len(recorder.about("waiting", FILTER))
        allowed.append("node-2")
        change = {"metadata": {"annotations": {"e2e/changed": namespace}}}
        pod = f"/api/v1/namespaces/{namespace}/pods/waiting"
        cluster.api.patch("/api/v1/nodes/node-1" if woken_by == "node" else pod, change)
        assert cluster.placed(namespace, "waiting") == "node-2"
        assert len(recorder.about("waiting", FILTER)) > tried


def test_facts_c33_the_condition_of_a_rejected_pod_has_the_whole_message_and_facts_c20_the_event_is_cut(
    cluster: Cluster, namespace: str
) -> None:
    reason = "Node violates demo: " + " and ".join(f"metric_{number} GreaterThan 1" for number in range(60))

    def answer(request: Request) -> Response:
        return passing(request, [], reason=reason) if request.verb == FILTER else scoring(ZERO)

    with recording(answer) as recorder, cluster.scheduler(extender(recorder.url, names_only=True)):
        cluster.create_pod(namespace, "waiting")
        cluster.rejected(namespace, "waiting", containing=f"3 {reason}.")
        (event, *_) = cluster.events(namespace, "waiting", reason="FailedScheduling")
        assert len(event) == 1024 < len(reason)


def test_facts_c12_the_extender_is_called_only_for_pods_with_the_managed_resource(
    cluster: Cluster, namespace: str
) -> None:
    def answer(request: Request) -> Response:
        return passing(request, ["node-3"]) if request.verb == FILTER else scoring(ZERO)

    with recording(answer) as recorder, cluster.scheduler(extender(recorder.url, names_only=True)):
        cluster.create_pod(namespace, "plain", managed=False)
        cluster.create_pod(namespace, "managed")
        cluster.placed(namespace, "plain")
        assert cluster.placed(namespace, "managed") == "node-3"
        assert {request.pod for request in recorder.requests} == {"managed"}


@pytest.fixture
def workers(cluster: Cluster) -> Iterator[list[str]]:
    """Three new nodes, so that requests are equal in each run."""
    names = [f"worker-{number}" for number in (1, 2, 3)]
    cluster.create_nodes(*names, labels={"pool": "golden"})
    yield names
    cluster.delete_nodes(*names)


@both_forms
def test_facts_c14_requests_have_the_configured_form_and_the_golden_fields(
    cluster: Cluster, workers: list[str], names_only: bool
) -> None:
    """Also facts.md c1, c5: the content type, the exact names of the keys, and null for absent values."""

    def answer(request: Request) -> Response:
        return passing(request, workers) if request.verb == FILTER else scoring({})

    where = cluster.create_namespace(f"golden-{'names' if names_only else 'nodes'}")
    with recording(answer) as recorder, cluster.scheduler(extender(recorder.url, names_only=names_only)):
        cluster.create_pod(where, "web", policy="demo-policy", nodeSelector={"pool": "golden"})
        cluster.placed(where, "web")
    cluster.delete_pods(where)
    for verb in (FILTER, PRIORITIZE):
        request, *_ = recorder.about("web", verb)
        assert request.headers["Content-Type"] == "application/json"
        assert request.body.keys() == {"Pod", "Nodes", "NodeNames"}
        assert request.body["Nodes" if names_only else "NodeNames"] is None
        assert sorted(request.names) == workers
        golden.check(f"{verb}-{'names' if names_only else 'nodes'}", request.body)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        pytest.param(Response(201, b'{"NodeNames": ["node-1"]}'), "code 201", id="facts_c3-created"),
        pytest.param(Response(200, b""), "EOF", id="facts_c4-empty"),
        pytest.param(
            answer_with({"NodeNames": ["node-1", "stranger"]}),
            'claims a filtered node "stranger"',
            id="facts_c15-unknown-name",
        ),
        pytest.param(answer_with({"NodeNames": [""]}), 'claims a filtered node ""', id="facts_c15-no-name"),
        pytest.param(
            answer_with({"NodeNames": ["node-1"], "Error": "out of order"}), "out of order", id="facts_c17-error"
        ),
    ],
)
def test_an_invalid_answer_to_filter_stops_the_pod_or_facts_c18_is_skipped_if_ignorable(
    cluster: Cluster, namespace: str, answer: Response, complaint: str
) -> None:
    with recording(lambda _: answer) as recorder:
        entry = extender(recorder.url, names_only=True)
        with cluster.scheduler(entry):
            cluster.create_pod(namespace, "stopped")
            cluster.rejected(namespace, "stopped", containing=complaint)
            assert cluster.node_of(namespace, "stopped") is None
        cluster.delete_pods(namespace)
        with cluster.scheduler(entry | {"ignorable": True}):
            cluster.create_pod(namespace, "passed")
            assert cluster.placed(namespace, "passed") in NODES
        assert recorder.about("passed", FILTER)


@both_forms
def test_facts_c16_an_empty_object_rejects_every_node(cluster: Cluster, namespace: str, names_only: bool) -> None:
    """Also of an ignorable extender: an empty object is no error."""
    entry = {"ignorable": True}
    with recording(lambda _: answer_with({})) as recorder:
        with cluster.scheduler(extender(recorder.url, names_only=names_only, **entry)):
            cluster.create_pod(namespace, "rejected")
            cluster.rejected(namespace, "rejected", containing="0/3 nodes are available")
            assert cluster.node_of(namespace, "rejected") is None
        assert {request.verb for request in recorder.requests} == {FILTER}


@pytest.mark.parametrize(
    ("field", "verdict"),
    [
        ("FailedNodes", "3 No preemption victims found for incoming pod."),
        ("FailedAndUnresolvableNodes", "3 Preemption is not helpful for scheduling."),
    ],
)
def test_facts_c19_preemption_is_tried_for_failed_nodes_but_not_for_unresolvable_ones(
    cluster: Cluster, namespace: str, field: str, verdict: str
) -> None:
    with (
        recording(lambda request: passing(request, [], failed=field)) as recorder,
        cluster.scheduler(extender(recorder.url, names_only=True)),
    ):
        cluster.create_pod(namespace, "rejected")
        cluster.rejected(namespace, "rejected", containing=verdict)


def test_facts_c19_a_node_that_is_missing_in_the_answer_counts_as_unresolvable(
    cluster: Cluster, namespace: str
) -> None:
    with (
        recording(lambda _: answer_with({"NodeNames": []})) as recorder,
        cluster.scheduler(extender(recorder.url, names_only=True)),
    ):
        cluster.create_pod(namespace, "rejected")
        cluster.rejected(namespace, "rejected", containing="3 Preemption is not helpful for scheduling.")


def test_facts_c5_keys_of_an_answer_may_have_any_case(cluster: Cluster, namespace: str) -> None:
    def answer(request: Request) -> Response:
        return answer_with(
            {"nodenames": ["node-1", "node-3"]} if request.verb == FILTER else [{"host": "node-3", "score": 10}]
        )

    with recording(answer) as recorder, cluster.scheduler(extender(recorder.url, names_only=True)):
        cluster.create_pod(namespace, "web")
        assert cluster.placed(namespace, "web") == "node-3"


@pytest.mark.parametrize(
    ("scores", "winner"),
    [
        pytest.param([("node-2", 1)], "node-2", id="missing-is-0"),
        pytest.param([("node-1", 5), ("node-2", 9), ("node-1", 5)], "node-1", id="twice-is-the-sum"),
        pytest.param([("stranger", 10), ("node-3", 1)], "node-3", id="unknown-nodes-are-ignored"),
        pytest.param([("node-1", -1), ("node-2", 50), ("node-3", 10)], "node-2", id="facts_c25-no-clamp"),
    ],
)
def test_facts_c26_missing_scores_are_0_repeated_scores_are_added_and_unknown_nodes_are_ignored(
    cluster: Cluster, namespace: str, scores: list[tuple[str, int]], winner: str
) -> None:
    def answer(request: Request) -> Response:
        if request.verb == FILTER:
            return passing(request, NODES)
        return answer_with([{"Host": host, "Score": score} for host, score in scores])

    # The weight is such that one point is worth more than all in-tree plugins together.
    with recording(answer) as recorder, cluster.scheduler(extender(recorder.url, names_only=True, weight=1000)):
        cluster.create_pod(namespace, "web")
        assert cluster.placed(namespace, "web") == winner


@pytest.mark.parametrize("bad", ["7.0", '"7"'])
def test_facts_c23_a_score_that_is_no_integer_makes_the_whole_answer_invalid(
    cluster: Cluster, namespace: str, bad: str
) -> None:
    """The error and all scores of this extender are ignored; the other extender decides."""

    def invalid(request: Request) -> Response:
        if request.verb == FILTER:
            return passing(request, NODES)
        return Response(200, b'[{"Host": "node-1", "Score": 10}, {"Host": "node-2", "Score": %s}]' % bad.encode())

    def valid(request: Request) -> Response:
        return passing(request, NODES) if request.verb == FILTER else scoring(ZERO | {"node-3": 1})

    with recording(invalid) as first, recording(valid) as second:
        entries = [
            extender(first.url, names_only=True, weight=1000),
            extender(second.url, names_only=True, weight=1000, managedResources=[]),
        ]
        with cluster.scheduler(*entries):
            cluster.create_pod(namespace, "web")
            assert cluster.placed(namespace, "web") == "node-3"
        assert first.about("web", PRIORITIZE)


@pytest.fixture
def machines(cluster: Cluster) -> Iterator[list[str]]:
    """Five additional nodes."""
    names = [f"machine{number}" for number in range(1, 6)]
    cluster.create_nodes(*names)
    yield names
    cluster.delete_nodes(*names)


def test_facts_c32_the_best_machine_of_three_extenders_wins(
    cluster: Cluster, namespace: str, machines: list[str]
) -> None:
    """The extender test of Kubernetes: weights 3, 4 and 10; one extender gets only names, and one binds."""

    def prefers(winner: str, times: int, *fitting: str) -> Answer:
        def answer(request: Request) -> Response:
            if request.verb == FILTER:
                return passing(request, fitting)
            if request.verb == PRIORITIZE:
                return scoring({name: (10 if name == winner else 1) * times for name in request.names})
            binding = request.body
            cluster.bind(binding["PodNamespace"], binding["PodName"], binding["Node"])
            return answer_with({"Error": ""})

        return answer

    with (
        recording(prefers("machine2", 1, "machine1", "machine2", "machine3")) as first,
        recording(prefers("machine3", 1, "machine2", "machine3", "machine5")) as second,
        recording(prefers("machine2", 5, "machine1", "machine2", "machine3")) as third,
    ):
        entries = [
            extender(first.url, names_only=False, weight=3, managedResources=[]),
            extender(second.url, names_only=False, weight=4, bindVerb="scheduler/bind"),
            extender(third.url, names_only=True, weight=10, managedResources=[]),
        ]
        with cluster.scheduler(*entries):
            cluster.create_pod(namespace, "web")
            assert cluster.placed(namespace, "web") == "machine2"
    assert [request.verb for request in second.requests] == [FILTER, PRIORITIZE, "bind"]
