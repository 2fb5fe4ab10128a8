import copy
from datetime import UTC, datetime, timedelta

from sandbox.cluster import EVENT_AGE, Cluster, merge_patch
from sandbox.resources import EVENTS, NAMESPACES, NODES, PODS, Object


def test_no_verb_changes_what_was_given_out() -> None:
    """Answers, events and history share objects, so each version stays as it was told."""
    cluster = Cluster()
    cluster.create(NAMESPACES, "", {"metadata": {"name": "default"}}, manager="one")
    told: list[tuple[Object, Object]] = []

    def keep(stored: Object) -> None:
        told.append((stored, copy.deepcopy(stored)))

    keep(cluster.create(NODES, "", {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "1"}}}, manager="one"))
    pod = {"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"containers": [{"name": "main"}]}}
    keep(cluster.create(PODS, "default", pod, manager="one"))
    for resource, namespace, name in ((NODES, "", "n"), (PODS, "default", "p")):
        keep(cluster.patch(resource, namespace, name, {"metadata": {"labels": {"a": "c"}}}, manager="two"))
        keep(
            cluster.patch(resource, namespace, name, {"status": {"capacity": {"cpu": "2"}}}, manager="two", status=True)
        )
    cluster.bind("default", "p", {"metadata": {"name": "p"}, "target": {"name": "n"}}, manager="three")
    keep(cluster.get(PODS, "default", "p"))
    keep(cluster.delete(PODS, "default", "p"))
    assert [now for now, _ in told] == [then for _, then in told]
    assert len({stored["metadata"]["resourceVersion"] for stored, _ in told}) == len(told)


def test_a_merge_patch_is_that_of_rfc_7386() -> None:
    target = {"a": {"b": "c", "d": [1, 2]}, "e": 1}
    assert merge_patch(target, {"a": {"b": None, "d": [3]}, "f": {"g": None, "h": 1}}) == {
        "a": {"d": [3]},
        "e": 1,
        "f": {"h": 1},
    }
    assert merge_patch(target, {"a": "text", "e": {"x": 1}}) == {"a": "text", "e": {"x": 1}}
    assert target == {"a": {"b": "c", "d": [1, 2]}, "e": 1}


def test_a_patch_that_python_alone_calls_equal_is_a_change() -> None:
    cluster = Cluster()
    cluster.create(NAMESPACES, "", {"metadata": {"name": "default"}}, manager="one")
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}, "status": {}}
    cluster.create(PODS, "default", pod, manager="one")
    for value in (1, True, 1.0):
        patched = cluster.patch(PODS, "default", "p", {"status": {"x": value}}, manager="one", status=True)
        assert type(patched["status"]["x"]) is type(value)


def test_an_event_stands_for_an_hour() -> None:
    """Whatever runs on a sandbox tells events, and nobody deletes them."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    cluster = Cluster(now=lambda: now)
    cluster.create(NAMESPACES, "", {"metadata": {"name": "default"}}, manager="one")

    def tell(name: str) -> None:
        event = {"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p"}}
        cluster.create(EVENTS, "default", event, manager="one")

    def told() -> list[str]:
        return [event["metadata"]["name"] for event in cluster.store.items(EVENTS)]

    tell("first")
    now += EVENT_AGE
    tell("second")
    assert told() == ["first", "second"]
    now += timedelta(seconds=1)
    tell("third")
    assert told() == ["second", "third"]
    cluster.delete(EVENTS, "default", "second")
    tell("second")
    now += EVENT_AGE
    tell("fourth")
    assert told() == ["fourth", "second", "third"]
    now += EVENT_AGE
    tell("fifth")
    assert told() == ["fifth", "fourth"]
