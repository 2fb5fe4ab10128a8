"""The contract: each test is a fact about the API server, first observed on kube-apiserver 1.36.

A subclass has the fixture `server`. Each test uses its own objects, since a real server has other objects, too.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import pytest

from .client import MERGE_PATCH, PARTIAL, PARTIAL_LIST, Client, Object, until

NODES = "/api/v1/nodes"
GROUP = "telemetry.intel.com"
POLICY_ROOT = f"/apis/{GROUP}/v1alpha1"
ALL_POLICIES = f"{POLICY_ROOT}/taspolicies"
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/taspolicies.{GROUP}"

STRATEGIES = {"dontschedule": {"rules": [{"metricname": "health", "operator": "Equals", "target": 1}]}}
OTHER_STRATEGIES = {"dontschedule": {"rules": [{"metricname": "health", "operator": "Equals", "target": 2}]}}
TOO_LONG = "x" * 64
STRATEGIC = "application/strategic-merge-patch+json"


class Server(ABC):
    """A server under test."""

    client: Client

    @abstractmethod
    def without_policies(self) -> AbstractAsyncContextManager[None]:
        """Deletes the CustomResourceDefinition, and creates it again after the body."""

    @abstractmethod
    async def forget(self) -> str:
        """A resource version of policies that is too old to watch from."""


def budgets_of(namespace: str) -> str:
    """The path of a namespace's disruption budgets."""
    return f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"


def deployments_of(namespace: str) -> str:
    """The path of a namespace's Deployments."""
    return f"/apis/apps/v1/namespaces/{namespace}/deployments"


def policies_of(namespace: str) -> str:
    """The path of a namespace's policies."""
    return f"{POLICY_ROOT}/namespaces/{namespace}/taspolicies"


