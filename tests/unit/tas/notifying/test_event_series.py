"""Kubernetes Events: what is created, and what only counts."""

from tas.events.data import BreakerTripped, EventData, LabelsPaused, PolicyRefused, ResourcePatched, SourceDry
from tas.notifying.digest import Group
from tas.notifying.event_series import (
    FINISH_SECONDS,
    MAX_NOTE,
    REFRESH_SECONDS,
    CreateEvent,
    EventSeries,
    ObjectReference,
    Occurrence,
    PatchSeries,
    event_name,
    shortened_note,
)
from tas.notifying.occurrences import EventPolicy, needs_policies, occurrence_on_node, occurrences_on_policies
from tas.policy.policy import PolicyKey
from tests.unit.tas.notifying.making import notice, started

NODE = ObjectReference(api_version="v1", kind="Node", name="node-1", uid="u")


def occurrence(identity: str = "e1", *, scope: str = "", reason: str = "NodeViolatesPolicy") -> Occurrence:
    return Occurrence(
        regarding=NODE, reason=reason, action="Evaluate", scope=scope, note="n", warning=True, identity=identity
    )


def test_the_first_occurrence_creates_an_event_without_a_series() -> None:
    created = EventSeries("host-1").record(occurrence(), 1000.25)
    assert isinstance(created, CreateEvent)
    assert created.namespace == "default"
    assert created.body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event_name(occurrence()), "namespace": "default"},
        "eventTime": "1970-01-01T00:16:40.250000Z",
        "reportingController": "tas-on-nats",
        "reportingInstance": "host-1",
        "action": "Evaluate",
        "reason": "NodeViolatesPolicy",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u"},
        "note": "n",
        "type": "Warning",
    }


def test_the_second_begins_a_series_and_later_ones_only_count_facts_V4() -> None:
    series = EventSeries("host-1")
    created = series.record(occurrence("e1"), 1000.0)
    assert isinstance(created, CreateEvent)
    second = series.record(occurrence("e2"), 1010.0)
    assert isinstance(second, PatchSeries)
    assert second.name == created.body["metadata"]["name"]
    assert second.body == {"series": {"count": 2, "lastObservedTime": "1970-01-01T00:16:50.000000Z"}}
    assert [series.record(occurrence(f"e{n}"), 1010.0 + n) for n in range(3, 100)] == [None] * 97


def test_after_six_quiet_minutes_the_next_occurrence_is_a_new_event_of_a_reporter_with_a_short_name() -> None:
    series = EventSeries("h" * 200)
    assert isinstance(series.record(occurrence("e1"), 0.0), CreateEvent)
    assert isinstance(series.record(occurrence("e2"), FINISH_SECONDS), PatchSeries)
    new = series.record(occurrence("e3"), 2 * FINISH_SECONDS + 0.1)
    assert isinstance(new, CreateEvent)
    assert new.body["reportingInstance"] == "h" * 128, "as the API server allows"


def test_a_running_series_is_written_every_half_hour() -> None:
    series = EventSeries("host-1")
    now, writes = 0.0, []
    for number in range(int(3600 / 60) + 1):
        now = 60.0 * number
        series.record(occurrence(f"e{number}"), now)
        writes += series.due(now)
    assert [each.body["series"]["count"] for each in writes] == [int(REFRESH_SECONDS / 60) + 2]


def test_a_series_ends_when_nothing_happens_and_its_last_count_is_written() -> None:
    series = EventSeries("host-1")
    for number in range(5):
        series.record(occurrence(f"e{number}"), float(number))
    assert series.due(4 + FINISH_SECONDS) == []
    (last,) = series.due(5 + FINISH_SECONDS)
    assert last.body["series"] == {"count": 5, "lastObservedTime": "1970-01-01T00:00:04.000000Z"}
    assert series.due(6 + FINISH_SECONDS) == []
    assert isinstance(series.record(occurrence("e9"), 7 + FINISH_SECONDS), CreateEvent)


def test_a_single_event_needs_no_further_write() -> None:
    series = EventSeries("host-1")
    series.record(occurrence(), 0.0)
    assert series.due(FINISH_SECONDS + 1) == []


def test_other_reasons_and_scopes_are_other_series() -> None:
    series = EventSeries("host-1")
    different = (occurrence(), occurrence(scope="default/other"), occurrence(reason="NodeMeetsPolicy"))
    assert all(isinstance(series.record(each, 0.0), CreateEvent) for each in different)
    assert len({event_name(each) for each in different}) == 3


def test_a_repetition_after_a_restart_has_the_name_that_exists() -> None:
    first, second = (EventSeries("host").record(occurrence("e1"), now) for now in (0.0, 50.0))
    assert isinstance(first, CreateEvent)
    assert isinstance(second, CreateEvent)
    assert first.body["metadata"]["name"] == second.body["metadata"]["name"]


