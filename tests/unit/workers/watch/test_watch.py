"""Records of objects of the API server."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from bus.kinds import NODE_FACTS, POLICY_RECORDS
from bus.records.nodes import NodeFacts
from tas.enforcing.pod import PodKey
from tas.policy.manifest import MAX_PROBLEMS
from tas.policy.policy import PolicyKey, StrategyType
from workers.kubernetes.admission import policy_record
from workers.kubernetes.resources import Object, PodObject, PolicyObject
from workers.watch.worker import SETTLED_SECONDS, NewestPods, as_first_seen, node_facts, pod_record

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
SETTLED = int(SETTLED_SECONDS)
RULE = {"metricname": "health_metric", "operator": "Equals", "target": 1}


def policy(spec: Any) -> PolicyObject:
    metadata = {
        "name": "demo.v2",
        "namespace": "web",
        "uid": "u",
        "generation": 3,
        "resourceVersion": "12",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
    }
    return msgspec.convert({"kind": "TASPolicy", "metadata": metadata, "spec": spec, "status": {"x": 1}}, PolicyObject)


def test_the_record_of_a_policy() -> None:
    key, record = policy_record(policy({"strategies": {"deschedule": {"rules": [RULE]}}}))
    assert key == record.policy.key == PolicyKey("web", "demo.v2")
    assert (record.uid, record.generation, record.resource_version, record.origin) == ("u", 3, "12", "")
    assert record.created == 1767225600.0
    assert str(record.policy.strategies[StrategyType.DESCHEDULE]) == "health_metric Equals 1"
    assert record.problems == ()


def test_a_policy_with_an_unreadable_part_is_stored_with_the_problem() -> None:
    _, record = policy_record(policy({"strategies": {"deschedule": {"rules": [RULE | {"operator": "Equal"}]}}}))
    assert not record.policy.strategies[StrategyType.DESCHEDULE].readable
    assert [problem.refused for problem in record.problems] == [True]
    key, record = policy_record(policy({"strategies": {}, "nodeSelector": {"matchLabel": {}}}))
    assert record.policy.suspend
    assert record.problems[-1].field == "spec.nodeSelector"
    assert POLICY_RECORDS.same(key, record, record)


@pytest.mark.parametrize("spec", [None, {}, [], "text"])
def test_a_policy_without_a_spec_does_nothing(spec: Any) -> None:
    _, record = policy_record(policy(spec))
    assert record.policy.strategies == {}
    assert record.problems


def test_the_largest_policy_fits_a_message() -> None:
    def rules(**more: Any) -> list[dict[str, Any]]:
        return [{"metricname": "m" * 253, "operator": "Equals", "target": "1" * 40, "source": "s" * 63, **more}] * 64

    texts = [f"{number:02}{'v' * 61}" for number in range(50)]
    keys = [f"{'.'.join(['p' * 63] * 3)}.{'p' * 61}/{text}" for text in texts]
    spec = {
        "nodeSelector": {
            "matchExpressions": [{"key": key, "operator": "NotIn", "values": texts} for key in keys],
        },
        "strategies": {
            "dontschedule": {"rules": rules(labels=["\0" * 200] * 32)},
            "scheduleonmetric": {"rules": rules(weight=100)},
            "deschedule": {"rules": rules(labels=["\0" * 200] * 32)},
            "labeling": {"rules": rules(labels=[f"{texts[0]}={texts[0]}", f"{texts[1]}={texts[1]}"])},
        },
    }
    key, record = policy_record(policy(spec))
    assert record.policy.node_selector is not None
    assert len(record.problems) == MAX_PROBLEMS + 1
    assert not any(problem.refused for problem in record.problems), "a larger policy would be cut"
    assert 250_000 < POLICY_RECORDS.size(record) < 512 << 10  # half of a server's default limit
    assert POLICY_RECORDS.decode(key, POLICY_RECORDS.encode(record)) == record


def test_the_record_of_a_node() -> None:
    metadata = {
        "name": "n.example",
        "uid": "u",
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "resourceVersion": "5",
    }
    node, facts = node_facts(msgspec.convert({"metadata": metadata}, Object))
    assert (node, facts.uid, facts.labels, facts.resource_version) == ("n.example", "u", {"a": "b"}, "5")
    assert facts.complete_labels == {"a": "b"}


def test_the_labels_of_a_node_fit_a_message() -> None:
    labels = {f"{number:05}{'k' * 58}": "v" * 63 for number in range(9000)}
    _, facts = node_facts(msgspec.convert({"metadata": {"name": "n", "uid": "u", "labels": labels}}, Object))
    assert NODE_FACTS.size(NodeFacts(uid="u", labels=labels)) > 1 << 20
    assert 500_000 < NODE_FACTS.size(facts) < 600_000
    assert facts.labels.items() <= labels.items()
    assert max(facts.labels) < min(labels.keys() - facts.labels.keys())
    assert (facts.labels_left_out, facts.complete_labels) == (9000 - len(facts.labels), None)


REFUSED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Node violates demo: health_metric Equals 1.",
    "lastTransitionTime": "2026-01-01T00:00:05Z",
}
SINCE = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)


def pod(
    *conditions: dict[str, Any],
    spec: dict[str, Any] | None = None,
    phase: str = "Pending",
    start_time: str | None = None,
    **metadata: Any,
) -> PodObject:
    known = {
        "name": "web-1",
        "namespace": "web",
        "uid": "u",
        "labels": {"telemetry-policy": "demo"},
        "creationTimestamp": CREATED.isoformat(),
        "resourceVersion": "9",
    }
    status = {"phase": phase, "conditions": conditions, "startTime": start_time}
    return msgspec.convert({"metadata": known | metadata, "spec": spec or {}, "status": status}, PodObject)


def test_a_pod_waits_since_its_policy_has_kept_it_away() -> None:
    ready = {"type": "Ready", "status": "False", "reason": "Unschedulable", "message": REFUSED["message"]}
    key, record = pod_record(pod(ready, REFUSED))
    assert key == PodKey("web", "web-1")
    assert (record.policy, record.uid, record.node, record.resource_version) == ("demo", "u", None, "9")
    assert record.waiting_since == SINCE


@pytest.mark.parametrize(
    "time",
    [
        None,
        "",
        "yesterday",
        "0001-01-01T00:00:00Z",
        "0000-12-31T10:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:00:00-14:00",
    ],
)
def test_a_condition_without_a_readable_time_counts_from_the_creation_on(time: str | None) -> None:
    _, record = pod_record(pod(REFUSED | {"lastTransitionTime": time}))
    assert record.waiting_since == CREATED


STARTED = datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)
BOUND = {"nodeName": "node-1"}
SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}


@pytest.mark.parametrize(
    ("found", "since"),
    [
        pytest.param(pod(SCHEDULED, spec={"nodeName": "node-1"}), SINCE, id="bound"),
        pytest.param(pod(SCHEDULED, spec={"nodeName": "node-1"}, phase="Failed"), None, id="failed"),
        pytest.param(pod(REFUSED), None, id="waiting"),
        pytest.param(
            pod(REFUSED, spec=BOUND, start_time="2026-01-01T00:00:07Z"), STARTED, id="the kubelet has seen it"
        ),
        pytest.param(pod(REFUSED, spec=BOUND, start_time="2026-01-01T00:00:02Z"), SINCE, id="never before its refusal"),
    ],
)
def test_a_pod_is_bound_since_the_time_of_its_condition_or_that_of_its_kubelet(
    found: PodObject, since: datetime | None
) -> None:
    _, record = pod_record(found)
    assert (record.bound_since, record.bound_seen) == (since, False)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(pod(REFUSED, spec=BOUND), id="still False"),
        pytest.param(pod(REFUSED | {"status": "Unknown"}, spec=BOUND), id="Unknown"),
        pytest.param(pod(spec=BOUND), id="no condition"),
        pytest.param(pod(SCHEDULED | {"type": "Ready"}, spec=BOUND), id="another condition"),
        *(
            pytest.param(pod(SCHEDULED | {"lastTransitionTime": time}, spec=BOUND, start_time=time), id=str(time))
            for time in (None, "", "x", "0001-01-01T00:00:00Z", "9000-01-01T00:00:00Z")
        ),
        pytest.param(pod(REFUSED, spec=BOUND, creationTimestamp=None), id="no creation"),
    ],
)
def test_a_pod_that_nothing_tells_of_is_bound_since_it_was_first_seen_with_its_node(found: PodObject) -> None:
    before = datetime.now(UTC)
    _, record = pod_record(found)
    assert record.bound_seen
    assert record.bound_since is not None
    assert before <= record.bound_since <= datetime.now(UTC)
    # Another replica, or this one before a restart, has seen it earlier.
    earlier = msgspec.structs.replace(record, bound_since=SINCE, resource_version="1")
    assert as_first_seen(record, earlier).bound_since == SINCE
    assert as_first_seen(earlier, record) is earlier
    for other in ({"uid": "another"}, {"node": "another"}, {"bound_seen": False}, {"bound_since": None}):
        assert as_first_seen(record, msgspec.structs.replace(earlier, **other)) is record


@pytest.mark.parametrize(
    ("found", "node"),
    [
        pytest.param(pod(), None, id="not tried"),
        pytest.param(pod(REFUSED | {"status": "True"}), None, id="scheduled"),
        pytest.param(pod(REFUSED | {"type": "Ready"}), None, id="another condition"),
        pytest.param(pod(REFUSED | {"message": "0/3 nodes are available: 3 Insufficient cpu."}), None, id="no cpu"),
        pytest.param(pod(REFUSED, labels={"telemetry-policy": "other"}), None, id="another policy"),
        pytest.param(pod(REFUSED, spec={"nodeName": "node-1"}), "node-1", id="bound"),
        pytest.param(pod(REFUSED | {"reason": "SchedulingGated"}), None, id="gated"),
        pytest.param(pod(REFUSED, phase="Failed"), None, id="failed"),
        pytest.param(pod(REFUSED, deletionTimestamp=CREATED.isoformat()), None, id="deleting"),
    ],
)
def test_a_pod_that_its_policy_does_not_keep_away_does_not_wait(found: PodObject, node: str | None) -> None:
    _, record = pod_record(found)
    assert (record.node, record.waiting_since) == (node, None)


NOW = CREATED.timestamp() + 100


def created(seconds: float, **fields: Any) -> PodObject:
    return pod(creationTimestamp=datetime.fromtimestamp(NOW + seconds, UTC).isoformat(), **fields)


def test_the_newest_pods_are_those_that_filter_must_have_been_asked_about() -> None:
    found, key = NewestPods(), PodKey("web", "web-1")
    found.take_in(key, created(-5), NOW)
    assert (found.placed, found.newest_waiting([(key, pod_record(created(-5))[1])])) == (0.0, NOW - 5)
    found.take_in(key, created(-5, spec=BOUND), NOW + 1)
    assert (found.placed, found.newest_waiting([])) == (NOW - 5, 0.0)


def test_a_creation_in_the_future_counts_from_when_the_pod_was_seen_waiting() -> None:
    """Else the last request of the scheduler would be earlier for as long as the clock is ahead, and an alert false."""
    found, key = NewestPods(), PodKey("web", "web-1")
    record = pod_record(created(300))[1]
    for later in (0, 20):
        found.take_in(key, created(300), NOW + later)
        assert found.newest_waiting([(key, record)]) == NOW
    found.take_in(key, created(300, spec=BOUND), NOW + 30)
    assert found.placed == NOW
    # Of a pod that already had its node nothing tells when it was created.
    found.take_in(PodKey("web", "other"), created(300, spec=BOUND), NOW + 40)
    assert found.placed == NOW


def test_a_placed_pod_counts_as_asked_about_once_an_extender_has_had_time_to_say_so() -> None:
    """With a new pod each second, the newest one is always too new."""
    filtered = NewestPods()
    start = CREATED.timestamp()
    found: list[float] = []
    for second in range(60):
        pod = {"metadata": {"name": f"p-{second}", "namespace": "web", "creationTimestamp": at(start + second)}}
        filtered.take_in(
            PodKey("web", f"p-{second}"), msgspec.convert(pod | {"spec": {"nodeName": "n"}}, PodObject), start + second
        )
        found.append(filtered.settled((), start + second).get("placed", 0.0))
    assert found[SETTLED - 1] == 0.0
    assert found[SETTLED] == start
    assert all(
        start + second - 1.25 * SETTLED - 1 < each <= start + second - SETTLED
        for second, each in enumerate(found)
        if each
    )
    assert filtered.settled((), start + 200) == {"placed": start + 56}


def test_a_waiting_pod_counts_only_while_it_waits() -> None:
    filtered = NewestPods()
    start = CREATED.timestamp()
    waits = {"metadata": {"name": "p", "namespace": "web", "creationTimestamp": at(start)}}
    key, record = pod_record(msgspec.convert(waits, PodObject))
    known = [(key, record)]
    filtered.take_in(key, msgspec.convert(waits, PodObject), start)
    assert filtered.settled(known, start + SETTLED - 1) == {}
    assert filtered.settled(known, start + SETTLED) == {"waiting": start}
    filtered.take_in(key, msgspec.convert(waits | {"spec": {"nodeName": "n"}}, PodObject), start + 30)
    assert filtered.settled(known, start + 31) == {}
    assert filtered.settled(known, start + 31 + SETTLED) == {"placed": start}
    filtered.take_in(key, msgspec.convert(waits, PodObject), start)
    assert "waiting" in filtered.settled(known, start + SETTLED)
    assert "waiting" not in filtered.settled([], start + SETTLED), "it was deleted"


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
