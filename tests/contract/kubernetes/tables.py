"""The part of the contract for kubectl: tables for `kubectl get`, and strategic merge patches for `kubectl cordon`."""

from typing import Any

import pytest

from .client import TABLE, Client, Object
from .suite import GROUP, NODES, STRATEGIC, pod, pods_of, policies_of, policy


def columns(table: Object) -> list[tuple[str, str]]:
    """Name and type of the columns without `--output=wide`."""
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    return [(each["name"], each["type"]) for each in table["columnDefinitions"] if each["priority"] == 0]


def cells(table: Object, name: str) -> list[Any]:
    """The row of an object, for the columns without `--output=wide`."""
    (row,) = (each for each in table["rows"] if each["object"]["metadata"]["name"] == name)
    shown = zip(table["columnDefinitions"], row["cells"], strict=True)
    return [cell for column, cell in shown if column["priority"] == 0]


def texts(*names: str) -> list[tuple[str, str]]:
    return [(name, "string") for name in names]


class TableContract:
    """Tests that use the fixtures of `KubernetesContract`."""

    async def test_a_table_of_nodes(self, api: Client, node: Object, path: str) -> None:
        name = node["metadata"]["name"]
        (await api.patch(path, {"metadata": {"labels": {"node-role.kubernetes.io/worker": ""}}})).ok()
        for requested in (path, NODES):
            table = (await api.get(requested, accept=TABLE)).ok()
            assert columns(table) == texts("Name", "Status", "Roles", "Age", "Version")
            assert cells(table, name)[:3] == [name, "Ready", "worker"]
            assert cells(table, name)[3].endswith("s")
            assert table["metadata"]["resourceVersion"]
            assert {row["object"]["kind"] for row in table["rows"]} == {"PartialObjectMetadata"}

    async def test_include_object_chooses_the_form_of_objects_in_a_table(
        self, api: Client, node: Object, path: str
    ) -> None:
        (whole,) = (await api.get(path, accept=TABLE, includeObject="Object")).ok()["rows"]
        assert whole["object"] == (await api.get(path)).ok()
        (bare,) = (await api.get(path, accept=TABLE, includeObject="None")).ok()["rows"]
        assert bare.get("object") is None
        (await api.get(path, accept=TABLE, includeObject="All")).failed(400, "BadRequest")

    async def test_a_table_shows_a_cordoned_node(self, api: Client, node: Object, path: str) -> None:
        name = node["metadata"]["name"]
        for value, status in ((True, "Ready,SchedulingDisabled"), (None, "Ready")):
            patched = (await api.patch(path, {"spec": {"unschedulable": value}}, content_type=STRATEGIC)).ok()
            assert patched["spec"].get("unschedulable") == value
            assert cells((await api.get(path, accept=TABLE)).ok(), name)[1] == status

    async def test_a_strategic_merge_patch_of_taints_replaces_them(self, api: Client, node: Object, path: str) -> None:
        for key in ("example.com/one", "example.com/two"):
            taint = {"key": key, "value": "v", "effect": "PreferNoSchedule"}
            patched = (await api.patch(path, {"spec": {"taints": [taint]}}, content_type=STRATEGIC)).ok()
            assert [each for each in patched["spec"]["taints"] if each["key"].startswith("example.com/")] == [taint]

    async def test_a_table_of_pods(self, api: Client, namespace: str) -> None:
        (await api.create(pods_of(namespace), pod("waits"))).ok()
        table = (await api.get(pods_of(namespace), accept=TABLE)).ok()
        assert columns(table) == texts("Name", "Ready", "Status", "Restarts", "Age")
        assert cells(table, "waits")[:4] == ["waits", "0/1", "Pending", "0"]

    async def test_tables_of_events_and_namespaces(self, api: Client, namespace: str) -> None:
        event = {
            "metadata": {"name": "event-1"},
            "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "web"},
            "type": "Warning",
            "reason": "FailedScheduling",
            "message": "fits no node",
            "lastTimestamp": "2026-01-01T00:00:00Z",
        }
        path = f"/api/v1/namespaces/{namespace}/events"
        (await api.create(path, event)).ok()
        table = (await api.get(path, accept=TABLE)).ok()
        assert columns(table) == texts("Last Seen", "Type", "Reason", "Object", "Message")
        assert cells(table, "event-1")[1:] == ["Warning", "FailedScheduling", "pod/web", "fits no node"]
        table = (await api.get("/api/v1/namespaces", accept=TABLE)).ok()
        assert columns(table) == texts("Name", "Status", "Age")
        assert cells(table, namespace)[:2] == [namespace, "Active"]

    async def test_a_table_of_policies_has_the_columns_of_the_definition(self, api: Client, namespace: str) -> None:
        path = policies_of(namespace)
        (await api.create(path, policy("one"))).ok()
        table = (await api.get(path, accept=TABLE)).ok()
        shown = [("Ready", "string"), ("Metrics", "string"), ("Violating", "integer"), ("Age", "date")]
        assert columns(table) == [("Name", "string"), *shown]
        assert [each["name"] for each in table["columnDefinitions"] if each["priority"]] == ["Message"]
        assert cells(table, "one")[:4] == ["one", None, None, None]
        condition: Object = {"type": "Ready", "status": "True", "reason": "InForce", "message": ""}
        condition |= {"observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"conditions": [condition], "violating": 2, "observedGeneration": 1}
        (await api.patch(f"{path}/one/status", {"status": status})).ok()
        table = (await api.get(f"{path}/one", accept=TABLE)).ok()
        assert cells(table, "one")[:4] == ["one", "True", None, 2]

    @pytest.mark.parametrize("resource", ["nodes", "policies"])
    async def test_only_the_first_table_of_a_watch_has_column_definitions(
        self, api: Client, node: Object, namespace: str, resource: str
    ) -> None:
        path = NODES if resource == "nodes" else policies_of(namespace)
        about = node["metadata"]["name"]
        if resource == "policies":
            about = (await api.create(path, policy("one"))).ok()["metadata"]["name"]
        selector = f"metadata.name={about}"
        version = (await api.get(f"{path}/{about}")).ok()["metadata"]["resourceVersion"]
        for value in ("1", "2"):
            (await api.patch(f"{path}/{about}", {"metadata": {"labels": {"seen": value}}})).ok()
        async with api.watch(path, accept=TABLE, resourceVersion=version, fieldSelector=selector) as watch:
            first, second = [await watch.next() for _ in range(2)]
        assert first["type"] == second["type"] == "MODIFIED"
        assert first["object"]["columnDefinitions"][0]["name"] == "Name"
        assert second["object"]["columnDefinitions"] is None
        (row,) = second["object"]["rows"]
        assert row["cells"][0] == about
        assert row["object"]["metadata"]["labels"]["seen"] == "2"

    async def test_a_table_of_definitions(self, api: Client) -> None:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/taspolicies.{GROUP}"
        table = (await api.get(path, accept=TABLE)).ok()
        assert table["rows"][0]["cells"][0] == f"taspolicies.{GROUP}"
