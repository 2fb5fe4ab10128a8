"""What an event says to people and to systems that know no events of ours: one form for all sinks."""

from collections.abc import Mapping

import msgspec

from tas.policy.policy import PolicyKey


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """An event in words.

    Attributes:
        kind: The kind of event, as the settings of a sink name it: `violation`, `breaker`.
        reason: In CamelCase, stable: `NodeViolatesPolicy`.
        condition: The reason at the beginning of what begins or ends here; else `reason`.
        begins: True if a condition begins, False if it ends, None for what only happens.
        warning: Whether people should look.
        labels: What distinguishes this condition from others of its name: `node`, `namespace`, `policy`.
        object: The name of the object, as people write it: `node-1`, `default/demo-policy`.
        scope: What several objects of one group have in common: the policy, with its strategy.
        text: One line.
        group_text: One line for several objects of the same reason and scope, with `{count}`.
        node: The node, or an empty text.
        node_uid: Its uid, or an empty text if it is not known.
        policy: The policy, or None.
        policy_uid: Its uid, or an empty text if it is not known.
        freeze: The name of the policies whose labels this freezes or releases, `ALL` for all policies; else empty.
    """

    kind: str
    reason: str
    condition: str
    begins: bool | None
    warning: bool
    labels: Mapping[str, str]
    object: str
    scope: str
    text: str
    group_text: str
    node: str = ""
    node_uid: str = ""
    policy: PolicyKey | None = None
    policy_uid: str = ""
    freeze: str = ""
