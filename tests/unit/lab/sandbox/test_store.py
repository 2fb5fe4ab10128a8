import asyncio

import pytest

from lab.sandbox.resources import NODES, PODS, Object
from lab.sandbox.store import ForgottenError, Store


def node(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


def names(found: list[Object]) -> list[str]:
    return [each["metadata"]["name"] for each in found]


def test_every_write_has_a_version_and_changes_no_returned_object() -> None:
    store = Store()
    first = store.put(NODES, node("a", x="1"))
    second = store.put(NODES, node("a", x="2"))
    deleted = store.remove(NODES, second)
    assert [each["metadata"]["resourceVersion"] for each in (first, second, deleted)] == ["1", "2", "3"]
    assert first["metadata"]["labels"] == {"x": "1"}
    assert deleted["metadata"]["labels"] == {"x": "2"}
    assert store.get(NODES, "", "a") is None


def test_history_has_the_previous_objects() -> None:
    store = Store()
    first = store.put(NODES, node("a", x="1"))
    store.put(PODS, {"metadata": {"name": "p", "namespace": "n"}})
    second = store.put(NODES, node("a", x="2"))
    store.remove(NODES, second)
    changes = [*store.changes_after(NODES, 1)]
    assert [(change.version, change.type, change.before) for change in changes] == [
        (3, "MODIFIED", first),
        (4, "DELETED", second),
    ]


def test_items_of_an_earlier_version() -> None:
    store = Store()
    store.put(NODES, node("a", x="1"))
    store.put(NODES, node("b"))
    store.remove(NODES, store.put(NODES, node("a", x="2")))
    store.put(NODES, node("c"))
    assert names(store.items(NODES)) == ["b", "c"]
    assert names(store.items_at(NODES, "", 3)) == ["a", "b"]
    assert store.items_at(NODES, "", 2)[0]["metadata"]["labels"] == {"x": "1"}
    assert store.items_at(NODES, "", 0) == []


def test_a_forgotten_version_is_an_error() -> None:
    store = Store()
    store.put(NODES, node("a"))
    store.put(NODES, node("b"))
    store.forget()
    for resource in (NODES, PODS):
        with pytest.raises(ForgottenError, match=r"too old resource version: 1 \(2\)"):
            store.changes_after(resource, 1)
        assert [*store.changes_after(resource, 2)] == []
    store.put(NODES, node("c"))
    assert [change.version for change in store.changes_after(NODES, 2)] == [3]


def test_history_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.sandbox.store.HISTORY", 3)
    store = Store()
    for number in range(5):
        store.put(NODES, node("a", x=str(number)))
    assert [change.version for change in store.changes_after(NODES, 2)] == [3, 4, 5]
    with pytest.raises(ForgottenError):
        store.changes_after(NODES, 1)
    assert [*store.changes_after(PODS, 0)] == []


async def test_a_write_wakes_all_waiting_tasks() -> None:
    store = Store()
    waiting = [asyncio.create_task(store.wait_beyond(0)) for _ in range(3)]
    done, _ = await asyncio.wait(waiting, timeout=0)
    assert not done
    store.put(NODES, node("a"))
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
        await store.wait_beyond(0)  # of the past: at once
