from typing import Any

from lab.sandbox.managed_fields import managed_fields
from lab.sandbox.resources import Object


def entries(old: Object, new: Object, manager: str, *, status: bool = False) -> list[Any]:
    return managed_fields(old, new, manager=manager, api_version="v1", time="2026-01-01T00:00:00Z", status=status)


def labelled(entries: list[Any] | None = None, **labels: str) -> Object:
    return {"metadata": {"name": "x", "labels": labels} | ({"managedFields": entries} if entries else {})}


def of(entries: list[Any]) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in entries}


def test_the_creator_manages_all_fields() -> None:
    new = labelled(a="b") | {"spec": {"strategies": {"s": {"rules": [{"metricname": "m"}]}}, "empty": {}}}
    (entry,) = entries({"metadata": {}}, new, "author")
    assert entry == {
        "manager": "author",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {"f:labels": {"f:a": {}}},
            "f:spec": {"f:strategies": {"f:s": {"f:rules": {}}}, "f:empty": {}},
        },
    }


def test_a_changed_field_gets_a_new_manager_and_managers_without_fields_are_removed() -> None:
    first = entries({"metadata": {}}, labelled(a="1", b="1"), "one")
    second = entries(labelled(first, a="1", b="1"), labelled(a="2", b="1"), "two")
    assert of(second) == {
        "one": {"f:metadata": {"f:labels": {"f:b": {}}}},
        "two": {"f:metadata": {"f:labels": {"f:a": {}}}},
    }
    third = entries(labelled(second, a="2", b="1"), labelled(a="2"), "three")
    assert of(third) == {"two": {"f:metadata": {"f:labels": {"f:a": {}}}}}


def test_fields_written_through_status_have_their_own_entry() -> None:
    first = entries({"metadata": {}}, labelled(a="1"), "one")
    with_status = labelled(a="1") | {"status": {"capacity": {"cpu": "1"}}}
    second = entries(labelled(first, a="1"), with_status, "one", status=True)
    assert [entry.get("subresource") for entry in second] == [None, "status"]
    assert second[1]["fieldsV1"] == {"f:status": {"f:capacity": {"f:cpu": {}}}}
