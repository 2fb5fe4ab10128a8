"""A recording is read strictly: each mistake names the file, the line, the field and the value."""

import json

import pytest

from lab.simulate.model.algorithms import DefaultScores
from lab.simulate.model.load import Load
from lab.simulate.model.recording import parse_recording
from lab.simulate.model.simulation import simulate
from tas.errors import InvalidInputError

HEAD = '{"recording": 1, "period": "1m"}'
NODE = '{"node": "n1", "cpu": "4", "memory": "16Gi", "network": "1.25G"}'
POD = '{"pod": "default/web", "kind": "web", "arrives": 1000, "leaves": 1300, "cpu": "500m", "memory": "1Gi"}'
USE = '{"use": "default/web", "at": 1000, "cpu": "250m", "memory": "300Mi", "network": "1M"}'


def read(*lines: str) -> Load:
    return parse_recording("file.jsonl", [line.encode() for line in lines])


def test_a_recording_is_a_load() -> None:
    load = read(HEAD, NODE, '{"node": "n2", "cpu": 2, "memory": 1e9}', "", POD, USE)
    assert (load.period, load.periods) == (60.0, 5)
    assert [(node.name, node.cpu, node.memory, node.network) for node in load.nodes] == [
        ("n1", 4000.0, 16 * 2**30, 1.25e9),
        ("n2", 2000.0, 1e9, float("inf")),
    ]
    (pod,) = load.pods
    assert (pod.name, pod.kind, pod.arrives, pod.leaves, pod.cpu, pod.memory) == (
        "default/web", "web", 0.0, 300.0, 500, 2**30
    )  # fmt: skip
    assert pod.use[:, 0].tolist() == [250.0, 300 * 2**20, 1e6]


def test_what_is_absent_stays_as_it_was_and_the_first_use_counts_from_the_arrival() -> None:
    load = read(
        HEAD,
        NODE,
        '{"pod": "p", "arrives": 0}',
        '{"use": "p", "at": 90, "cpu": "1"}',
        '{"use": "p", "at": 180, "memory": "1Gi"}',
        '{"use": "p", "at": 200, "cpu": "2"}',
    )
    (pod,) = load.pods
    assert (pod.cpu, pod.memory, pod.kind) == (0, 0, "p")
    assert pod.leaves == load.periods * 60.0 == 300.0  # the last use, and one period
    assert pod.use[0].tolist() == [1000.0, 1000.0, 1000.0, 1000.0, 2000.0, 2000.0]
    assert pod.use[1].tolist() == [0.0, 0.0, 0.0, 2**30, 2**30, 2**30]


def test_a_pod_may_have_limits() -> None:
    limits = '"cpu_limit": "1", "memory_limit": "2Gi", "kind"'
    (pod,) = read(HEAD, NODE, POD.replace('"kind"', limits), USE).pods
    assert (pod.cpu_limit, pod.memory_limit, pod.cpu) == (1000, 2 * 2**30, 500)
    (pod,) = read(HEAD, NODE, POD, USE).pods
    assert (pod.cpu_limit, pod.memory_limit) == (0, 0)


def test_a_recording_can_be_simulated() -> None:
    hog = [POD.replace("web", "hog"), USE.replace("web", "hog").replace("250m", "3800m")]
    result = simulate(read(HEAD, NODE, POD, USE, *hog), DefaultScores(), seed=1)
    assert (result.arrived, result.placed, result.overload) == (2, 2, 4.0)