def test_the_number_of_series_in_memory_is_limited() -> None:
    series = EventSeries("host-1", capacity=10)
    for number in range(30):
        series.record(occurrence(scope=str(number)), 0.0)
    # A patch is of a series that still runs; each new one ends the oldest.
    assert isinstance(series.record(occurrence(scope="20"), 1.0), PatchSeries)
    assert isinstance(series.record(occurrence(scope="29"), 1.0), PatchSeries)
    assert isinstance(series.record(occurrence(scope="19"), 1.0), CreateEvent)


def test_a_long_note_is_shortened_to_what_the_api_server_accepts() -> None:
    assert len(shortened_note("ä" * 2000).encode()) <= MAX_NOTE
    assert shortened_note("short") == "short"


def test_a_violation_is_about_the_node_with_its_policy_and_about_the_policy_with_its_nodes() -> None:
    on_node = occurrence_on_node(notice(started("node-1")), identity="e1")
    assert on_node is not None
    assert on_node.regarding == ObjectReference(api_version="v1", kind="Node", name="node-1", uid="uid-node-1")
    policy = ObjectReference(
        api_version="telemetry.intel.com/v1alpha1", kind="TASPolicy", name="demo", namespace="default", uid="uid-demo"
    )
    assert on_node.related == policy
    group = Group(notices=tuple(notice(started(f"node-{n}")) for n in range(3)), transitions=3)
    assert not needs_policies(group)
    (on_policy,) = occurrences_on_policies(group, policies={}, identity="e1")
    assert on_policy.regarding == policy
    assert on_policy.note == "3 nodes violate default/demo (dontschedule): node-0, node-1, node-2"
    created = EventSeries("host").record(on_policy, 0.0)
    assert isinstance(created, CreateEvent)
    assert created.namespace == "default"


def test_without_an_object_of_a_cluster_there_is_no_event() -> None:
    dry = notice(SourceDry(source="mine"))
    assert occurrence_on_node(dry, identity="e") is None
    assert occurrences_on_policies(Group(notices=(dry,), transitions=1), policies=POLICIES, identity="e") == []
    without_cluster = notice(ResourcePatched(node="node-1", resource="telemetry/scheduling", count=5))
    assert occurrence_on_node(without_cluster, identity="e") is None


POLICIES = {
    PolicyKey("a", "demo"): EventPolicy("uid-a", has_labels=True),
    PolicyKey("b", "demo"): EventPolicy("uid-b", has_labels=True),
    PolicyKey("c", "demo"): EventPolicy("uid-c", has_labels=False),
    PolicyKey("a", "other"): EventPolicy("uid-other", has_labels=True),
}


def regarded(*datas: EventData) -> dict[tuple[str, str, str], Occurrence]:
    """The occurrences on policies, by namespace and name of the policy and by what distinguishes their series."""
    group = Group(notices=tuple(notice(data) for data in datas), transitions=len(datas))
    assert needs_policies(group)
    found = occurrences_on_policies(group, policies=POLICIES, identity="e")
    by_key = {(each.regarding.namespace, each.regarding.name, each.scope): each for each in found}
    assert len(by_key) == len(found) == len({(each.regarding.namespace, event_name(each)) for each in found})
    return by_key


def test_a_freeze_is_about_each_policy_whose_labels_it_freezes() -> None:
    tripped, every = BreakerTripped(policy="demo", limit=1, wanted=2), BreakerTripped(limit=20, wanted=21)
    found = regarded(tripped, every)
    of_name = {("a", "demo", "demo"), ("b", "demo", "demo")}
    of_all = {("a", "demo", "_all"), ("b", "demo", "_all"), ("a", "other", "_all")}
    assert found.keys() == of_name | of_all
    assert found["a", "demo", "demo"].regarding.uid == "uid-a"
    assert "tas reset demo" in found["b", "demo", "demo"].note
    assert "tas reset --all" in found["b", "demo", "_all"].note
    assert regarded(LabelsPaused(by="ops")).keys() == of_all


def test_policies_that_are_refused_together_have_an_event_each() -> None:
    refused = [
        PolicyRefused(namespace="a", policy=name, policy_uid="", generation=1, problems=(f"{name} is bad",), total=1)
        for name in ("demo", "other")
    ]
    found = regarded(*refused)
    assert {key: each.regarding.uid for key, each in found.items()} == {
        ("a", "demo", ""): "uid-a",
        ("a", "other", ""): "uid-other",
    }
    assert "other is bad" in found["a", "other", ""].note
