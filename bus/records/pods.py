"""A pod in PODS."""

import msgspec

from bus.records.codec import Time, reader


class PodRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Value of `<namespace>.<pod>` in PODS: a pod that carries the label `telemetry-policy`.

    `policy` is that label's value: a policy in the pod's namespace. `node` is the pod's node, if it has one;
    `waiting_since` is since when the pod waits for its policy to pass a node, and `bound_since` since when the pod is
    bound to its node (`tas.enforcing.pod`), else None. `bound_seen`: it was seen with its node then, and nothing tells
    since when it is bound.
    """

    policy: str
    uid: str
    node: str | None = None
    waiting_since: Time | None = None
    bound_since: Time | None = None
    bound_seen: bool = False
    resource_version: str = ""


decode_pod = reader("pod", PodRecord)
