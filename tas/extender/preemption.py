"""The verb preempt: which nodes are offered for evictions, from ExtenderPreemptionArgs to ExtenderPreemptionResult.

The scheduler sends each node's victims as whole pods or, to a `nodeCacheCapable` extender, by uid only. The answer has
uids in both cases. Nodes that are not in the answer are not offered (facts.md c31).
"""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Raw

from tas.errors import InvalidInputError
from tas.extender.decision import FilterDecision, Pod, PreemptDecision, Victims
from tas.extender.fields import UNDECODABLE, Fields, decode_field, limit_field
from tas.extender.wire import MAX_NODES, ObjectMeta, decode_pod

SUBJECT = "ExtenderPreemptionArgs"
FORMS = ("NodeNameToVictims", "NodeNameToMetaVictims")
VICTIMS = ("Pods", "NumPDBViolations")

MAX_UIDS_BYTES = 8 << 20
"""The longest NodeNameToMetaVictims: 1,500 nodes with 110 uids each, a tenth of 15,000 nodes."""

MAX_INT64 = 2**63 - 1
MAX_NAME = 253
"""The longest node name in errors: no valid name is longer, and recent answers are kept in memory."""

Int64 = Annotated[int, msgspec.Meta(ge=-MAX_INT64 - 1, le=MAX_INT64)]


class PreemptionArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The request of preempt: a pod, and for each node the victims that would make room for it."""

    pod: Pod
    victims: dict[str, Victims]


class MetaPod(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A pod by its uid only."""

    UID: str


class MetaVictims(msgspec.Struct, forbid_unknown_fields=True):
    """Victims by uid, in requests and in answers. A request with any other key is decoded field by field."""

    Pods: list[MetaPod] | None = None
    NumPDBViolations: Int64 | None = None


class PreemptionResult(msgspec.Struct):
    """The answer of preempt."""

    NodeNameToMetaVictims: dict[str, MetaVictims]


class _FullPod(msgspec.Struct, gc=False):
    metadata: ObjectMeta | None = None


class _FullVictims(msgspec.Struct, forbid_unknown_fields=True):
    Pods: list[_FullPod] | None = None
    NumPDBViolations: Int64 | None = None


_nodes: msgspec.json.Decoder[dict[str, Raw] | None] = msgspec.json.Decoder(dict[str, Raw] | None)
_meta_victims: msgspec.json.Decoder[MetaVictims | None] = msgspec.json.Decoder(MetaVictims | None)
_full_victims: msgspec.json.Decoder[_FullVictims | None] = msgspec.json.Decoder(_FullVictims | None)
_raw_list: msgspec.json.Decoder[list[Raw] | None] = msgspec.json.Decoder(list[Raw] | None)
_full_pods: msgspec.json.Decoder[list[_FullPod] | None] = msgspec.json.Decoder(list[_FullPod] | None)
_text: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_int64: msgspec.json.Decoder[int | None] = msgspec.json.Decoder(Int64 | None)
_encoder = msgspec.json.Encoder()


def decode_preemption_args(body: bytes) -> PreemptionArgs:
    """The request in `body`; for a node in both forms the uids count.

    Raises InvalidInputError if `body` is not one JSON object of that type, has no pod, a pod without metadata, victims
    in neither form, a node without a name or a victim without a uid.
    """
    fields = Fields(SUBJECT, body, ("Pod", *FORMS))
    pod = decode_pod(fields["Pod"], SUBJECT)
    limit_field(SUBJECT, FORMS[1], fields[FORMS[1]], MAX_UIDS_BYTES)
    full, meta = (fields.decoded(form, _nodes) for form in FORMS)
    if full is None and meta is None:
        raise InvalidInputError(SUBJECT, ", ".join(FORMS), None, "one of them must be given")
    victims = _victims_of(FORMS[0], full or {}, _decode_full) | _victims_of(FORMS[1], meta or {}, _decode_meta)
    return PreemptionArgs(pod=pod, victims=victims)


def preempt_decision(args: PreemptionArgs, decision: FilterDecision) -> PreemptDecision:
    """The decision of preempt from that of filter. Rejected nodes are not offered; on an error no node is offered."""
    kept = {} if decision.error else {node: v for node, v in args.victims.items() if node not in decision.rejected}
    return PreemptDecision(
        outcome=decision.outcome, policy=decision.policy, kept=kept, unknown=decision.unknown, error=decision.error
    )


def preemption_result(decision: PreemptDecision) -> bytes:
    """An ExtenderPreemptionResult, which has no field for an error."""
    kept = {
        node: MetaVictims([MetaPod(pod.uid) for pod in victims.pods], victims.pdb_violations)
        for node, victims in decision.kept.items()
    }
    return _encoder.encode(PreemptionResult(kept))


def _victims_of(form: str, nodes: dict[str, Raw], decode: Callable[[str, Raw], Victims]) -> dict[str, Victims]:
    if "" in nodes:
        raise InvalidInputError(SUBJECT, form, "", "a node has a name")
    if len(nodes) > MAX_NODES:
        raise InvalidInputError(SUBJECT, form, f"{len(nodes)} nodes", f"the limit is {MAX_NODES}")
    return {node: decode(f"{form}.{node[:MAX_NAME]}", raw) for node, raw in nodes.items()}


def _decode_meta(path: str, raw: Raw) -> Victims:
    try:
        read = _meta_victims.decode(raw) or MetaVictims()
    except UNDECODABLE:  # as a whole: decode field by field, to name the wrong field
        fields = Fields(SUBJECT, raw, VICTIMS, path)
        pods = decode_field(SUBJECT, f"{path}.Pods", fields["Pods"], _raw_list) or []
        uids = [_decode_uid(f"{path}.Pods[{number}]", pod) for number, pod in enumerate(pods)]
        read = MetaVictims([MetaPod(uid) for uid in uids], _decode_count(path, fields))
    pods_by_uid = tuple(Pod(namespace="", name="", uid=pod.UID, labels={}) for pod in read.Pods or ())
    return _checked(path, Victims(pods=pods_by_uid, pdb_violations=read.NumPDBViolations or 0))


def _decode_uid(path: str, raw: Raw) -> str:
    return decode_field(SUBJECT, f"{path}.UID", Fields(SUBJECT, raw, ("UID",), path)["UID"], _text)


def _decode_full(path: str, raw: Raw) -> Victims:
    try:
        read = _full_victims.decode(raw) or _FullVictims()
    except UNDECODABLE:  # as a whole: decode field by field, to name the wrong field
        fields = Fields(SUBJECT, raw, VICTIMS, path)
        pods = decode_field(SUBJECT, f"{path}.Pods", fields["Pods"], _full_pods)
        read = _FullVictims(pods, _decode_count(path, fields))
    metadata = [pod.metadata or ObjectMeta() for pod in read.Pods or ()]
    return _checked(
        path, Victims(pods=tuple(each.as_pod() for each in metadata), pdb_violations=read.NumPDBViolations or 0)
    )


def _decode_count(path: str, fields: Fields) -> int | None:
    return decode_field(SUBJECT, f"{path}.NumPDBViolations", fields["NumPDBViolations"], _int64)


def _checked(path: str, victims: Victims) -> Victims:
    for number, pod in enumerate(victims.pods):
        if not pod.uid:
            raise InvalidInputError(SUBJECT, f"{path}.Pods[{number}]", pod.uid, "a victim has a uid")
    return victims