BAD = {
    "no JSON": ([HEAD, "{"], "file.jsonl:2: line = '{': is no JSON"),
    "no UTF-8": ([HEAD, '{"node": "\udcff"}'], "file.jsonl:2: line = "),
    "no object": ([HEAD, "[1]"], "file.jsonl:2: line = [1]: must be an object"),
    "no kind": ([HEAD, "{}"], "file.jsonl:2: line = {}: must have one of the fields recording, node, pod, use"),
    "no head": ([NODE], "file.jsonl:1: node = 'n1': the first line must be"),
    "two heads": ([HEAD, HEAD], "file.jsonl:2: recording = 1: the first line must be"),
    "another version": ([HEAD.replace("1,", "2,")], "file.jsonl:1: recording = 2: must be the version 1"),
    "no period": (['{"recording": 1}'], "file.jsonl:1: period = None: must be a duration from 1s to 1h"),
    "a period of nothing": ([HEAD.replace("1m", "0s")], "file.jsonl:1: period = '0s': must be a duration from 1s"),
    "a period that is no duration": ([HEAD.replace("1m", "often")], "file.jsonl:1: period = 'often'"),
    "an unknown field": ([HEAD, NODE.replace("cpu", "gpu")], "file.jsonl:2: gpu = '4': must be one of node, cpu"),
    "a node without cpu": ([HEAD, '{"node": "n", "memory": 1}'], "file.jsonl:2: cpu = None: must be a quantity"),
    "a node of no size": ([HEAD, NODE.replace('"4"', "0")], "file.jsonl:2: cpu = 0: must be positive"),
    "a node without a name": ([HEAD, NODE.replace("n1", "")], "file.jsonl:2: node = '': must be a text"),
    "a node twice": ([HEAD, NODE, NODE], "file.jsonl:3: node = 'n1': is given twice"),
    "no quantity": ([HEAD, NODE.replace('"4"', '"many"')], "file.jsonl:2: cpu = 'many': must be a quantity"),
    "true is no quantity": ([HEAD, NODE.replace('"4"', "true")], "file.jsonl:2: cpu = True: must be a quantity"),
    "null is no quantity": (
        [HEAD, NODE.replace('"1.25G"', "null")],
        "file.jsonl:2: network = None: must be a quantity",
    ),
    "a negative quantity": ([HEAD, POD.replace("500m", "-1")], "file.jsonl:2: cpu = '-1': must be from 0"),
    "a quantity too large": ([HEAD, POD.replace("1Gi", "9E")], "file.jsonl:2: memory = '9E': must be from 0"),
    "a pod without a time": ([HEAD, '{"pod": "p"}'], "file.jsonl:2: arrives = None: must be a number"),
    "a time that is a text": ([HEAD, POD.replace("1000", '"now"')], "file.jsonl:2: arrives = 'now': must be a number"),
    "a time that is true": ([HEAD, POD.replace("1000", "true")], "file.jsonl:2: arrives = True: must be a number"),
    "an infinite time": ([HEAD, POD.replace("1000", "1e999")], "file.jsonl:2: "),
    "an end before the arrival": ([HEAD, POD.replace("1300", "1000")], "file.jsonl:2: leaves = 1000.0: must be after"),
    "a kind that is no text": ([HEAD, POD.replace('"web", "arr', '1, "arr')], "file.jsonl:2: kind = 1: must be a text"),
    "use of nobody": ([HEAD, USE], "file.jsonl:2: use = 'default/web': must be a pod of a line before"),
    "use of a list": ([HEAD, USE.replace('"default/web"', "[]")], "file.jsonl:2: use = []: must be a pod"),
    "use out of order": ([HEAD, POD, USE, USE], "file.jsonl:4: at = 1000.0: must be after"),
    "a pod without use": ([HEAD, NODE, POD], "file.jsonl:3: pod = 'default/web': has no line"),
    "no pods": ([HEAD, NODE], "file.jsonl:3: pod = '': a recording must have a line with a node and one with a pod"),
    "nothing": ([], "file.jsonl:1: node = '': a recording must have"),
    "a time beyond all times": ([HEAD, POD.replace("1000", "-1e308")], "file.jsonl:2: arrives = -1e+308: must be a"),
    "a use beyond all times": (
        [HEAD, POD, USE.replace("1000", "1e308")],
        "file.jsonl:3: at = 1e+308: must be a number",
    ),
    "too many nodes for its periods": (
        [HEAD, *(NODE.replace("n1", f"n{number}") for number in range(100)), POD, USE.replace("1000", "12100000")],
        "file.jsonl:1: period = 60.0: nodes times periods must be at most 20000000: 20165100",
    ),
    "too long for its period": (
        [HEAD, NODE, POD.replace("1300", "1e12"), USE],
        "file.jsonl:1: period = 60.0: pods times periods",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_a_mistake_names_file_line_field_and_value(case: tuple[list[str], str]) -> None:
    lines, message = case
    with pytest.raises(InvalidInputError) as caught:
        parse_recording("file.jsonl", [line.encode(errors="surrogateescape") for line in lines])
    assert message in str(caught.value)


def test_the_lines_of_the_docstring_are_a_recording() -> None:
    from lab.simulate.model import recording

    text = " ".join((recording.__doc__ or "").split())
    lines = [part for part in text.split("`") if part.startswith("{")]
    assert [next(iter(json.loads(line))) for line in lines] == ["recording", "node", "pod", "use"]
    assert len(read(*lines).pods) == 1
