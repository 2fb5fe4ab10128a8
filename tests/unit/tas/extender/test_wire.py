"""Requests: the accepted notations, and the errors for invalid ones."""

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import InvalidInputError
from tas.extender.decision import Pod
from tas.extender.fields import MAX_ANY_CASE_BYTES
from tas.extender.wire import (
    MAX_NAMES_BYTES,
    MAX_NODES,
    MAX_POD_BYTES,
    MAX_REMEMBERED_BYTES,
    ExtenderArgs,
    decode_args,
)
from tests.unit.tas.extender.generators import JSON_VALUES, NAMES, POD, bodies, body, node


def names_of(args: ExtenderArgs) -> list[str] | None:
    return None if args.node_names is None else list(args.node_names)


def raw_nodes_of(args: ExtenderArgs) -> dict[str, bytes] | None:
    return None if args.nodes is None else {name: bytes(raw) for name, raw in args.nodes.items()}


def test_names_only_as_the_scheduler_sends_it() -> None:
    args = decode_args(body(Pod=POD, Nodes=None, NodeNames=["a", "b"]))

    assert args.pod == Pod(namespace="default", name="p", uid="u-1", labels={"telemetry-policy": "demo"})
    assert args.nodes is None
    assert names_of(args) == ["a", "b"]
    assert list(args.candidates) == ["a", "b"]


def test_full_nodes_stay_undecoded() -> None:
    first, second = '{"metadata":{"name":"a"},  "x": 1.50}', '{"status":{"é":"\\u00e9"},"metadata":{"name":"b"}}'
    request = f'{{"Pod":{json.dumps(POD)},"Nodes":{{"metadata":{{}},"items":[{first} ,\n{second}]}},"NodeNames":null}}'

    args = decode_args(request.encode())

    assert raw_nodes_of(args) == {"a": first.encode(), "b": second.encode()}
    assert args.node_names is None
    assert list(args.candidates) == ["a", "b"]


@pytest.mark.parametrize("read_twice", [False, True])
def test_both_forms_are_candidates_once_each(read_twice: bool) -> None:
    request = body(Pod=POD, Nodes={"items": [node("a"), node("b")]}, NodeNames=["b", "c"])
    if read_twice:
        decode_args(request)

    args = decode_args(request)

    assert list(args.candidates) == ["a", "b", "c"]
    assert list(args.nodes or ()) == ["a", "b"]
    assert names_of(args) == ["b", "c"]


@pytest.mark.parametrize(
    ("field", "spelling"),
    [("Pod", "pod"), ("Pod", "POD"), ("Nodes", "nodes"), ("Nodes", "nOdEs"), ("NodeNames", "nodenames")],
)
def test_facts_c5_keys_in_any_case(field: str, spelling: str) -> None:
    fields = {"Pod": POD, "Nodes": {"items": [node("a")]}, "NodeNames": ["b"]}
    fields[spelling] = fields.pop(field)

    args = decode_args(body(**fields))

    assert args.pod.name == "p"
    assert list(args.nodes or ()) == ["a"]
    assert names_of(args) == ["b"]


def test_facts_c5_the_exact_key_counts_before_any_other_case() -> None:
    before = decode_args(body(nodenames=["x"], Pod=POD, NodeNames=["a"]))
    after = decode_args(body(Pod=POD, NodeNames=["a"], NODENAMES=["x"]))

    assert (names_of(before), names_of(after)) == (["a"], ["a"])


def test_facts_c5_for_other_cases_the_later_counts() -> None:
    assert names_of(decode_args(body(Pod=POD, nodenames=["a"], NODENAMES=["b"]))) == ["b"]


def test_for_a_duplicate_key_the_later_counts() -> None:
    request = f'{{"Pod":{json.dumps(POD)},"NodeNames":["a"],"NodeNames":["b"]}}'

    assert names_of(decode_args(request.encode())) == ["b"]


