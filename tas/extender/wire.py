"""Requests of kube-scheduler: ExtenderArgs of `extender/v1`, from JSON.

Keys are accepted in any case, as in the scheduler's own decoder (facts.md c5). Only the pod's metadata and the
names of the nodes are decoded. A full node stays undecoded bytes, because decoding 5,000 nodes would take ten times as
long as everything else.
"""

import re
from collections import deque
from collections.abc import KeysView, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import Raw

from tas.errors import InvalidInputError
from tas.extender.decision import Pod
from tas.extender.fields import MAX_ANY_CASE_BYTES, NULL, UNDECODABLE, Fields, decode_field, invalid, limit_field

SUBJECT = "ExtenderArgs"
"""The object that error messages about a request name."""

MAX_POD_BYTES = 4 << 20
"""The largest pod of a request: etcd stores at most 1.5 MiB, and JSON may escape each character."""

MAX_NAMES_BYTES = 4 << 20
"""The longest NodeNames: 15,000 names of 253 characters, the longest that Kubernetes accepts."""

MAX_NODES = 20_000
"""The most whole nodes of a request longer than 1 MiB: 64 MiB have room for 9,000 nodes of 7 KB."""


class ExtenderArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The request of filter and prioritize: a pod, and candidates in one or both forms (facts.md c14).

    `nodes` maps each name to the undecoded node; `node_names` has the names as keys. A form that was not sent is None.
    Both are in the order of the request, with distinct names; for two nodes of one name the later one counts. Both may
    be shared with other requests, so they must not be changed.
    """

    pod: Pod
    nodes: dict[str, Raw] | None
    node_names: dict[str, None] | None

    @property
    def candidates(self) -> KeysView[str]:
        """The distinct names in both forms."""
        if self.nodes is None or self.node_names is None:
            return (self.nodes or self.node_names or {}).keys()
        return dict.fromkeys([*self.nodes, *self.node_names]).keys()


class ObjectMeta(msgspec.Struct, gc=False):
    """The needed fields of metav1.ObjectMeta; null means the same as absent, as in Go."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None

    def as_pod(self, document: Raw = NULL) -> Pod:
        """The pod that has this metadata, with the pod as undecoded JSON."""
        return Pod(
            namespace=self.namespace or "",
            name=self.name or "",
            uid=self.uid or "",
            labels=self.labels or {},
            document=document,
        )


class _Object(msgspec.Struct):
    metadata: ObjectMeta | None = None


class _NodeList(msgspec.Struct):
    items: list[Raw] | None = None


class _ExactArgs(msgspec.Struct, forbid_unknown_fields=True):
    """The request with the exact keys of the scheduler. With any other key it is decoded again, by keys in any case."""

    Pod: Raw = NULL
    Nodes: _NodeList | None = None
    NodeNames: Raw = NULL


@cache
def _large_args() -> msgspec.json.Decoder[Any]:
    """Decodes a large request: skips keys other than the exact ones, and stops at an item beyond `MAX_NODES`.

    A limit of the length of a list would be checked only after a million items are in memory; that of an array-like
    struct is checked before each item. To make this type takes longer than to decode a usual request.
    """
    fields = [(f"n{index}", Raw, None) for index in range(MAX_NODES)]
    items = msgspec.defstruct("Items", fields, array_like=True, forbid_unknown_fields=True)
    nodes = msgspec.defstruct("NodeList", [("items", items | None, None)])
    return msgspec.json.Decoder(
        msgspec.defstruct("Args", [("Pod", Raw, NULL), ("Nodes", nodes | None, None), ("NodeNames", Raw, NULL)])
    )


_exact_args = msgspec.json.Decoder(_ExactArgs)
_node_list: msgspec.json.Decoder[_NodeList | None] = msgspec.json.Decoder(_NodeList | None)
_names: msgspec.json.Decoder[list[str] | None] = msgspec.json.Decoder(list[str] | None)
_object: msgspec.json.Decoder[_Object | None] = msgspec.json.Decoder(_Object | None)

_NODE_NAME = re.compile(rb'\{"metadata":\{"name":"([ !#-\[\]-~]+)"')
"""The first bytes of a node as the scheduler writes them. To match the name takes a seventh of the time of decoding."""

MAX_REMEMBERED_BYTES = 1 << 19
"""Lists of names longer than this are not remembered: 15,000 names take 350 kB."""

