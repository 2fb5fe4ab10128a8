"""Requests of kube-scheduler: ExtenderArgs of `extender/v1`, from JSON.

The API types carry no JSON tags: the scheduler sends the exact Go field names and null for what is absent, and its own
decoder takes keys in any case (protocol c5). So do we. Only what a decision needs is read: a pod's metadata and the
nodes' names; a full node stays the bytes it came as, because decoding 5,000 of them would take ten times as long as
everything else.
"""

import re
from collections import deque
from collections.abc import Iterable, KeysView

import msgspec
from msgspec import Raw

from tas.errors import InvalidInputError
from tas.extender.decision import Pod
from tas.extender.fields import NULL, UNDECODABLE, Fields, decode_field, invalid

SUBJECT = "ExtenderArgs"
"""What complaints about a request begin with."""


class ExtenderArgs(msgspec.Struct, frozen=True, kw_only=True):
    """What filter and prioritize are asked: a pod, and candidates in one form or both (c14).

    `nodes` maps name to the node as it came; `node_names` has no values. A form that was not used is None, an empty one
    is empty. Both are in the order of the request and name a node once: of two nodes with one name the later bytes
    stand. Both may be shared with other requests, so nobody changes them.
    """

    pod: Pod
    nodes: dict[str, Raw] | None
    node_names: dict[str, None] | None

    @property
    def candidates(self) -> KeysView[str]:
        """The distinct names of both forms."""
        if self.nodes is None or self.node_names is None:
            return (self.nodes or self.node_names or {}).keys()
        return dict.fromkeys([*self.nodes, *self.node_names]).keys()


class ObjectMeta(msgspec.Struct):
    """Of metav1.ObjectMeta what is read; null means the same as absent, as in Go."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None

    def as_pod(self) -> Pod:
        """The pod that has this metadata."""
        return Pod(namespace=self.namespace or "", name=self.name or "", uid=self.uid or "", labels=self.labels or {})


class _Object(msgspec.Struct):
    metadata: ObjectMeta | None = None


class _NodeList(msgspec.Struct):
    items: list[Raw] | None = None


class _ExactArgs(msgspec.Struct, forbid_unknown_fields=True):
    """The request as the scheduler writes it. Any other key sends it the slower way: it may be a field all the same."""

    Pod: Raw = NULL
    Nodes: _NodeList | None = None
    NodeNames: Raw = NULL


_exact_args = msgspec.json.Decoder(_ExactArgs)
_node_list: msgspec.json.Decoder[_NodeList | None] = msgspec.json.Decoder(_NodeList | None)
_names: msgspec.json.Decoder[list[str] | None] = msgspec.json.Decoder(list[str] | None)
_object: msgspec.json.Decoder[_Object | None] = msgspec.json.Decoder(_Object | None)

_NODE_NAME = re.compile(rb'\{"metadata":\{"name":"([ !#-\[\]-~]+)"')
"""How a node begins as the scheduler writes it. Finding its name this way takes a seventh of decoding it."""

MAX_REMEMBERED_BYTES = 1 << 19
"""Lists of names longer than this are not remembered: 15,000 names take 350 kB."""

_recent_lists: deque[tuple[bytes, dict[str, None]]] = deque(maxlen=8)


def decode_args(body: bytes) -> ExtenderArgs:
    """The request in `body`.

    A namespace that the pod does not have is "": no policy is found there, as in the original.

    Raises:
        InvalidInputError: if `body` is not one JSON object of that type, has no pod, a pod without metadata, neither
            nodes nor names, or a node without a name. It tells the field and what stood there.
    """
    try:
        args = _exact_args.decode(body)
    except msgspec.ValidationError:
        args = _in_any_case(body)
    except UNDECODABLE as error:
        raise invalid(SUBJECT, "body", body, error) from error
    pod = decode_pod(args.Pod)
    node_names = _decode_names(bytes(args.NodeNames))
    if args.Nodes is None:
        if node_names is None:
            raise InvalidInputError(SUBJECT, "Nodes, NodeNames", None, "one of them must be given")
        return ExtenderArgs(pod=pod, nodes=None, node_names=node_names)
    items = args.Nodes.items or []
    nodes = dict(zip(_names_of_nodes(items), items, strict=True))
    return ExtenderArgs(pod=pod, nodes=nodes, node_names=node_names)


def _in_any_case(body: bytes) -> _ExactArgs:
    """The fields by names of any case."""
    fields = Fields(SUBJECT, body)
    nodes = fields.decoded("Nodes", _node_list)
    return _ExactArgs(fields["Pod"], nodes, fields["NodeNames"])


def decode_pod(raw: Raw, subject: str = SUBJECT) -> Pod:
    """The pod of a request of the type `subject`. Raises InvalidInputError if there is none, or none with metadata."""
    pod = decode_field(subject, "Pod", raw, _object)
    if pod is None:
        raise InvalidInputError(subject, "Pod", None, "a pod must be given")
    if pod.metadata is None:
        raise InvalidInputError(subject, "Pod.metadata", None, "a pod has metadata")
    return pod.metadata.as_pod()


def _decode_names(raw: bytes) -> dict[str, None] | None:
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
    """Expects to be asked about `names` soon, written as `raw`; from now on nobody changes them.

    A pod's prioritize call repeats the names that its filter call let pass. To read 5,000 of them and tell them apart
    takes twice as long as the whole exchange over HTTP; to recognise them, next to nothing.
    """
    if len(raw) <= MAX_REMEMBERED_BYTES:
        _recent_lists.appendleft((raw, names))


def _names_of_nodes(items: Iterable[Raw]) -> list[str]:
    names = []
    for index, item in enumerate(items):
        begin = _NODE_NAME.match(memoryview(item))
        names.append(_decode_node_name(index, item) if begin is None else str(begin[1], "ascii"))
    return names


def _decode_node_name(index: int, raw: Raw) -> str:
    field = f"Nodes.items[{index}]"
    node = decode_field(SUBJECT, field, raw, _object)
    if node is None or node.metadata is None or not node.metadata.name:
        raise InvalidInputError(SUBJECT, f"{field}.metadata.name", None, "a node has a name")
    return node.metadata.name
