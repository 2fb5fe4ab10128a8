import copy
from datetime import UTC, datetime, timedelta

from lab.sandbox.cluster import EVENT_AGE, Cluster, merge_patch
from lab.sandbox.resources import EVENTS, NAMESPACES, NODES, PODS, Object


def test_no_verb_changes_an_object_that_was_returned() -> None:
    """Answers, events and history share objects, so each version must stay unchanged."""
    cluster = Cluster()
    cluster.create(NAMESPACES, "", {"metadata": {"name": "default"}}, manager="one")
    returned: list[tuple[Object, Object]] = []

    def keep(stored: Object) -> None:
        returned.append((stored, copy.deepcopy(stored)))

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
    assert [now for now, _ in returned] == [then for _, then in returned]
    assert len({stored["metadata"]["resourceVersion"] for stored, _ in returned}) == len(returned)


def test_merge_patches_follow_rfc_7386() -> None:
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


def test_an_event_is_kept_for_an_hour() -> None:
    """Clients create events, and no client deletes them."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    cluster = Cluster(now=lambda: now)
    cluster.create(NAMESPACES, "", {"metadata": {"name": "default"}}, manager="one")

    def create(name: str) -> None:
        event = {"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p"}}
        cluster.create(EVENTS, "default", event, manager="one")

    def names() -> list[str]:
        return [event["metadata"]["name"] for event in cluster.store.items(EVENTS)]

    create("first")
    now += EVENT_AGE
    create("second")
    assert names() == ["first", "second"]
    now += timedelta(seconds=1)
    create("third")
    assert names() == ["second", "third"]
    cluster.delete(EVENTS, "default", "second")
    create("second")
    now += EVENT_AGE
    create("fourth")
    assert names() == ["fourth", "second", "third"]
    now += EVENT_AGE
    create("fifth")
    assert names() == ["fifth", "fourth"]