def test_unknown_keys_are_ignored() -> None:
    args = decode_args(body(Pod={**POD, "Metadata": 1}, NodeNames=["a"], Extra={"Pod": 1}, kind="ExtenderArgs"))

    assert (args.pod.name, names_of(args)) == ("p", ["a"])


@pytest.mark.parametrize(
    "metadata",
    [{}, {"labels": None, "namespace": None, "name": None, "uid": None}, {"labels": {}, "annotations": {"x": [1]}}],
)
def test_a_pod_may_lack_namespace_and_labels(metadata: dict[str, Any]) -> None:
    args = decode_args(body(Pod={"metadata": metadata}, NodeNames=["a"]))

    assert args.pod == Pod(namespace="", name="", uid="", labels={})


@pytest.mark.parametrize("nodes", [{"items": []}, {"items": None}, {"metadata": {}}])
def test_facts_F9_no_nodes_is_a_list_too(nodes: dict[str, Any]) -> None:
    args = decode_args(body(Pod=POD, Nodes=nodes))

    assert (args.nodes, args.node_names, list(args.candidates)) == ({}, None, [])


def test_facts_F9_no_names_is_a_list_too() -> None:
    args = decode_args(body(Pod=POD, NodeNames=[]))

    assert (args.nodes, args.node_names, list(args.candidates)) == (None, {}, [])


def test_a_duplicate_name_is_one_candidate() -> None:
    assert names_of(decode_args(body(Pod=POD, NodeNames=["b", "a", "b", "a"]))) == ["b", "a"]


def test_for_two_nodes_of_one_name_the_later_bytes_count() -> None:
    args = decode_args(body(Pod=POD, Nodes={"items": [node("a", v=1), node("b"), node("a", v=2)]}))

    nodes = raw_nodes_of(args)
    assert nodes is not None
    assert list(nodes) == ["a", "b"]
    assert json.loads(nodes["a"])["v"] == 2


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ('{"metadata":{"name":"n1","uid":"u"}}', "n1"),
        ('{"metadata":{"name":"n\\u0031"}}', "n1"),
        ('{"metadata":{"name":"a\\"b"}}', 'a"b'),
        ('{"metadata":{"name":"ü.example"}}', "ü.example"),
        ('{ "metadata" : { "name" : "n1" } }', "n1"),
        ('{"metadata":{"uid":"u","name":"n1"}}', "n1"),
        ('{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"},"status":{"metadata":{"name":"x"}}}', "n1"),
        ('{"spec":{"metadata":{"name":"x"}},"metadata":{"labels":{"name":"y"},"name":"n1"}}', "n1"),
    ],
)
def test_the_name_of_a_node_is_read_in_any_notation(written: str, name: str) -> None:
    args = decode_args(f'{{"Pod":{json.dumps(POD)},"Nodes":{{"items":[{written}]}}}}'.encode())

    assert raw_nodes_of(args) == {name: written.encode()}


def test_names_that_are_unusual_but_possible() -> None:
    names = ["a.b.c", "UPPER", "x" * 300, "with space", "ünïcödé", "🙂", 'quo"te', "back\\slash", "tab\t"]

    assert names_of(decode_args(body(Pod=POD, NodeNames=names))) == names


def test_15000_names() -> None:
    names = [f"node-{number:05d}.example.com" for number in range(15_000)]

    assert names_of(decode_args(body(Pod=POD, NodeNames=names))) == names


def test_a_recent_list_is_recognised_and_not_decoded_again() -> None:
    request, other = body(Pod=POD, NodeNames=["seen", "lately"]), body(Pod=POD, NodeNames=["another"])
    first, between, second = decode_args(request), decode_args(other), decode_args(request)

    assert second.node_names is first.node_names
    assert names_of(between) == ["another"]


