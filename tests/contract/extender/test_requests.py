"""Requests of a real scheduler: recorded ones, and the test vector of its source."""

import json
from pathlib import Path
from typing import Any

import pytest

from tas.extender.verbs import VERBS
from tas.extender.wire import decode_args
from tests.contract.extender.scheduler import Feasible, read_filter_result, read_host_priorities
from tests.deciders import FixedDecider

RECORDED = sorted((Path(__file__).parent.parent / "golden" / "extender").glob("*.json"))
"""Named `<verb>-<names or nodes>.json`; recorded by the end-to-end tests."""


def candidates_of(request: dict[str, Any]) -> list[str]:
    names = request["NodeNames"]
    return [node["metadata"]["name"] for node in request["Nodes"]["items"]] if names is None else names


def test_every_verb_is_recorded_in_both_forms() -> None:
    recorded = {path.stem for path in RECORDED}

    assert {f"{verb}-{form}" for verb in VERBS for form in ("names", "nodes")} <= recorded


@pytest.mark.parametrize("lowered", [False, True], ids=["as_sent", "facts_c5_lowered"])
@pytest.mark.parametrize("path", [path for path in RECORDED if "preempt" not in path.stem], ids=lambda path: path.stem)
def test_facts_c14_a_recorded_request_is_answered_in_its_form(path: Path, *, lowered: bool) -> None:
    text = path.read_text()
    verb, form = path.stem.split("-")
    nodes = candidates_of(json.loads(text))
    rejected, *others = nodes
    decider = FixedDecider(rejects={rejected: "Node violates p: m"}, scores={others[0]: 10})

    body, _ = VERBS[verb](decider, (text.lower() if lowered else text).encode(), 7.0)

    ((called_verb, pod, candidates, _),) = decider.calls
    assert (called_verb, candidates) == (verb, tuple(nodes))
    assert (pod.name, pod.namespace, pod.labels) == ("web", f"golden-{form}", {"telemetry-policy": "demo-policy"})
    assert pod.uid
    if verb == "filter":
        feasible = read_filter_result(body, nodes, node_cache_capable=form == "names")
        assert feasible == Feasible(others, {}, {rejected: "Node violates p: m"})
    else:
        assert read_host_priorities(body, nodes) == {name: 10 if name == others[0] else 0 for name in nodes}


@pytest.mark.parametrize("lowered", [False, True], ids=["as_sent", "facts_c5_lowered"])
@pytest.mark.parametrize("path", [path for path in RECORDED if "preempt" in path.stem], ids=lambda path: path.stem)
def test_facts_c31_a_recorded_preempt_is_answered_by_uid(path: Path, *, lowered: bool) -> None:
    text = path.read_text()
    sent = json.loads(text)
    nodes = sent["NodeNameToMetaVictims"] or sent["NodeNameToVictims"]
    uids = {
        node: [pod.get("UID") or pod["metadata"]["uid"] for pod in victims["Pods"]] for node, victims in nodes.items()
    }
    rejected, *others = nodes
    assert others
    assert all(uids.values())

    body, record = VERBS["preempt"](
        FixedDecider(rejects={rejected: "x"}), (text.lower() if lowered else text).encode(), 7.0
    )

    assert json.loads(body) == {
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": uid} for uid in uids[node]], "NumPDBViolations": nodes[node]["NumPDBViolations"]}
            for node in others
        }
    }
    assert record().pod == "urgent"


@pytest.mark.parametrize("path", [path for path in RECORDED if path.stem == "filter-nodes"], ids=lambda path: path.stem)
def test_a_node_that_passes_comes_back_byte_for_byte(path: Path) -> None:
    sent = json.loads(path.read_text())
    first, *_ = nodes = [json.dumps(node, separators=(",", ":")) for node in sent["Nodes"]["items"]]
    request = f'{{"Pod":{json.dumps(sent["Pod"])},"Nodes":{{"metadata":{{}},"items":[{",".join(nodes)}]}}}}'

    body, _ = VERBS["filter"](FixedDecider(), request.encode(), 7.0)

    assert body.startswith(b'{"Nodes":{"metadata":{},"items":[' + first.encode() + b",")
    assert all(node.encode() in body for node in nodes)


# ExtenderArgs of kube-scheduler's extender/v1/types_test.go (TestCompatibility) of 1.36, and of earlier versions,
# which write an unset creationTimestamp as null.
UPSTREAM = """{"Pod":{"metadata":{"name":"podname"%s},"spec":{"containers":null},"status":{}},\
"Nodes":{"metadata":{},"items":[{"metadata":{"name":"nodename"%s},"spec":{},"status":{"daemonEndpoints":\
{"kubeletEndpoint":{"Port":0}},"nodeInfo":{"machineID":"","systemUUID":"","bootID":"","kernelVersion":"","osImage":"",\
"containerRuntimeVersion":"","kubeletVersion":"","kubeProxyVersion":"","operatingSystem":"","architecture":""}}}]},\
"NodeNames":["node1"]}"""
TIMES = {"now": "", "before": ',"creationTimestamp":null'}


@pytest.mark.parametrize("lowered", [False, True], ids=["as_sent", "lowered"])
@pytest.mark.parametrize("time", TIMES.values(), ids=TIMES.keys())
def test_facts_c5_upstream_test_compatibility(time: str, *, lowered: bool) -> None:
    text = UPSTREAM % (time, time)

    args = decode_args((text.lower() if lowered else text).encode())

    assert (args.pod.name, list(args.nodes or ()), list(args.node_names or ())) == ("podname", ["nodename"], ["node1"])
