"""The verb preempt: which nodes are offered for evictions, from ExtenderPreemptionArgs to ExtenderPreemptionResult.

The scheduler sends each node's victims whole or, to a `nodeCacheCapable` extender, by uid alone; it is answered by uid
in both cases. What is left out is not offered (protocol c31).
"""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Raw

from tas.errors import InvalidInputError
from tas.extender.decision import FilterDecision, Pod, PreemptDecision, Victims
from tas.extender.fields import UNDECODABLE, Fields, decode_field
from tas.extender.wire import ObjectMeta, decode_pod

SUBJECT = "ExtenderPreemptionArgs"
FORMS = ("NodeNameToVictims", "NodeNameToMetaVictims")
MAX_INT64 = 2**63 - 1
MAX_NAME = 253
"""Characters of a node's name that are told: it can have no more, and an answer is kept."""

Int64 = Annotated[int, msgspec.Meta(ge=-MAX_INT64 - 1, le=MAX_INT64)]


class PreemptionArgs(msgspec.Struct, frozen=True, kw_only=True):
    """What preempt is asked: a pod, and by node the victims that would make room for it."""

    pod: Pod
    victims: dict[str, Victims]


class MetaPod(msgspec.Struct, forbid_unknown_fields=True):
    """A pod by its uid alone."""

    UID: str


class MetaVictims(msgspec.Struct, forbid_unknown_fields=True):
    """Victims as the scheduler writes them by uid, and as it is answered. Any other key is read the slower way."""

    Pods: list[MetaPod] | None = None
    NumPDBViolations: Int64 | None = None


class PreemptionResult(msgspec.Struct):
    """What the scheduler takes up."""

    NodeNameToMetaVictims: dict[str, MetaVictims]


class _FullPod(msgspec.Struct):
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
    """The request in `body`; of a node in both forms the uids count.

    Raises:
        InvalidInputError: if `body` is not one JSON object of that type, has no pod, a pod without metadata, victims in
            neither form, a node without a name or a victim without a uid. It tells the field and what stood there.
    """
    fields = Fields(SUBJECT, body)
    pod = decode_pod(fields["Pod"], SUBJECT)
    full, meta = (fields.decoded(form, _nodes) for form in FORMS)
    if full is None and meta is None:
        raise InvalidInputError(SUBJECT, ", ".join(FORMS), None, "one of them must be given")
    victims = _victims_of(FORMS[0], full or {}, _decode_full) | _victims_of(FORMS[1], meta or {}, _decode_meta)
    return PreemptionArgs(pod=pod, victims=victims)


def preempt_decision(asked: PreemptionArgs, decision: FilterDecision) -> PreemptDecision:
    """What filter's word on the nodes means for their victims: whom it rejects is not offered, by an error nobody."""
    kept = {} if decision.error else {n: each for n, each in asked.victims.items() if n not in decision.rejected}
    return PreemptDecision(
        outcome=decision.outcome, policy=decision.policy, kept=kept, unknown=decision.unknown, error=decision.error
    )


def preemption_result(decision: PreemptDecision) -> bytes:
    """An ExtenderPreemptionResult: it has no field for an error."""
    kept = {
        node: MetaVictims([MetaPod(pod.uid) for pod in victims.pods], victims.pdb_violations)
        for node, victims in decision.kept.items()
    }
    return _encoder.encode(PreemptionResult(kept))


def _victims_of(form: str, nodes: dict[str, Raw], decode: Callable[[str, Raw], Victims]) -> dict[str, Victims]:
    if "" in nodes:
        raise InvalidInputError(SUBJECT, form, "", "a node has a name")
    return {node: decode(f"{form}.{node[:MAX_NAME]}", raw) for node, raw in nodes.items()}


def _decode_meta(place: str, raw: Raw) -> Victims:
    try:
        read = _meta_victims.decode(raw) or MetaVictims()
    except UNDECODABLE:  # as a whole; which field it is, the slower way tells
        fields = Fields(SUBJECT, raw, place)
        pods = decode_field(SUBJECT, f"{place}.Pods", fields["Pods"], _raw_list) or []
        uids = [_decode_uid(f"{place}.Pods[{number}]", pod) for number, pod in enumerate(pods)]
        read = MetaVictims([MetaPod(uid) for uid in uids], _decode_count(place, fields))
    pods_by_uid = tuple(Pod(namespace="", name="", uid=pod.UID, labels={}) for pod in read.Pods or ())
    return _checked(place, Victims(pods=pods_by_uid, pdb_violations=read.NumPDBViolations or 0))


def _decode_uid(place: str, raw: Raw) -> str:
    return decode_field(SUBJECT, f"{place}.UID", Fields(SUBJECT, raw, place)["UID"], _text)


def _decode_full(place: str, raw: Raw) -> Victims:
    try:
        read = _full_victims.decode(raw) or _FullVictims()
    except UNDECODABLE:  # as a whole; which field it is, the slower way tells
        fields = Fields(SUBJECT, raw, place)
        pods = decode_field(SUBJECT, f"{place}.Pods", fields["Pods"], _full_pods)
        read = _FullVictims(pods, _decode_count(place, fields))
    metadata = [pod.metadata or ObjectMeta() for pod in read.Pods or ()]
    return _checked(
        place, Victims(pods=tuple(each.as_pod() for each in metadata), pdb_violations=read.NumPDBViolations or 0)
    )


def _decode_count(place: str, fields: Fields) -> int | None:
    return decode_field(SUBJECT, f"{place}.NumPDBViolations", fields["NumPDBViolations"], _int64)


def _checked(place: str, victims: Victims) -> Victims:
    for number, pod in enumerate(victims.pods):
        if not pod.uid:
            raise InvalidInputError(SUBJECT, f"{place}.Pods[{number}]", pod.uid, "a victim has a uid")
    return victims