_recent_lists: deque[tuple[bytes, dict[str, None]]] = deque(maxlen=8)


def decode_args(body: bytes) -> ExtenderArgs:
    """The request in `body`.

    A pod without a namespace has the namespace "", which has no policies, as in the original.
    Raises InvalidInputError if `body` is not one JSON object of that type, has no pod, a pod without metadata, neither
    nodes nor names, or a node without a name.
    """
    raw_pod, items, raw_names = _large_fields(body) if len(body) > MAX_ANY_CASE_BYTES else _fields(body)
    pod = decode_pod(raw_pod)
    node_names = _decode_names(raw_names)
    if items is None:
        if node_names is None:
            raise InvalidInputError(SUBJECT, "Nodes, NodeNames", None, "one of them must be given")
        return ExtenderArgs(pod=pod, nodes=None, node_names=node_names)
    nodes = dict(zip(_names_of_nodes(items), items, strict=True))
    return ExtenderArgs(pod=pod, nodes=nodes, node_names=node_names)


def _fields(body: bytes) -> tuple[Raw, Sequence[Raw] | None, Raw]:
    """The pod, the items of the nodes, or None without nodes, and the names of the nodes."""
    try:
        args = _exact_args.decode(body)
    except msgspec.ValidationError:
        fields = Fields(SUBJECT, body, ("Pod", "Nodes", "NodeNames"))
        args = _ExactArgs(fields["Pod"], fields.decoded("Nodes", _node_list), fields["NodeNames"])
    except UNDECODABLE as error:
        raise invalid(SUBJECT, "body", body, error) from error
    return args.Pod, None if args.Nodes is None else args.Nodes.items or (), args.NodeNames


def _large_fields(body: bytes) -> tuple[Raw, Sequence[Raw] | None, Raw]:
    """As `_fields`, for a body of many bytes: only the exact keys count."""
    args = decode_field(SUBJECT, "body", body, _large_args())
    if args.Nodes is None:
        return args.Pod, None, args.NodeNames
    items = () if args.Nodes.items is None else msgspec.structs.astuple(args.Nodes.items)
    return args.Pod, items[: items.index(None)] if None in items else items, args.NodeNames


def decode_pod(raw: Raw, subject: str = SUBJECT) -> Pod:
    """The pod of a request of the type `subject`. Raises InvalidInputError if there is none, or none with metadata."""
    limit_field(subject, "Pod", raw, MAX_POD_BYTES)
    pod = decode_field(subject, "Pod", raw, _object)
    if pod is None:
        raise InvalidInputError(subject, "Pod", None, "a pod must be given")
    if pod.metadata is None:
        raise InvalidInputError(subject, "Pod.metadata", None, "a pod has metadata")
    return pod.metadata.as_pod(raw)


def _decode_names(field: Raw) -> dict[str, None] | None:
    limit_field(SUBJECT, "NodeNames", field, MAX_NAMES_BYTES)
    raw = bytes(field)
    for known, names in _recent_lists:
        if known == raw:
            return names
    listed = decode_field(SUBJECT, "NodeNames", raw, _names)
    if listed is None:
        return None
    names = dict.fromkeys(listed)
    if "" in names:
        raise InvalidInputError(SUBJECT, f"NodeNames[{listed.index('')}]", "", "a node has a name")
    remember_names(raw, names)
    return names


def remember_names(raw: bytes, names: dict[str, None]) -> None:
    """Remembers the decoded `names` of the JSON list `raw` for the next requests; `names` must not change any more.

    A pod's prioritize call repeats the names that passed its filter call. To decode 5,000 names takes twice as long as
    the whole exchange over HTTP; to compare the bytes takes hardly any time.
    """
    if len(raw) <= MAX_REMEMBERED_BYTES:
        _recent_lists.appendleft((raw, names))


def _names_of_nodes(items: Sequence[Raw]) -> list[str]:
    names = []
    for index, item in enumerate(items):
        match = _NODE_NAME.match(memoryview(item))
        names.append(_decode_node_name(index, item) if match is None else str(match[1], "ascii"))
    return names


def _decode_node_name(index: int, raw: Raw) -> str:
    field = f"Nodes.items[{index}]"
    node = decode_field(SUBJECT, field, raw, _object)
    if node is None or node.metadata is None or not node.metadata.name:
        raise InvalidInputError(SUBJECT, f"{field}.metadata.name", None, "a node has a name")
    return node.metadata.name