def test_a_list_too_long_to_remember_is_decoded() -> None:
    names = [f"{number:020d}" for number in range(MAX_REMEMBERED_BYTES // 20)]
    request = body(Pod=POD, NodeNames=[*names, names[0]])

    first, second = decode_args(request), decode_args(request)

    assert names_of(first) == names_of(second) == names
    assert first.node_names is not second.node_names


def test_a_large_request_of_whole_nodes_is_read_as_a_small_one() -> None:
    items = {f"n{number}": json.dumps(node(f"n{number}", x="y" * 7000)) for number in range(200)}
    request = f'{{"Pod":{json.dumps(POD)},"Nodes":{{"metadata":{{}},"items":[{",".join(items.values())}]}}}}'.encode()
    assert len(request) > MAX_ANY_CASE_BYTES

    args = decode_args(request)

    assert raw_nodes_of(args) == {name: text.encode() for name, text in items.items()}
    assert (args.pod.name, args.node_names) == ("p", None)


@pytest.mark.parametrize("nodes", [None, {"items": None}, {"items": []}])
def test_a_large_request_may_have_no_nodes(nodes: Any) -> None:
    args = decode_args(body(Pod=POD, Nodes=nodes, NodeNames=["a"], Extra="x" * MAX_ANY_CASE_BYTES))

    assert raw_nodes_of(args) == (None if nodes is None else {})
    assert names_of(args) == ["a"]


def memory_of(request: bytes) -> int:
    """The peak of memory of a call with a large `request`, in bytes."""
    assert len(request) > MAX_ANY_CASE_BYTES
    decode_args(body(Pod=POD, NodeNames=["a"], Extra="x" * MAX_ANY_CASE_BYTES))  # makes its types
    tracemalloc.start()
    try:
        with suppress(InvalidInputError):
            decode_args(request)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_unknown_keys_of_a_large_request_take_no_memory() -> None:
    unknown = {str(number): 0 for number in range(150_000)}
    request = body(Pod=POD, NodeNames=["a"], nodes={"items": [node("b")]}, **unknown)

    assert raw_nodes_of(decode_args(request)) is None
    assert memory_of(request) < len(request)


def test_a_large_request_has_a_limit_of_nodes_and_is_not_read_beyond() -> None:
    request = body(Pod=POD, Nodes={"items": [0] * MAX_ANY_CASE_BYTES})

    with pytest.raises(InvalidInputError, match=f"Expected `array` of at most length {MAX_NODES}"):
        decode_args(request)
    assert memory_of(request) < len(request)


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        (
            body(Pod=POD, NodeNames=["a" * MAX_NAMES_BYTES]),
            f"{MAX_NAMES_BYTES + 4} bytes: the limit is {MAX_NAMES_BYTES}",
        ),
        (
            body(Pod=POD | {"spec": "x" * MAX_POD_BYTES}, NodeNames=["a"]),
            f" bytes: the limit is {MAX_POD_BYTES}",
        ),
        (
            body(Pod=POD, Nodes=7, Extra="x" * MAX_ANY_CASE_BYTES),
            'ExtenderArgs: Nodes = \'{"Pod":',
        ),
    ],
    ids=["names", "pod", "nodes type"],
)
def test_a_field_of_a_large_request_is_refused(request_body: bytes, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        decode_args(request_body)

    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


ERRORS: list[tuple[str, bytes, str]] = [
    ("facts_F11", b"{", "ExtenderArgs: body = '{': Input data was truncated"),
    ("empty", b"", "ExtenderArgs: body = '': Input data was truncated"),
    ("no_object", b"[1]", "ExtenderArgs: body = [1]: Expected `object`, got `array`"),
    ("null", b"null", "ExtenderArgs: body = None: Expected `object`, got `null`"),
    ("nonsense", b"nonsense", "ExtenderArgs: body = 'nonsense': JSON is malformed: invalid character (byte 4)"),
    (
        "facts_H7",
        body(Pod=POD, NodeNames=["a"]) + b" x",
        "JSON is malformed: trailing characters",
    ),
    ("byte_order_mark", b"\xef\xbb\xbf" + body(Pod=POD, NodeNames=[]), "JSON is malformed: invalid character"),
    ("no_pod", body(NodeNames=["a"]), "ExtenderArgs: Pod = None: a pod must be given"),
    ("facts_F13", body(Pod=None, NodeNames=["a"]), "ExtenderArgs: Pod = None: a pod must be given"),
    ("pod_type", body(Pod=["x"], NodeNames=["a"]), "ExtenderArgs: Pod = ['x']: Expected `object | null`, got `array`"),
    ("no_metadata", body(Pod={"spec": {}}, NodeNames=["a"]), "ExtenderArgs: Pod.metadata = None: a pod has metadata"),
    (
        "metadata_null",
        body(Pod={"metadata": None}, NodeNames=["a"]),
        "ExtenderArgs: Pod.metadata = None: a pod has metadata",
    ),
    (
        "metadata_type",
        body(Pod={"metadata": 7}, NodeNames=["a"]),
        "ExtenderArgs: Pod.metadata = 7: Expected `object | null`, got `int`",
    ),
    (
        "namespace_type",
        body(Pod={"metadata": {"namespace": 7}}, NodeNames=["a"]),
        "ExtenderArgs: Pod.metadata.namespace = 7: Expected `str | null`, got `int`",
    ),
    (
        "labels_type",
        body(Pod={"metadata": {"labels": ["x"]}}, NodeNames=["a"]),
        "ExtenderArgs: Pod.metadata.labels = ['x']: Expected `object | null`, got `array`",
    ),
    (
        "label_type",
        body(Pod={"metadata": {"labels": {"x": 7}}}, NodeNames=["a"]),
        "ExtenderArgs: Pod.metadata.labels[...] = {'x': 7}: Expected `str`, got `int`",
    ),
    ("no_candidates", body(Pod=POD), "ExtenderArgs: Nodes, NodeNames = None: one of them must be given"),
    (
        "null_candidates",
        body(Pod=POD, Nodes=None, NodeNames=None),
        "ExtenderArgs: Nodes, NodeNames = None: one of them must be given",
    ),
    (
        "names_type",
        body(Pod=POD, NodeNames={"a": 1}),
        "ExtenderArgs: NodeNames = {'a': 1}: Expected `array | null`, got `object`",
    ),
    ("name_type", body(Pod=POD, NodeNames=["a", 7]), "ExtenderArgs: NodeNames[1] = 7: Expected `str`, got `int`"),
    ("name_null", body(Pod=POD, NodeNames=[None]), "ExtenderArgs: NodeNames[0] = None: Expected `str`, got `null`"),
    ("facts_c15_empty_name", body(Pod=POD, NodeNames=["a", ""]), "ExtenderArgs: NodeNames[1] = '': a node has a"),
    (
        "nodes_type",
        body(Pod=POD, Nodes=["a"]),
        "ExtenderArgs: Nodes = ['a']: Expected `object | null`, got `array`",
    ),
    (
        "items_type",
        body(Pod=POD, Nodes={"items": {"a": 1}}),
        "ExtenderArgs: Nodes.items = {'a': 1}: Expected `array | null`, got `object`",
    ),
    (
        "item_type",
        body(Pod=POD, Nodes={"items": [node("a"), "b"]}),
        "ExtenderArgs: Nodes.items[1] = 'b': Expected `object | null`, got `str`",
    ),
    (
        "item_null",
        body(Pod=POD, Nodes={"items": [None]}),
        "ExtenderArgs: Nodes.items[0].metadata.name = None: a node has a name",
    ),
    (
        "no_node_metadata",
        body(Pod=POD, Nodes={"items": [{}]}),
        "ExtenderArgs: Nodes.items[0].metadata.name = None: a node has a name",
    ),
    (
        "empty_node_name",
        body(Pod=POD, Nodes={"items": [node("")]}),
        "ExtenderArgs: Nodes.items[0].metadata.name = None: a node has a name",
    ),
    (
        "node_name_type",
        body(Pod=POD, Nodes={"items": [{"metadata": {"name": 7}}]}),
        "ExtenderArgs: Nodes.items[0].metadata.name = 7: Expected `str | null`, got `int`",
    ),
    ("not_utf8", b'{"Pod":{"metadata":{"name":"\xff"}},"NodeNames":["a"]}', "ExtenderArgs: Pod = '"),
    ("lone_surrogate", b'{"Pod":{"metadata":{}},"NodeNames":["\\ud800"]}', "ExtenderArgs: body = '{"),
    ("deep", b'{"Pod":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 'ExtenderArgs: body = \'{"Pod":[[[[[[[['),
    ("deep_unclosed", b'{"x":' + b'{"a":' * 100_000, "nested too deeply"),
    ("lower_case_wrong", body(pod=POD, nodenames=[7]), "ExtenderArgs: NodeNames[0] = 7: Expected `str`, got `int`"),
    ("lower_case_nodes", body(pod=POD, nodes=7), "ExtenderArgs: Nodes = 7: Expected `object | null`, got `int`"),
]


@pytest.mark.parametrize(("request_body", "message"), [case[1:] for case in ERRORS], ids=[case[0] for case in ERRORS])
def test_an_error_names_the_object_the_field_and_the_value(request_body: bytes, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        decode_args(request_body)

    assert message in str(caught.value)
    assert caught.value.subject == "ExtenderArgs"


def test_an_error_is_one_line_for_values_of_any_size() -> None:
    request = body(Pod=POD, NodeNames=["a", {"x" * 1000: ["y" * 1000] * 1000}])

    with pytest.raises(InvalidInputError) as caught:
        decode_args(request)

    assert caught.value.field == "NodeNames[1]"
    assert caught.value.value.startswith("'{\"xxx")
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


LABELS = st.dictionaries(NAMES, NAMES, max_size=3)


@given(
    namespace=NAMES,
    name=NAMES,
    labels=LABELS,
    nodes=st.none() | st.lists(st.tuples(NAMES, JSON_VALUES), max_size=6, unique_by=lambda pair: pair[0]),
    names=st.none() | st.lists(NAMES, max_size=6),
    spelling=st.sampled_from([str, str.lower, str.upper]),
    ascii_only=st.booleans(),
)
def test_decode_undoes_encode(
    *,
    namespace: str,
    name: str,
    labels: dict[str, str],
    nodes: list[tuple[str, Any]] | None,
    names: list[str] | None,
    spelling: Any,
    ascii_only: bool,
) -> None:
    if nodes is None and names is None:
        names = []
    items = None if nodes is None else {key: json.dumps(node(key, rest=rest)) for key, rest in nodes}
    node_list = "null" if items is None else f'{{"items":[{",".join(items.values())}]}}'
    pod = {"metadata": {"namespace": namespace, "name": name, "labels": labels}}
    fields = {"Pod": json.dumps(pod, ensure_ascii=ascii_only), "Nodes": node_list, "NodeNames": json.dumps(names)}
    request = "{" + ",".join(f'"{spelling(key)}":{value}' for key, value in fields.items()) + "}"

    args = decode_args(request.encode())

    assert args.pod == Pod(namespace=namespace, name=name, uid="", labels=labels)
    assert raw_nodes_of(args) == (None if items is None else {key: text.encode() for key, text in items.items()})
    assert names_of(args) == (None if names is None else list(dict.fromkeys(names)))
    assert list(args.candidates) == list(dict.fromkeys([*(items or ()), *(names or ())]))


@given(bodies())
def test_any_body_is_read_or_refused(request_body: bytes) -> None:
    try:
        args = decode_args(request_body)
    except InvalidInputError as caught:
        error = caught
    else:
        assert "" not in args.candidates
        for name, raw in (args.nodes or {}).items():
            # Fields that are not read are passed on unchanged, even if they are not UTF-8.
            assert json.loads(bytes(raw).decode(errors="replace"))["metadata"]["name"] == name
        return
    assert error.subject == "ExtenderArgs"
    assert len(str(error)) < 400
