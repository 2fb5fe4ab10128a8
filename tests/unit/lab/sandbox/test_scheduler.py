"""The small scheduler: where pods are placed, why they wait, what wakes them, and how it calls extenders."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lab.sandbox import extender_entry
from lab.sandbox.fitting import misfit
from lab.sandbox.resources import EVENTS, NODES, PODS, Object
from tests.contract.kubernetes.client import until
from tests.sandbox import Sandbox

from .extenders import FakeExtender, Reply, extender, passing, scoring

GOLDEN = Path(__file__).parents[3] / "contract" / "golden" / "extender"
ALL = ("node-1", "node-2", "node-3")
NOT_HELPFUL = "Preemption is not helpful for scheduling"


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start(nodes=ALL) as sandbox:
        yield sandbox


def create(sandbox: Sandbox, name: str, *, managed: bool = True, **spec: Any) -> None:
    container: Object = {"name": "main", "image": "pause"}
    if managed:
        container["resources"] = {"limits": {"telemetry/scheduling": "1"}}
    metadata = {"name": name, "labels": {"telemetry-policy": "demo"}}
    pod = {"metadata": metadata, "spec": {"containers": [container]} | spec}
    sandbox.cluster.create(PODS, "default", pod, manager="test")


def find(sandbox: Sandbox, name: str) -> Object:
    return sandbox.cluster.get(PODS, "default", name)


async def placed(sandbox: Sandbox, name: str) -> str:
    async def node() -> str | None:
        found: str | None = find(sandbox, name)["spec"].get("nodeName")
        return found

    return str(await until(node, f"{name} is placed"))


async def rejected(sandbox: Sandbox, name: str, containing: str = "") -> str:
    async def message() -> str | None:
        for condition in find(sandbox, name)["status"].get("conditions", []):
            if condition["status"] == "False" and containing in condition["message"]:
                return str(condition["message"])
        return None

    return str(await until(message, f"{name} is rejected"))


def events(sandbox: Sandbox, name: str, reason: str) -> list[str]:
    found = sandbox.cluster.store.items(EVENTS, "default")
    return [each["message"] for each in found if (each["involvedObject"]["name"], each["reason"]) == (name, reason)]


def touch(sandbox: Sandbox, node: str, patch: Object, *, status: bool = False) -> None:
    sandbox.cluster.patch(NODES, "", node, patch, manager="test", status=status)


async def test_a_pod_goes_to_the_best_node_and_runs(sandbox: Sandbox) -> None:
    async with (
        extender(passing(*ALL), scoring(node_1=1, node_2=9, node_3=3)) as fake,
        sandbox.scheduler(extender_entry(fake.url)),
    ):
        create(sandbox, "web")
        assert await placed(sandbox, "web") == "node-2"
        assert find(sandbox, "web")["status"]["phase"] == "Running"

        async def reported() -> bool:
            return events(sandbox, "web", "Scheduled") == ["Successfully assigned default/web to node-2"]

        await until(reported, "an event reports it")


async def test_of_equal_nodes_the_node_with_fewest_pods_is_chosen(sandbox: Sandbox) -> None:
    async with sandbox.scheduler():
        for name in ("a", "b", "c", "d"):
            create(sandbox, name)
            await placed(sandbox, name)
    assert [find(sandbox, name)["spec"]["nodeName"] for name in "abcd"] == [*ALL, "node-1"]


async def test_requests_to_the_extender_are_those_of_kube_scheduler(sandbox: Sandbox) -> None:
    """Names only; the fields of a pod are where a real scheduler has them (recorded)."""
    async with extender(passing(*ALL), scoring()) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "web")
        await placed(sandbox, "web")
    assert [verb for verb, _ in fake.requests] == ["filter", "prioritize"]
    for verb, request in fake.requests:
        recorded = json.loads((GOLDEN / f"{verb}-names.json").read_text())
        assert request.keys() == recorded.keys()
        assert (request["Nodes"], request["NodeNames"]) == (None, list(ALL))
        pod = request["Pod"]
        assert pod.keys() == recorded["Pod"].keys()
        assert pod["metadata"].keys() == recorded["Pod"]["metadata"].keys()
        assert pod["spec"].keys() <= recorded["Pod"]["spec"].keys()
        (container,) = pod["spec"]["containers"]
        assert container["resources"] == recorded["Pod"]["spec"]["containers"][0]["resources"]


async def test_the_extender_is_not_called_for_pods_without_its_managed_resources(sandbox: Sandbox) -> None:
    async with extender(passing(), scoring()) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "free", managed=False)
        await placed(sandbox, "free")
    assert fake.requests == []
    async with extender(passing("node-3")) as fake, sandbox.scheduler(extender_entry(fake.url, managedResources=[])):
        create(sandbox, "every", managed=False)
        assert await placed(sandbox, "every") == "node-3"


async def test_a_single_feasible_node_is_not_scored(sandbox: Sandbox) -> None:
    async with extender(passing("node-2")) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "web")
        assert await placed(sandbox, "web") == "node-2"
    assert (fake.count("web"), fake.count("web", "prioritize")) == (1, 0)


async def test_pods_of_other_schedulers_and_gated_pods_are_not_placed(sandbox: Sandbox) -> None:
    async with extender(passing(*ALL)) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "other", schedulerName="other")
        create(sandbox, "gated", schedulingGates=[{"name": "wait"}])
        create(sandbox, "web")
        await placed(sandbox, "web")
    assert (fake.count("other"), fake.count("gated")) == (0, 0)


async def test_a_pod_rejected_on_every_node_waits_with_the_reason(sandbox: Sandbox) -> None:
    async with extender(passing()) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "web")
        expected = (
            "0/3 nodes are available: 3 Node violates demo. no new claims to deallocate, preemption: "
            f"0/3 nodes are available: 3 {NOT_HELPFUL}."
        )
        assert await rejected(sandbox, "web") == expected
        assert events(sandbox, "web", "FailedScheduling") == [expected]
        (condition,) = find(sandbox, "web")["status"]["conditions"]
        assert (condition["type"], condition["reason"]) == ("PodScheduled", "Unschedulable")
        assert find(sandbox, "web")["status"]["phase"] == "Pending"


async def test_reasons_are_counted(sandbox: Sandbox) -> None:
    """Reasons of labels, resolvable reasons and unresolvable reasons."""
    sandbox.add_node("node-4", labels={"demo": "violating"})

    def mixed(request: dict[str, Any]) -> Any:
        assert request["NodeNames"] == list(ALL)
        answer = {"NodeNames": [], "FailedNodes": {"node-1": "busy"}}
        return answer | {"FailedAndUnresolvableNodes": {"node-1": "bad", "node-2": "busy", "node-3": "bad"}}

    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "demo", "operator": "NotIn", "values": ["violating"]}]}
                ]
            }
        }
    }
    async with extender(mixed) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "web", affinity=affinity)
        assert (await rejected(sandbox, "web")).startswith(
            "0/4 nodes are available: 1 busy, 1 node(s) didn't match Pod's node affinity/selector, 2 bad. "
        )
        fake.filter = lambda request: {"NodeNames": None, "FailedNodes": dict.fromkeys(request["NodeNames"], "busy")}
        touch(sandbox, "node-1", {"metadata": {"annotations": {"a": "b"}}})
        message = await rejected(sandbox, "web", "3 busy")
        assert message.endswith(
            f"4 nodes are available: 1 {NOT_HELPFUL}, 3 No preemption victims found for incoming pod."
        )


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        ({"metadata": {"labels": {"a": "b"}}}, False),
        ({"metadata": {"annotations": {"telemetry.intel.com/recovered": "1"}}}, False),
        ({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, False),
        ({"status": {"allocatable": {"telemetry/scheduling": "1"}}}, True),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, True),
    ],
    ids=["label", "annotation", "taint", "allocatable", "condition"],
)
async def test_a_change_of_a_node_wakes_a_waiting_pod(sandbox: Sandbox, patch: Object, status: bool) -> None:
    async with extender(passing()) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "web")
        await rejected(sandbox, "web")
        fake.filter = passing("node-3")
        touch(sandbox, "node-1", patch, status=status)
        assert await placed(sandbox, "web") == "node-3"
    assert fake.count("web") == 2


async def test_a_new_node_and_a_deleted_pod_wake_a_waiting_pod(sandbox: Sandbox) -> None:
    async with extender(passing("node-1")) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "placed")
        await placed(sandbox, "placed")
        fake.filter = passing()
        create(sandbox, "web")
        await rejected(sandbox, "web")
        sandbox.add_node("node-4")
        await received(fake, "web", 2)
        sandbox.cluster.evict("default", "placed")
        await received(fake, "web", 3)


async def received(fake: FakeExtender, pod: str, times: int) -> None:
    async def enough() -> bool:
        return fake.count(pod) >= times

    await until(enough, f"{times} calls about {pod}")
    assert fake.count(pod) == times


async def test_no_other_change_wakes_a_waiting_pod(sandbox: Sandbox) -> None:
    """Neither a changed verdict, nor a new pod, nor a patch without a change."""
    async with extender(passing()) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "web")
        await rejected(sandbox, "web")
        fake.filter = passing("node-1")
        touch(sandbox, "node-1", {"metadata": {"labels": {"kubernetes.io/hostname": "node-1"}}})
        create(sandbox, "later")
        await placed(sandbox, "later")
        create(sandbox, "last")
        await placed(sandbox, "last")
    assert fake.count("web") == 1
    assert "nodeName" not in find(sandbox, "web")["spec"]


async def test_the_flush_wakes_a_waiting_pod(sandbox: Sandbox) -> None:
    async with extender(passing()) as fake, sandbox.scheduler(extender_entry(fake.url), flush_seconds=0.05):
        create(sandbox, "web")
        await rejected(sandbox, "web")
        fake.filter = passing("node-2")
        assert await placed(sandbox, "web") == "node-2"


async def test_a_change_during_a_call_of_the_extender_is_not_missed(sandbox: Sandbox) -> None:
    def turn(request: dict[str, Any]) -> Any:
        answer = passing()(request)
        fake.filter = passing("node-2")
        touch(sandbox, "node-2", {"metadata": {"annotations": {"now": "better"}}})
        return answer

    async with extender(turn) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "web")
        assert await placed(sandbox, "web") == "node-2"


async def test_a_decision_does_not_bind_a_new_pod_of_the_same_name(sandbox: Sandbox) -> None:
    def turn(request: dict[str, Any]) -> Any:
        fake.filter = passing(*ALL)
        sandbox.cluster.delete(PODS, "default", "web")
        create(sandbox, "web", nodeSelector={"kubernetes.io/hostname": "node-3"})
        return passing("node-1")(request)

    async with extender(turn) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "web")
        assert await placed(sandbox, "web") == "node-3"


FAILING: dict[str, tuple[Reply, str]] = {
    "status": (lambda _: web.Response(status=503), "filter with extender at URL"),
    "created": (lambda _: web.json_response({"NodeNames": ["node-1"]}, status=201), "code 201"),
    "empty": (lambda _: web.Response(), "EOF"),
    "no JSON": (lambda _: web.Response(text="hello"), "cannot decode"),
    "no object": (lambda _: [1], "cannot unmarshal"),
    "error": (lambda _: {"NodeNames": ["node-1"], "Error": "no such policy"}, "no such policy"),
    "foreign": (lambda _: {"NodeNames": ["node-9"]}, 'claims a filtered node "node-9"'),
    "no name": (lambda _: {"NodeNames": [""]}, 'claims a filtered node ""'),
}


@pytest.mark.parametrize("kind", FAILING)
async def test_a_failed_call_is_reported_and_retried(sandbox: Sandbox, kind: str) -> None:
    reply, message = FAILING[kind]
    async with extender(reply) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "web")
        assert message in await rejected(sandbox, "web")
        (condition,) = find(sandbox, "web")["status"]["conditions"]
        assert condition["reason"] == "SchedulerError"
        fake.filter = passing("node-1")
        assert await placed(sandbox, "web") == "node-1"  # after a second


async def test_the_backoff_of_a_failed_pod_does_not_end_early(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.sandbox.scheduler.BACKOFF_SECONDS", (60.0, 60.0))
    async with extender(lambda _: web.Response(status=500)) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "web")
        await rejected(sandbox, "web")
        fake.filter = passing("node-1")
        touch(sandbox, "node-1", {"metadata": {"annotations": {"a": "b"}}})
        create(sandbox, "later")
        await placed(sandbox, "later")
    assert fake.count("web") == 1


async def test_an_extender_that_is_down_is_an_error_or_ignored(sandbox: Sandbox) -> None:
    async with extender(passing()) as stopped:
        pass
    async with sandbox.scheduler(extender_entry(stopped.url)):
        create(sandbox, "web")
        assert (await rejected(sandbox, "web")).startswith(f'Post "{stopped.url}/scheduler/filter"')
    async with sandbox.scheduler(extender_entry(stopped.url, ignorable=True)):
        await placed(sandbox, "web")


async def test_an_extender_with_a_bind_verb_binds_the_pods_that_it_is_interested_in(sandbox: Sandbox) -> None:
    def bind(request: Object) -> Object:
        binding = {"metadata": {"name": request["PodName"]}, "target": {"kind": "Node", "name": request["Node"]}}
        binding["metadata"]["annotations"] = {"bound-by": "extender"}
        sandbox.cluster.bind(request["PodNamespace"], request["PodName"], binding, manager="extender")
        return {"Error": ""}

    async with (
        extender(passing("node-2"), binding=bind) as fake,
        sandbox.scheduler(extender_entry(fake.url, bindVerb="bind")),
    ):
        create(sandbox, "web")
        create(sandbox, "plain", managed=False)
        assert await placed(sandbox, "web") == "node-2"
        await placed(sandbox, "plain")
        assert find(sandbox, "web")["metadata"]["annotations"] == {"bound-by": "extender"}
        assert (fake.count("web", "bind"), fake.count("plain", "bind")) == (1, 0)
        (body,) = (body for verb, body in fake.requests if verb == "bind")
        uid = find(sandbox, "web")["metadata"]["uid"]
        assert body == {"PodName": "web", "PodNamespace": "default", "PodUID": uid, "Node": "node-2"}


async def test_facts_c30_a_refused_bind_is_an_error_or_ignored(sandbox: Sandbox) -> None:
    async with extender(passing("node-2"), binding=lambda _: {"Error": "no card"}) as fake:
        async with sandbox.scheduler(extender_entry(fake.url, bindVerb="bind")):
            create(sandbox, "web")
            assert await rejected(sandbox, "web") == "no card"
        async with sandbox.scheduler(extender_entry(fake.url, bindVerb="bind", ignorable=True)):
            assert await placed(sandbox, "web") == "node-2"


async def test_keys_of_answers_are_case_insensitive(sandbox: Sandbox) -> None:
    async with (
        extender(lambda _: {"nodeNames": ["node-2", "node-3"]}, lambda _: [{"host": "node-3", "score": 1}]) as fake,
        sandbox.scheduler(extender_entry(fake.url)),
    ):
        create(sandbox, "web")
        assert await placed(sandbox, "web") == "node-3"


@pytest.mark.parametrize(
    "answer",
    [[{"Host": "node-3", "Score": 7.0}], [{"Host": "node-3", "Score": "7"}], {"Host": "node-3"}, "text"],
    ids=["float", "text", "object", "no list"],
)
async def test_invalid_scores_count_as_zero(sandbox: Sandbox, answer: Any) -> None:
    async with extender(passing(*ALL), lambda _: answer) as fake, sandbox.scheduler(extender_entry(fake.url)):
        create(sandbox, "web")
        assert await placed(sandbox, "web") == "node-1"
    assert fake.count("web", "prioritize") == 1


async def test_scores_of_a_node_named_twice_are_added_and_unknown_nodes_ignored(sandbox: Sandbox) -> None:
    scores = [("node-1", 6), ("node-2", 4), ("node-2", 4), ("node-3", 9)]
    async with (
        extender(
            passing("node-1", "node-2"), lambda _: [{"Host": name, "Score": score} for name, score in scores]
        ) as fake,
        sandbox.scheduler(extender_entry(fake.url)),
    ):
        create(sandbox, "web")
        assert await placed(sandbox, "web") == "node-2"


async def test_three_extenders_with_weights_agree_on_a_node(sandbox: Sandbox) -> None:
    """As in the integration test of kube-scheduler, with weights 3, 4 and 10; without them the first node would win."""
    async with (
        extender(passing("node-1", "node-2"), scoring(node_1=10)) as one,
        extender(passing("node-1", "node-2"), scoring(node_2=9)) as two,
        extender(passing("node-2", "node-1", "node-3"), scoring(node_1=5, node_2=5)) as three,
        sandbox.scheduler(
            extender_entry(one.url, weight=3), extender_entry(two.url, weight=4), extender_entry(three.url, weight=10)
        ),
    ):
        create(sandbox, "web")
        assert await placed(sandbox, "web") == "node-2"
    assert three.requests[0][1]["NodeNames"] == ["node-1", "node-2"]  # the nodes that the previous extenders passed


@pytest.mark.parametrize("change", [{"nodeCacheCapable": False}, {"enableHTTPS": True}, {"httpTimeout": "500ms"}])
async def test_an_entry_with_unsupported_fields_is_rejected(sandbox: Sandbox, change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"sandbox calls extenders|could not convert"):
        async with sandbox.scheduler(extender_entry("http://127.0.0.1:1", **change)):
            pass


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ["x", "y"], {"x"}),
        ("NotIn", ["x"], {"y-only", "bare"}),
        ("Exists", None, {"x", "y-only"}),
        ("DoesNotExist", None, {"bare"}),
    ],
)
def test_affinity_reads_labels(operator: str, values: list[str] | None, expected: set[str]) -> None:
    nodes = {"x": {"k": "x"}, "y-only": {"k": "z"}, "bare": {}}
    term = {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}

    def pod(*terms: Object) -> Object:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        return {"spec": {"affinity": {"nodeAffinity": required}}}

    def fitting(one: Object) -> set[str]:
        return {name for name, labels in nodes.items() if misfit(one, {"metadata": {"labels": labels}}) is None}

    assert fitting(pod(term)) == expected
    assert fitting(pod({"matchExpressions": []})) == set()
    never = {"matchExpressions": [{"key": "absent", "operator": "Exists"}]}
    assert fitting(pod(never, term)) == expected
    assert fitting({"spec": {"nodeSelector": {"k": "z"}}}) == {"y-only"}