def pods_of(namespace: str) -> str:
    """The path of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


def policy(name: str, **more: Any) -> Object:
    """A valid policy."""
    head = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "TASPolicy", "metadata": {"name": name}}
    return head | {"spec": {"strategies": STRATEGIES}} | more


def pod(name: str, **spec: Any) -> Object:
    """A pod of a scheduler that does not exist."""
    container = {"name": "main", "image": "pause", "resources": {"limits": {"telemetry/scheduling": "1"}}}
    return {
        "metadata": {"name": name, "labels": {"telemetry-policy": "demo"}},
        "spec": {"schedulerName": "nobody", "containers": [container]} | spec,
    }


def managers_of(stored: Object, key: str) -> list[tuple[str, str]]:
    """The field managers of a label, each with its operation."""
    return [
        (entry["manager"], entry["operation"])
        for entry in stored["metadata"]["managedFields"]
        if f"f:{key}" in entry["fieldsV1"].get("f:metadata", {}).get("f:labels", {})
    ]


async def _is_ready(api: Client, path: str) -> bool:
    conditions = (await api.get(path)).ok()["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def fresh(prefix: str) -> str:
    """A new unique name."""
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


class KubernetesContract:
    """Every fact that a worker, a test or a demo relies on."""

    @pytest.fixture
    def api(self, server: Server) -> Client:
        return server.client

    @pytest.fixture
    async def node(self, api: Client) -> AsyncIterator[Object]:
        """A new Ready node with one label."""
        name = fresh("node")
        capacity = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        body = {"metadata": {"name": name, "labels": {"first": "label"}}, "status": {"capacity": capacity}}
        (await api.create(NODES, body)).ok()

        async def ready() -> Object | None:
            found: Object = (await api.get(f"{NODES}/{name}")).ok()
            conditions = found["status"].get("conditions", [])
            return found if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions) else None

        yield await until(ready, "the node is Ready")
        await api.delete(f"{NODES}/{name}")

    @pytest.fixture
    def path(self, node: Object) -> str:
        """The path of the node."""
        return f"{NODES}/{node['metadata']['name']}"

    @pytest.fixture
    async def namespace(self, api: Client) -> str:
        """A new namespace that accepts pods."""
        name = fresh("contract")
        (await api.create("/api/v1/namespaces", {"metadata": {"name": name}})).ok()

        async def accepts_pods() -> bool:
            dry = await api.create(pods_of(name), pod("probe"))
            return dry.status == 201

        await until(accepts_pods, f"{name} accepts pods")
        (await api.delete(f"{pods_of(name)}/probe", {"gracePeriodSeconds": 0})).ok()

        async def is_deleted() -> bool:
            return (await api.get(f"{pods_of(name)}/probe")).status == 404

        await until(is_deleted, "the probe is deleted")
        return name

    @pytest.fixture
    async def demo(self, api: Client, namespace: str) -> Object:
        """A new policy `demo`."""
        created: Object = (await api.create(policies_of(namespace), policy("demo"), fieldManager="author")).ok()
        return created

    # Discovery

    async def test_discovery_names_what_we_use(self, api: Client) -> None:
        assert (await api.get("/version")).ok()["major"] == "1"
        assert "v1" in (await api.get("/api")).ok()["versions"]
        groups = {group["name"] for group in (await api.get("/apis")).ok()["groups"]}
        assert {GROUP, "apiextensions.k8s.io"} <= groups
        core = {each["name"]: each for each in (await api.get("/api/v1")).ok()["resources"]}
        assert {"nodes", "nodes/status", "pods", "pods/status", "pods/binding", "pods/eviction"} <= core.keys()
        assert {"namespaces", "events"} <= core.keys()
        assert (core["nodes"]["kind"], core["nodes"]["namespaced"]) == ("Node", False)
        assert (core["pods/eviction"]["group"], core["pods/eviction"]["kind"]) == ("policy", "Eviction")
        assert {"get", "list", "watch", "create", "patch", "delete"} <= set(core["nodes"]["verbs"])
        ours = {each["name"]: each for each in (await api.get(POLICY_ROOT)).ok()["resources"]}
        assert ours.keys() == {"taspolicies", "taspolicies/status"}
        assert (ours["taspolicies"]["kind"], ours["taspolicies"]["namespaced"]) == ("TASPolicy", True)

    async def test_a_path_that_is_not_served_is_a_plain_404(self, api: Client) -> None:
        (await api.get("/api/v1/nothing")).failed(404, "NotFound")
        for path in ("/nothing", "/apis/nothing.example.com/v1/things"):
            answer = await api.get(path)
            assert (answer.status, answer.body) == (404, "404 page not found\n")

    async def test_unsupported_methods_and_forms_are_rejected(self, api: Client, path: str) -> None:
        (await api.put(NODES, {})).failed(405, "MethodNotAllowed")
        (await api.create(path, {})).failed(405, "MethodNotAllowed")
        (await api.get(path, accept="text/plain")).failed(406, "NotAcceptable")
        (await api.get(path, accept=PARTIAL_LIST)).failed(406, "NotAcceptable")
        (await api.get(NODES, accept=PARTIAL)).failed(406, "NotAcceptable")

    # Get and list

    async def test_a_list_has_one_kind_and_its_items_none(self, api: Client, node: Object, path: str) -> None:
        assert (node["kind"], node["apiVersion"]) == ("Node", "v1")
        listed = (await api.get(NODES)).ok()
        assert (listed["kind"], listed["apiVersion"]) == ("NodeList", "v1")
        (mine,) = [each for each in listed["items"] if each["metadata"]["name"] == node["metadata"]["name"]]
        required = {"architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"}
        required |= {"kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID"}
        assert required <= mine["status"]["nodeInfo"].keys()
        assert "kind" not in mine
        assert mine["metadata"] == (await api.get(path)).ok()["metadata"]
        assert int(listed["metadata"]["resourceVersion"]) >= int(mine["metadata"]["resourceVersion"])

    async def test_every_policy_of_a_list_has_a_kind(self, api: Client, namespace: str, demo: Object) -> None:
        listed = (await api.get(policies_of(namespace))).ok()
        assert (listed["kind"], listed["apiVersion"]) == ("TASPolicyList", f"{GROUP}/v1alpha1")
        assert listed["items"] == [demo]
        assert (demo["kind"], demo["apiVersion"]) == ("TASPolicy", f"{GROUP}/v1alpha1")

    async def test_a_list_of_one_namespace_or_all(self, api: Client, namespace: str, demo: Object) -> None:
        everywhere = (await api.get(ALL_POLICIES)).ok()["items"]
        assert demo in everywhere
        assert (await api.get(policies_of("kube-system"))).ok()["items"] == []
        assert (await api.get(policies_of("no-such-namespace"))).ok()["items"] == []

    async def test_a_404_names_the_missing_object(self, api: Client, namespace: str) -> None:
        """Only such an answer allows the removal of a label."""
        for verb in (api.get, api.delete):
            answer = await verb(f"{policies_of(namespace)}/absent")
            assert answer.failed(404, "NotFound") == f'taspolicies.{GROUP} "absent" not found'
            assert answer.body["details"] == {"name": "absent", "group": GROUP, "kind": "taspolicies"}
        answer = await api.get(f"{NODES}/absent")
        assert answer.failed(404, "NotFound") == 'nodes "absent" not found'
        assert answer.body["details"] == {"name": "absent", "kind": "nodes"}

    async def test_metadata_only_is_a_form_of_objects_and_lists(self, api: Client, node: Object, path: str) -> None:
        one = (await api.get(path, accept=PARTIAL)).ok()
        assert one == {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": node["metadata"],
        }
        listed = (await api.get(NODES, accept=f"{PARTIAL_LIST},application/json")).ok()
        assert (listed["kind"], listed["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
        assert one in listed["items"]

    async def test_all_pages_of_a_list_have_one_version(self, api: Client, namespace: str) -> None:
        path = policies_of(namespace)
        for name in ("a", "b", "c"):
            (await api.create(path, policy(name))).ok()
        assert not (await api.get(path, limit=3)).ok()["metadata"].get("continue")  # all are on the page
        first = (await api.get(path, limit=2)).ok()
        assert [each["metadata"]["name"] for each in first["items"]] == ["a", "b"]
        assert first["metadata"]["remainingItemCount"] == 1
        (await api.create(path, policy("d"))).ok()
        (await api.delete(f"{path}/c")).ok()
        token = first["metadata"]["continue"]
        last = (await api.get(path, limit=2, **{"continue": token})).ok()
        assert [each["metadata"]["name"] for each in last["items"]] == ["c"]
        assert last["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        assert not last["metadata"].get("continue")
        (await api.get(path, **{"continue": "nonsense"})).failed(400, "BadRequest")
        from_cache = (await api.get(path, limit=1, resourceVersion="0")).ok()
        assert len(from_cache["items"]) > 1  # an answer from the cache ignores the limit
        assert not from_cache["metadata"].get("continue")

    async def test_a_list_can_require_a_minimum_version(self, api: Client, node: Object) -> None:
        version = int(node["metadata"]["resourceVersion"])
        listed = (await api.get(NODES, resourceVersion=version)).ok()
        assert int(listed["metadata"]["resourceVersion"]) >= version
        (await api.get(NODES, resourceVersion=version + 1_000_000)).failed(504, "Timeout")

    @pytest.mark.parametrize(
        ("selector", "matches"),
        [
            ("first=label", True),
            ("first==label", True),
            ("first=other", False),
            ("first!=other", True),
            ("absent!=other", True),
            ("first", True),
            ("!first", False),
            ("!absent", True),
            ("first in (label, other)", True),
            ("first notin (label,other)", False),
            ("absent notin (label)", True),
            ("first,first in (a,label),!absent", True),
            ("first,absent", False),
        ],
    )
    async def test_label_selectors(self, api: Client, node: Object, selector: str, matches: bool) -> None:
        listed = (await api.get(NODES, labelSelector=selector)).ok()["items"]
        assert (node["metadata"]["uid"] in {each["metadata"]["uid"] for each in listed}) == matches

    async def test_field_selectors(self, api: Client, node: Object, namespace: str) -> None:
        name = node["metadata"]["name"]
        listed = (await api.get(NODES, fieldSelector=f"metadata.name={name}")).ok()["items"]
        assert [each["metadata"]["name"] for each in listed] == [name]
        listed = (await api.get(NODES, fieldSelector=f"metadata.name!={name}")).ok()["items"]
        assert name not in {each["metadata"]["name"] for each in listed}
        (await api.create(pods_of(namespace), pod("waiting"))).ok()
        for selector, expected in {
            "spec.nodeName=": ["waiting"],
            "spec.nodeName!=": [],
            "spec.nodeName=,status.phase=Pending": ["waiting"],
            "spec.schedulerName=default-scheduler": [],
            "metadata.namespace=elsewhere": [],
        }.items():
            listed = (await api.get(pods_of(namespace), fieldSelector=selector)).ok()["items"]
            assert [each["metadata"]["name"] for each in listed] == expected

    @pytest.mark.parametrize(
        "query",
        [{"labelSelector": "a in (b"}, {"labelSelector": "a b"}, {"fieldSelector": "spec.nothing=x"}],
        ids=["open", "two words", "field"],
    )
    async def test_an_invalid_selector_is_rejected(self, api: Client, query: dict[str, str]) -> None:
        (await api.get(NODES, **query)).failed(400, "BadRequest")

    # Create and delete

    async def test_a_new_policy_has_an_identity_and_no_status(self, api: Client, namespace: str) -> None:
        sent = policy("new", status={"compliance": "invented"})
        sent["metadata"] |= {"uid": "invented", "resourceVersion": "", "generation": 7, "labels": {"a": "b"}}
        created = await api.create(policies_of(namespace), sent)
        assert created.status == 201
        assert created.body["spec"] == sent["spec"]
        assert "status" not in created.body
        metadata = created.body["metadata"]
        assert (metadata["name"], metadata["namespace"], metadata["generation"]) == ("new", namespace, 1)
        assert metadata["labels"] == {"a": "b"}
        assert str(uuid.UUID(metadata["uid"])) == metadata["uid"]
        assert metadata["creationTimestamp"].endswith("Z")
        assert (await api.get(f"{policies_of(namespace)}/new")).ok() == created.body

    async def test_a_used_name_is_rejected(self, api: Client, namespace: str, demo: Object) -> None:
        answer = await api.create(policies_of(namespace), policy("demo"))
        assert answer.failed(409, "AlreadyExists") == f'taspolicies.{GROUP} "demo" already exists'
        assert answer.body["details"]["name"] == "demo"
        other = (await api.create(policies_of("kube-system"), policy(namespace))).ok()
        assert other["metadata"]["uid"] != demo["metadata"]["uid"]
        await api.delete(f"{policies_of('kube-system')}/{namespace}")

    async def test_an_invalid_policy_is_not_created(self, api: Client, namespace: str) -> None:
        path = policies_of(namespace)
        answer = await api.create(path, policy("Upper_Case"))
        assert 'metadata.name: Invalid value: "Upper_Case"' in answer.failed(422, "Invalid")
        (await api.create(path, policy("x") | {"kind": "Other"})).failed(422, "Invalid")
        (await api.create(path, {"metadata": {"name": "x"}, "spec": {}})).failed(400, "BadRequest")
        (await api.create(path, policy("") | {"metadata": {}})).failed(422, "Invalid")
        (await api.create(path, policy("x") | {"metadata": {"name": "x", "namespace": "y"}})).failed(400, "BadRequest")
        answer = await api.create(policies_of("no-such-namespace"), policy("x"))
        assert answer.failed(404, "NotFound") == 'namespaces "no-such-namespace" not found'
        assert (await api.get(path)).ok()["items"] == []

    async def test_a_generated_name_begins_with_its_prefix(self, api: Client, namespace: str) -> None:
        body = policy("") | {"metadata": {"generateName": "some-"}}
        one, other = [(await api.create(policies_of(namespace), body)).ok()["metadata"]["name"] for _ in range(2)]
        assert one.startswith("some-")
        assert other.startswith("some-")
        assert len({one, other, "some-"}) == 3

    async def test_a_deletion_with_another_uid_is_a_conflict(self, api: Client, namespace: str, demo: Object) -> None:
        path = f"{policies_of(namespace)}/demo"
        answer = await api.delete(path, {"preconditions": {"uid": "of-another"}})
        assert "does not match the UID in record" in answer.failed(409, "Conflict")
        uid = demo["metadata"]["uid"]
        deleted = (await api.delete(path, {"preconditions": {"uid": uid}})).ok()
        assert deleted["status"] == "Success"
        assert deleted["details"] == {"name": "demo", "group": GROUP, "kind": "taspolicies", "uid": uid}
        (await api.get(path)).failed(404, "NotFound")
        again = (await api.create(policies_of(namespace), policy("demo"))).ok()
        assert again["metadata"]["uid"] != uid

    async def test_a_new_nodes_allocatable_is_its_capacity(self, api: Client) -> None:
        name = fresh("node")
        body = {"metadata": {"name": name}, "status": {"capacity": {"cpu": "8000m", "memory": "1024Mi"}}}
        created = (await api.create(NODES, body)).ok()
        assert created["status"]["capacity"] == created["status"]["allocatable"] == {"cpu": "8", "memory": "1Gi"}
        deleted = (await api.delete(f"{NODES}/{name}")).ok()
        assert deleted["details"] == {"name": name, "kind": "nodes", "uid": created["metadata"]["uid"]}

    # Merge patches of labels

    async def test_a_patch_sets_one_label_and_its_field_manager(self, api: Client, node: Object, path: str) -> None:
        guards = {key: node["metadata"][key] for key in ("uid", "resourceVersion")}
        answer = await api.patch(path, {"metadata": guards | {"labels": {"a": "b"}}}, fieldManager="tas")
        assert answer.ok()["metadata"]["labels"] == {"first": "label", "a": "b"}
        assert managers_of(answer.body, "a") == [("tas", "Update")]
        assert managers_of(answer.body, "first") == [("suite", "Update")]  # the first part of the user agent
        assert int(answer.body["metadata"]["resourceVersion"]) > int(node["metadata"]["resourceVersion"])
        assert (await api.get(path)).ok() == answer.body

    async def test_a_patch_that_changes_nothing_is_no_change(self, api: Client, path: str) -> None:
        before = (await api.patch(path, {"metadata": {"labels": {"a": "b"}}})).ok()
        version = before["metadata"]["resourceVersion"]
        async with api.watch(NODES, resourceVersion=version) as watch:
            for labels in ({"a": "b"}, {"absent": None}, {}):
                patch = {"metadata": {"resourceVersion": version, "labels": labels}}
                assert (await api.patch(path, patch, fieldManager="other")).ok() == before
            changed = (await api.patch(path, {"metadata": {"labels": {"a": "c"}}})).ok()
            assert await watch.about(before) == ("MODIFIED", changed)

    async def test_null_deletes_a_label_of_any_field_manager(self, api: Client, node: Object, path: str) -> None:
        (await api.patch(path, {"metadata": {"labels": {"a": "b"}}}, fieldManager="somebody")).ok()
        after = (await api.patch(path, {"metadata": {"labels": {"a": None, "c": "d"}}}, fieldManager="tas")).ok()
        assert after["metadata"]["labels"] == {"first": "label", "c": "d"}
        assert managers_of(after, "a") == []
        bare = (await api.patch(path, {"metadata": {"labels": None}})).ok()
        assert "labels" not in bare["metadata"]

    async def test_a_new_value_changes_the_field_manager(self, api: Client, path: str) -> None:
        (await api.patch(path, {"metadata": {"labels": {"a": "b", "kept": "x"}}}, fieldManager="extender")).ok()
        same = (await api.patch(path, {"metadata": {"labels": {"a": "b", "c": "d"}}}, fieldManager="tas")).ok()
        assert (managers_of(same, "a"), managers_of(same, "c")) == ([("extender", "Update")], [("tas", "Update")])
        after = (await api.patch(path, {"metadata": {"labels": {"a": "z"}}}, fieldManager="tas")).ok()
        assert (managers_of(after, "a"), managers_of(after, "kept")) == ([("tas", "Update")], [("extender", "Update")])

    async def test_a_stale_version_is_a_conflict_even_if_nothing_would_change(
        self, api: Client, node: Object, path: str
    ) -> None:
        (await api.patch(path, {"metadata": {"labels": {"a": "b"}}})).ok()
        stale = {"resourceVersion": node["metadata"]["resourceVersion"]}
        for labels in ({"a": "c"}, {"a": "b"}):
            answer = await api.patch(path, {"metadata": stale | {"labels": labels}})
            assert "the object has been modified" in answer.failed(409, "Conflict")
            assert answer.body["details"] == {"name": node["metadata"]["name"], "kind": "nodes"}
        assert (await api.get(path)).ok()["metadata"]["labels"]["a"] == "b"

    async def test_a_patch_for_a_deleted_node_does_not_change_a_new_node_of_its_name(
        self, api: Client, node: Object, path: str
    ) -> None:
        guards = {key: node["metadata"][key] for key in ("uid", "resourceVersion")}
        (await api.delete(path)).ok()
        (await api.patch(path, {"metadata": guards | {"labels": {"a": "b"}}})).failed(404, "NotFound")
        name = node["metadata"]["name"]
        successor = (await api.create(NODES, {"metadata": {"name": name}})).ok()
        assert successor["metadata"]["uid"] != guards["uid"]
        answer = await api.patch(path, {"metadata": {"uid": guards["uid"], "labels": {"a": "b"}}})
        assert "metadata.uid: Invalid value" in answer.failed(422, "Invalid")
        assert "field is immutable" in answer.body["message"]
        (await api.patch(path, {"metadata": guards | {"labels": {"a": "b"}}})).failed(409, "Conflict")
        assert "labels" not in (await api.get(path)).ok()["metadata"]

    async def test_a_patch_creates_nothing(self, api: Client) -> None:
        path = f"{NODES}/{fresh('absent')}"
        answer = await api.patch(path, {"metadata": {"labels": {"a": "b"}}})
        assert answer.failed(404, "NotFound")
        assert answer.body["details"]["kind"] == "nodes"
        (await api.get(path)).failed(404, "NotFound")

    @pytest.mark.parametrize(
        ("key", "value", "named"),
        [
            ("a", TOO_LONG, f'"{TOO_LONG}": must be no more than 63 bytes'),
            ("a", "-x", '"-x": a valid label must be'),
            ("a", "x!", '"x!": a valid label must be'),
            ("a", "x y", '"x y": a valid label must be'),
            ("a b", "x", '"a b": name part must consist of'),
            ("a~b", "x", '"a~b": name part must consist of'),
            ("a/b/c", "x", '"a/b/c": a valid label key must consist of'),
            ("/a", "x", '"/a": prefix part must be non-empty'),
            ("a/", "x", '"a/": name part must be non-empty'),
            ("Up.er/a", "x", '"Up.er/a": prefix part a lowercase RFC 1123 subdomain'),
            (f"{'p' * 254}/a", "x", f'"{"p" * 254}/a": prefix part must be no more than 253 bytes'),
            (TOO_LONG, "x", f'"{TOO_LONG}": name part must be no more than 63 bytes'),
        ],
    )
    async def test_one_invalid_label_is_named_and_no_label_is_set(
        self, api: Client, node: Object, key: str, value: str, named: str
    ) -> None:
        path = f"{NODES}/{node['metadata']['name']}"
        answer = await api.patch(path, {"metadata": {"labels": {"good": "x", key: value}}})
        message = answer.failed(422, "Invalid")
        assert message.startswith(f'Node "{node["metadata"]["name"]}" is invalid: ')
        assert f"metadata.labels: Invalid value: {named}" in message
        details = answer.body["details"]
        assert (details["name"], details["kind"]) == (node["metadata"]["name"], "Node")
        assert {cause["field"] for cause in details["causes"]} == {"metadata.labels"}
        assert (await api.get(path)).ok() == node

    async def test_all_invalid_labels_are_named(self, api: Client, path: str) -> None:
        message = (await api.patch(path, {"metadata": {"labels": {"a": "-x", "b": "y!"}}})).failed(422, "Invalid")
        assert 'metadata.labels: Invalid value: "-x"' in message
        assert 'metadata.labels: Invalid value: "y!"' in message

    async def test_labels_of_maximal_length_are_accepted(self, api: Client, path: str) -> None:
        long = {f"{'p' * 253}/{'n' * 63}": "v" * 63, "empty": "", "UP.per_1": "A-1_b.C"}
        many = {f"label-{number}": "x" for number in range(200)}
        labels = (await api.patch(path, {"metadata": {"labels": long | many}})).ok()["metadata"]["labels"]
        assert labels == {"first": "label"} | long | many

    @pytest.mark.parametrize("key", ["labels", "annotations"])
    async def test_values_must_be_strings(self, api: Client, node: Object, path: str, key: str) -> None:
        (await api.patch(path, {"metadata": {key: {"a": 1}}})).failed(422, "Invalid")
        assert (await api.get(path)).ok() == node

    async def test_annotations_are_set_and_checked(self, api: Client, path: str) -> None:
        note = {"telemetry.intel.com/recovered": "17.2 of anything, with spaces"}
        assert (await api.patch(path, {"metadata": {"annotations": note}})).ok()["metadata"]["annotations"] == note
        answer = await api.patch(path, {"metadata": {"annotations": {"a b": "x"}}})
        assert 'metadata.annotations: Invalid value: "a b"' in answer.failed(422, "Invalid")

    async def test_an_invalid_patch_is_rejected(self, api: Client, node: Object, path: str) -> None:
        (await api.patch(path, '{"metadata')).failed(400, "BadRequest")
        (await api.patch(path, [1])).failed(400, "BadRequest")
        (await api.patch(path, {}, content_type="application/json")).failed(415, "UnsupportedMediaType")
        (await api.patch(path, {"metadata": {"name": "other"}})).failed(400, "BadRequest")
        assert (await api.get(path)).ok() == node

    # Status

    async def test_a_nodes_status_is_patched_separately(self, api: Client, node: Object, path: str) -> None:
        of_status = {"status": {"capacity": {"telemetry/scheduling": "77"}}}
        assert (await api.patch(path, of_status)).ok() == node
        offered = {"capacity": {"telemetry/scheduling": "1000"}, "allocatable": {"telemetry/scheduling": "1000"}}
        patch = {"status": offered, "spec": {"unschedulable": True}, "metadata": {"labels": {"a": "b"}}}
        after = (await api.patch(f"{path}/status", patch, fieldManager="tas-resources")).ok()
        for of in ("capacity", "allocatable"):
            assert after["status"][of] == node["status"][of] | {"telemetry/scheduling": "1k"}
        assert after["spec"] == node["spec"]
        assert after["metadata"]["labels"]["a"] == "b"
        assert [
            entry["manager"]
            for entry in after["metadata"]["managedFields"]
            if entry.get("subresource") == "status"
            and "f:telemetry/scheduling" in entry["fieldsV1"]["f:status"].get("f:capacity", {})
        ] == ["tas-resources"]
        removed = (await api.patch(f"{path}/status", {"status": {"capacity": {"telemetry/scheduling": None}}})).ok()
        assert removed["status"]["capacity"] == node["status"]["capacity"]
        (await api.patch(f"{path}/status", {"metadata": {"resourceVersion": "1"}})).failed(409, "Conflict")

    @pytest.mark.parametrize(
        ("sent", "stored"),
        [
            ("1000", "1k"),
            ("100000", "100k"),
            ("1001", "1001"),
            ("1000k", "1M"),
            ("1000M", "1G"),
            ("0.5", "500m"),
            ("1500m", "1500m"),
            ("1.0", "1"),
            ("0", "0"),
            ("1n", "1m"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("1000000Ki", "1000000Ki"),
            ("0.1Ki", "102400m"),
            ("1e3", "1e3"),
            ("1.5e3", "1500"),
            ("1Ei", "1Ei"),
            (5, "5"),
        ],
    )
    async def test_quantities_are_stored_in_canonical_form(
        self, api: Client, path: str, sent: str | int, stored: str
    ) -> None:
        after = (await api.patch(f"{path}/status", {"status": {"capacity": {"memory": sent}}})).ok()
        assert after["status"]["capacity"]["memory"] == stored
        again = (await api.patch(f"{path}/status", {"status": {"capacity": {"memory": stored}}})).ok()
        assert again == after

    @pytest.mark.parametrize(("name", "sent"), [("memory", "-1"), ("memory", "much"), ("example.com/card", "1.5")])
    async def test_an_invalid_quantity_is_rejected(
        self, api: Client, node: Object, path: str, name: str, sent: str
    ) -> None:
        (await api.patch(f"{path}/status", {"status": {"capacity": {name: sent}}})).failed(422, "Invalid")
        assert (await api.get(path)).ok() == node

    async def test_a_policys_generation_counts_changes_of_its_spec(
        self, api: Client, namespace: str, demo: Object
    ) -> None:
        path = f"{policies_of(namespace)}/demo"
        assert demo["metadata"]["generation"] == 1
        same = (await api.patch(path, {"spec": {"strategies": STRATEGIES}})).ok()
        assert same == demo
        changed = (await api.patch(path, {"spec": {"strategies": OTHER_STRATEGIES}})).ok()
        assert (changed["spec"]["strategies"], changed["metadata"]["generation"]) == (OTHER_STRATEGIES, 2)
        labelled = (await api.patch(path, {"metadata": {"labels": {"a": "b"}}})).ok()
        assert labelled["metadata"]["generation"] == 2

    async def test_a_policys_status_is_patched_separately(self, api: Client, namespace: str, demo: Object) -> None:
        path = f"{policies_of(namespace)}/demo"
        assert (await api.patch(path, {"status": {"compliance": "x"}})).ok() == demo
        patch = {
            "status": {"compliance": "x"},
            "spec": {"strategies": OTHER_STRATEGIES},
            "metadata": {"labels": {"a": "b"}, "resourceVersion": demo["metadata"]["resourceVersion"]},
        }
        after = (await api.patch(f"{path}/status", patch, fieldManager="tas-watch")).ok()
        assert after["status"] == {"compliance": "x"}
        assert after["spec"] == demo["spec"]
        assert after["metadata"]["generation"] == 1
        assert "labels" not in after["metadata"]
        assert after["metadata"]["managedFields"][-1]["manager"] == "tas-watch"
        assert (await api.get(f"{path}/status")).ok() == after
        answer = await api.patch(f"{path}/status", patch)
        assert answer.failed(409, "Conflict").startswith(f'Operation cannot be fulfilled on taspolicies.{GROUP} "demo"')
        assert (await api.patch(path, {"spec": {"suspend": True}})).ok()["status"] == {"compliance": "x"}

    async def test_a_uid_guards_a_policy_but_not_its_status(self, api: Client, namespace: str, demo: Object) -> None:
        """For the status of a custom resource, only resourceVersion is checked."""
        path = f"{policies_of(namespace)}/demo"
        message = f'TASPolicy.{GROUP} "demo" is invalid: metadata.uid: Invalid value: "earlier": field is immutable'
        answer = await api.patch(path, {"metadata": {"uid": "earlier"}, "spec": {"suspend": True}})
        assert answer.failed(422, "Invalid") == message
        assert (await api.get(path)).ok() == demo
        patch = {"metadata": {"uid": "earlier"}, "status": {"compliance": "x"}}
        after = (await api.patch(f"{path}/status", patch)).ok()
        assert (after["status"], after["metadata"]["uid"]) == ({"compliance": "x"}, demo["metadata"]["uid"])

    async def test_a_uid_guards_a_node_and_its_status(self, api: Client, node: Object, path: str) -> None:
        for target in (path, f"{path}/status"):
            patch = {"metadata": {"uid": "earlier"}, "status": {"capacity": {"memory": "1Gi"}}}
            (await api.patch(target, patch)).failed(422, "Invalid")
        assert (await api.get(path)).ok() == node

    # Watch

    async def test_a_watch_sends_every_change_after_a_version_in_order(self, api: Client, namespace: str) -> None:
        path = policies_of(namespace)
        version = await api.version(path)
        created = (await api.create(path, policy("one"))).ok()
        changed = (await api.patch(f"{path}/one", {"spec": {"strategies": OTHER_STRATEGIES}})).ok()
        async with api.watch(path, resourceVersion=version) as watch:
            assert await watch.next() == {"type": "ADDED", "object": created}
            assert await watch.next() == {"type": "MODIFIED", "object": changed}
            (await api.delete(f"{path}/one")).ok()
            deleted = await watch.next()
        assert deleted["type"] == "DELETED"
        assert deleted["object"]["spec"] == changed["spec"]
        assert int(deleted["object"]["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])
        async with api.watch(path, resourceVersion=changed["metadata"]["resourceVersion"]) as watch:
            assert await watch.next() == deleted

    @pytest.mark.parametrize("version", [{}, {"resourceVersion": "0"}], ids=["none", "0"])
    async def test_a_watch_without_a_version_begins_with_the_existing_objects(
        self, api: Client, namespace: str, demo: Object, version: dict[str, str]
    ) -> None:
        async with api.watch(ALL_POLICIES, **version) as watch:
            assert await watch.about(demo) == ("ADDED", demo)
            (await api.delete(f"{policies_of(namespace)}/demo")).ok()
            kind, _ = await watch.about(demo)
            assert kind == "DELETED"

    async def test_a_watch_of_one_namespace(self, api: Client, namespace: str) -> None:
        version = await api.version(ALL_POLICIES)
        foreign = fresh("foreign")
        (await api.create(policies_of("kube-system"), policy(foreign))).ok()
        (await api.delete(f"{policies_of('kube-system')}/{foreign}")).ok()
        mine = (await api.create(policies_of(namespace), policy("mine"))).ok()
        async with api.watch(policies_of(namespace), resourceVersion=version) as watch:
            assert await watch.next() == {"type": "ADDED", "object": mine}

    async def test_a_watch_of_metadata_only(self, api: Client, node: Object, path: str) -> None:
        query = {"resourceVersion": node["metadata"]["resourceVersion"]}
        changed = (await api.patch(path, {"metadata": {"labels": {"a": "b"}}})).ok()
        async with api.watch(NODES, accept=PARTIAL, **query) as watch:
            kind, seen = await watch.about(node)
        assert kind == "MODIFIED"
        assert seen == {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": changed["metadata"],
        }

    async def test_a_watch_for_lists_of_metadata_has_no_events(self, api: Client, node: Object, path: str) -> None:
        """The form for a watch must be PartialObjectMetadata."""
        (await api.patch(path, {"metadata": {"labels": {"a": "b"}}})).ok()
        version = node["metadata"]["resourceVersion"]
        async with api.watch(
            NODES, accept=f"{PARTIAL_LIST},application/json", resourceVersion=version, timeoutSeconds=1
        ) as watch:
            assert await watch.rest() == []

    async def test_a_watch_with_a_selector_adds_and_deletes_by_the_selector(
        self, api: Client, node: Object, path: str
    ) -> None:
        version = node["metadata"]["resourceVersion"]
        token = fresh("t")
        inside = (await api.patch(path, {"metadata": {"labels": {"a": token}}})).ok()
        still = (await api.patch(path, {"metadata": {"labels": {"a": token, "b": "c"}}})).ok()
        outside = (await api.patch(path, {"metadata": {"labels": {"a": "other"}}})).ok()
        (await api.patch(path, {"metadata": {"labels": {"b": "d"}}})).ok()
        (await api.patch(path, {"metadata": {"labels": {"a": token}}})).ok()
        async with api.watch(NODES, resourceVersion=version, labelSelector=f"a={token}") as watch:
            assert await watch.next() == {"type": "ADDED", "object": inside}
            assert await watch.next() == {"type": "MODIFIED", "object": still}
            left = await watch.next()
            assert left["type"] == "DELETED"
            assert left["object"]["metadata"]["labels"]["a"] == token
            assert left["object"]["metadata"]["resourceVersion"] == outside["metadata"]["resourceVersion"]
            assert (await watch.next())["type"] == "ADDED"

    async def test_a_watch_ends_after_timeout_seconds(self, api: Client, namespace: str) -> None:
        path = policies_of(namespace)
        async with api.watch(path, resourceVersion=await api.version(path), timeoutSeconds=1) as watch:
            assert await watch.rest() == []

    async def test_a_version_that_is_not_a_number_is_rejected(self, api: Client) -> None:
        answer = await api.get(NODES, resourceVersion="abc", watch="true")
        assert answer.status == 500 or answer.failed(400, "BadRequest")

    async def test_a_watch_from_a_forgotten_version_is_expired(self, server: Server, api: Client) -> None:
        """The stream has one event ERROR with a Status."""
        async with api.watch(ALL_POLICIES, resourceVersion=await server.forget()) as watch:
            (event,) = await watch.rest()
        assert event["type"] == "ERROR"
        status = event["object"]
        assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
        assert status["message"].startswith("too old resource version: ")

    async def test_a_watch_gets_bookmarks(self, api: Client, node: Object, path: str) -> None:
        """After changes that the watch does not select: about every minute, and shortly before the end."""
        version = node["metadata"]["resourceVersion"]
        query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "4"}

        async def bookmarked() -> tuple[Object, Object] | None:
            """The changed node, and the event; None if the watch has ended before the change: on a busy machine."""
            async with api.watch(NODES, accept=PARTIAL, fieldSelector="metadata.name=nobody", **query) as watch:
                changed = (await api.patch(path, {"metadata": {"labels": {"a": fresh("b")}}})).ok()
                with suppress(EOFError):
                    return changed, await watch.next()
            return None

        changed, event = await until(bookmarked, "a watch gets a bookmark after a change")
        assert event["type"] == "BOOKMARK"
        assert event["object"]["kind"] == "PartialObjectMetadata"
        assert int(event["object"]["metadata"]["resourceVersion"]) >= int(changed["metadata"]["resourceVersion"])

    async def test_a_watch_without_changes_gets_no_bookmarks(self, api: Client, node: Object) -> None:
        query = {"resourceVersion": await api.version(NODES), "allowWatchBookmarks": "true", "timeoutSeconds": "3"}
        async with api.watch(NODES, **query) as watch:
            assert await watch.rest() == []

    async def test_without_the_definition_a_404_does_not_name_the_policy(
        self, server: Server, api: Client, namespace: str, demo: Object
    ) -> None:
        """Such a 404 must never allow the removal of a label."""
        version = demo["metadata"]["resourceVersion"]
        async with (
            api.watch(policies_of(namespace), resourceVersion=version) as watch,
            server.without_policies(),
        ):
            for path in (f"{policies_of(namespace)}/demo", policies_of(namespace), ALL_POLICIES):
                answer = await api.get(path)
                assert (answer.status, answer.body) == (404, "404 page not found\n")

            async def is_not_listed() -> bool:
                return all(group["name"] != GROUP for group in (await api.get("/apis")).ok()["groups"])

            await until(is_not_listed, "the list of groups is without the group")  # it may be behind the paths
            events = await watch.rest()
        assert [event["type"] for event in events if event["type"] != "MODIFIED"] == ["DELETED"]
        assert (await api.get(policies_of(namespace))).ok()["items"] == []

    async def test_the_definition_is_established(self, api: Client) -> None:
        definition = (await api.get(CRD)).ok()
        assert definition["spec"]["names"]["kind"] == "TASPolicy"
        assert {"Established"} <= {each["type"] for each in definition["status"]["conditions"]}

    # Pods

    async def test_a_new_pod_is_pending(self, api: Client, namespace: str) -> None:
        sent = pod("web")
        del sent["spec"]["schedulerName"]
        sent["status"] = {"phase": "Running"}
        created = (await api.create(pods_of(namespace), sent | {"status": {"phase": "Running"}})).ok()
        assert created["status"]["phase"] == "Pending"
        assert created["spec"]["schedulerName"] == "default-scheduler"
        assert "nodeName" not in created["spec"]
        assert created["metadata"]["generation"] == 1
        resources = created["spec"]["containers"][0]["resources"]
        assert resources["requests"] == resources["limits"] == {"telemetry/scheduling": "1"}
        answer = await api.create(pods_of(namespace), {"metadata": {"name": "bare"}, "spec": {}})
        assert 'Pod "bare" is invalid: spec.containers: Required value' in answer.failed(422, "Invalid")

    async def test_a_pod_is_bound_once_and_runs(self, api: Client, namespace: str, node: Object) -> None:
        (await api.create(pods_of(namespace), pod("web"))).ok()
        name = node["metadata"]["name"]
        path, binding = f"{pods_of(namespace)}/web", {"metadata": {"name": "web"}}
        version = await api.version(pods_of(namespace))
        bound = await api.create(f"{path}/binding", binding | {"target": {"kind": "Node", "name": name}})
        assert (bound.status, bound.body["kind"], bound.body["status"]) == (201, "Status", "Success")
        answer = await api.create(f"{path}/binding", binding | {"target": {"kind": "Node", "name": "other"}})
        assert "is already assigned to node" in answer.failed(409, "Conflict")

        async def running() -> Object | None:
            found: Object = (await api.get(path)).ok()
            return found if found["status"]["phase"] == "Running" else None

        found = await until(running, "the pod runs")
        assert found["spec"]["nodeName"] == name
        conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
        assert (conditions["PodScheduled"], conditions["Ready"]) == ("True", "True")
        async with api.watch(pods_of(namespace), resourceVersion=version, fieldSelector="spec.nodeName=") as watch:
            assert (await watch.next())["type"] == "DELETED"  # the pod has a node now

    async def test_facts_g20_a_binding_adds_its_annotations_to_the_pod_with_its_uid(
        self, api: Client, namespace: str, node: Object
    ) -> None:
        sent = pod("web")
        sent["metadata"]["annotations"] = {"kept": "1", "replaced": "1"}
        created = (await api.create(pods_of(namespace), sent)).ok()
        path, uid = f"{pods_of(namespace)}/web", created["metadata"]["uid"]
        binding = {
            "metadata": {"name": "web", "uid": "other", "annotations": {"added": "1", "replaced": "2"}},
            "target": {"kind": "Node", "name": node["metadata"]["name"]},
        }
        text = (await api.create(f"{path}/binding", binding)).failed(409, "Conflict")
        assert f"Precondition failed: UID in precondition: other, UID in object meta: {uid}" in text
        assert "nodeName" not in (await api.get(path)).ok()["spec"]
        binding["metadata"]["uid"] = uid
        assert (await api.create(f"{path}/binding", binding)).status == 201
        annotations = (await api.get(path)).ok()["metadata"]["annotations"]
        assert annotations == {"kept": "1", "replaced": "2", "added": "1"}

    async def test_a_binding_without_a_pod_is_not_found(self, api: Client, namespace: str) -> None:
        target = {"kind": "Node", "name": "node-1"}
        answer = await api.create(
            f"{pods_of(namespace)}/absent/binding", {"metadata": {"name": "absent"}, "target": target}
        )
        assert answer.failed(404, "NotFound") == 'pods "absent" not found'

    @pytest.mark.parametrize("how", ["evicted", "deleted"])
    async def test_a_removed_pod_is_an_event_of_a_watch(
        self, api: Client, namespace: str, node: Object, how: str
    ) -> None:
        path = f"{pods_of(namespace)}/web"
        (await api.create(pods_of(namespace), pod("web"))).ok()
        target = {"kind": "Node", "name": node["metadata"]["name"]}
        (await api.create(f"{path}/binding", {"metadata": {"name": "web"}, "target": target})).ok()
        version = await api.version(pods_of(namespace))
        if how == "evicted":
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}}
            answer = await api.create(f"{path}/eviction", eviction)
            assert (answer.status, answer.body["status"]) == (201, "Success")
        else:
            deleted = (await api.delete(path, {"gracePeriodSeconds": 0})).ok()
            assert (deleted["kind"], deleted["metadata"]["name"]) == ("Pod", "web")
        async with api.watch(pods_of(namespace), resourceVersion=version) as watch:
            while (event := await watch.next())["type"] == "MODIFIED":
                pass  # a kubelet stops the pod in several steps
        assert event["type"] == "DELETED"
        assert event["object"]["spec"]["nodeName"] == node["metadata"]["name"]
        for again in (
            await api.get(path),
            await api.delete(path),
            await api.create(f"{path}/eviction", {"metadata": {"name": "web"}}),
        ):
            assert again.failed(404, "NotFound") == 'pods "web" not found'

    async def test_an_eviction_that_a_disruption_budget_forbids_is_429(
        self, api: Client, namespace: str, node: Object
    ) -> None:
        target = {"kind": "Node", "name": node["metadata"]["name"]}
        for name in ("first", "second"):
            path = f"{pods_of(namespace)}/{name}"
            (await api.create(pods_of(namespace), pod(name))).ok()
            (await api.create(f"{path}/binding", {"metadata": {"name": name}, "target": target})).ok()
            await until(lambda path=path: _is_ready(api, path), f"{name} is ready")  # type: ignore[misc]
        selector = {"matchLabels": {"telemetry-policy": "demo"}}
        budget = {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": selector}}
        (await api.create(budgets_of(namespace), budget)).ok()

        async def evicted(name: str) -> bool:
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            return (await api.create(f"{pods_of(namespace)}/{name}/eviction", eviction)).status == 201

        await until(lambda: evicted("first"), "one pod more than the budget needs may be evicted")

        async def needed() -> str:
            answer = await api.create(f"{pods_of(namespace)}/second/eviction", {"metadata": {"name": "second"}})
            assert (
                answer.failed(429, "TooManyRequests")
                == "Cannot evict pod as it would violate the pod's disruption budget."
            )
            (cause,) = answer.body["details"]["causes"]
            assert cause["reason"] == "DisruptionBudget"
            return str(cause["message"]) if "has 1 " in cause["message"] else ""  # the controller counts a little later

        assert await until(needed, "the controller has counted") == (
            "The disruption budget web needs 1 healthy pods and has 1 currently"
        )
        assert (await api.get(f"{pods_of(namespace)}/second")).ok()["metadata"].get("deletionTimestamp") is None
        (await api.delete(f"{budgets_of(namespace)}/web")).ok()
        await until(lambda: evicted("second"), "without the budget the pod may be evicted")

    async def test_a_deployment_is_scaled_by_its_subresource(self, api: Client, namespace: str) -> None:
        labels = {"app": "web"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "pause"}]}}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        created = (await api.create(deployments_of(namespace), {"metadata": {"name": "web"}, "spec": spec})).ok()
        assert created["metadata"]["generation"] == 1
        path = f"{deployments_of(namespace)}/web"
        before = (await api.get(f"{path}/scale")).ok()
        assert (before["kind"], before["apiVersion"]) == ("Scale", "autoscaling/v1")
        assert before["metadata"]["uid"] == created["metadata"]["uid"]
        for content_type in (MERGE_PATCH, STRATEGIC):
            replicas = 3 if content_type == MERGE_PATCH else 5
            scaled = await api.patch(f"{path}/scale", {"spec": {"replicas": replicas}}, content_type=content_type)
            assert (scaled.ok()["kind"], scaled.ok()["spec"]) == ("Scale", {"replicas": replicas})
            deployment = (await api.get(path)).ok()
            assert (deployment["spec"]["replicas"], deployment["spec"]["selector"]) == (replicas, spec["selector"])
        assert deployment["metadata"]["generation"] == 3
        negative = await api.patch(f"{path}/scale", {"spec": {"replicas": -1}})
        assert "must be greater than or equal to 0" in negative.failed(422, "Invalid")
        missing = await api.patch(f"{deployments_of(namespace)}/absent/scale", {"spec": {"replicas": 1}})
        assert missing.failed(404, "NotFound") == 'deployments.apps "absent" not found'

    async def test_where_a_pod_runs_is_not_patched_but_its_status_is(self, api: Client, namespace: str) -> None:
        path = f"{pods_of(namespace)}/web"
        (await api.create(pods_of(namespace), pod("web"))).ok()
        answer = await api.patch(path, {"spec": {"nodeName": "node-1"}})
        assert answer.failed(422, "Invalid").startswith('Pod "web" is invalid: spec: Forbidden')
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        after = (await api.patch(f"{path}/status", {"status": {"conditions": [condition]}})).ok()
        assert after["status"]["conditions"][0].items() >= condition.items()
        labelled = (await api.patch(path, {"metadata": {"labels": {"a": "b"}}})).ok()
        assert labelled["metadata"]["labels"] == {"telemetry-policy": "demo", "a": "b"}
        assert labelled["metadata"]["generation"] == 1

    async def test_events_are_found_by_what_they_are_about(self, api: Client, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/events"
        about = {"kind": "Pod", "namespace": namespace, "name": "web"}
        event = {"metadata": {"name": "web.1"}, "involvedObject": about, "reason": "FailedScheduling"}
        (await api.create(path, event | {"message": "no room", "type": "Warning"})).ok()
        found = (await api.get(path, fieldSelector="involvedObject.name=web,reason=FailedScheduling")).ok()["items"]
        assert [each["message"] for each in found] == ["no room"]
        everything = ",".join(f"involvedObject.{key}={value}" for key, value in about.items())
        assert len((await api.get(path, fieldSelector=f"{everything},type=Warning")).ok()["items"]) == 1
        assert (await api.get(path, fieldSelector="involvedObject.name=other")).ok()["items"] == []
