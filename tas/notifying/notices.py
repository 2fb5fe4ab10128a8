"""Events in words: for each type of event, what people and other systems read."""

from collections.abc import Collection
from typing import Final

from tas.errors import line_of
from tas.events.data import (
    BreakerReset,
    BreakerTripped,
    Data,
    EndReason,
    EpochChanged,
    Gap,
    LabelApplied,
    LabelRemoved,
    LabelsPaused,
    LabelsResumed,
    MetricFresh,
    MetricStale,
    PolicyAccepted,
    PolicyRefused,
    ResourcePatched,
    SourceBack,
    SourceDry,
    Unknown,
    ViolationEnded,
    ViolationStarted,
)
from tas.events.event import DATA_TYPES, Event
from tas.notifying.notice import Notice
from tas.policy.policy import PolicyKey
from tas.values.nouns import counted
from tas.verdict.brake import ALL


def _kind(data: type[Data]) -> str:
    return data.CHANNEL.partition(".")[0]


KINDS: Final = frozenset(map(_kind, DATA_TYPES.values()))
"""The kinds of events, as the settings of a sink name them: the first token of the channel."""


def kind_of(event: Event) -> str:
    """The kind of an event; empty for a type that is not known."""
    return _kind(type(event.data))


def is_about(event: Event, policies: Collection[str]) -> bool:
    """Whether an event is about one of these policies, as `namespace/name`, or about no policy at all.

    Labels and breakers know only a name, and belong to all policies of this name: one of `policies` is sufficient.
    """
    name, namespace = getattr(event.data, "policy", ""), getattr(event.data, "namespace", "")
    if not name:
        return True
    if namespace:
        return f"{namespace}/{name}" in policies
    return any(policy.rpartition("/")[2] == name for policy in policies)


def notice_of(event: Event) -> Notice | None:  # noqa: PLR0911 - one return for each kind
    """The event in words; None for a type that is not known."""
    match event.data:
        case ViolationStarted() | ViolationEnded() | MetricStale() | MetricFresh():
            return _of_strategy(event.data)
        case LabelApplied() | LabelRemoved() | ResourcePatched():
            return _of_node(event.data)
        case SourceDry() | SourceBack():
            return _of_source(event.data)
        case PolicyAccepted() | PolicyRefused():
            return _of_policy(event.data)
        case BreakerTripped() | BreakerReset():
            return _of_breaker(event.data)
        case LabelsPaused() | LabelsResumed():
            return _of_pause(event.data)
        case EpochChanged() | Gap():
            return _of_bus(event.data)
        case Unknown():
            return None


_ENDS = {
    EndReason.MET: "no longer violates {what}",
    EndReason.POLICY_REMOVED: "no longer violates {what}: the policy or this strategy was deleted",
    EndReason.NODE_REMOVED: "was deleted, and no longer violates {what}",
}


def _of_strategy(data: ViolationStarted | ViolationEnded | MetricStale | MetricFresh) -> Notice:
    policy = PolicyKey(data.namespace, data.policy)
    what = f"{policy} ({data.strategy})"
    match data:
        case ViolationStarted():
            condition = reason = "NodeViolatesPolicy"
            value = f": {data.value}" if data.value else ""
            text, group = f"{data.node} violates {what}{value}", f"{{count}} nodes violate {what}"
        case ViolationEnded():
            condition, reason = "NodeViolatesPolicy", "NodeMeetsPolicy"
            text = f"{data.node} {_ENDS[data.reason].format(what=what)}"
            group = f"{{count}} nodes no longer violate {what}"
        case MetricStale():
            condition = reason = "MetricStale"
            text = f"{data.node} has no fresh sample for {what}"
            group = f"{{count}} nodes have no fresh sample for {what}"
        case MetricFresh():
            condition, reason = "MetricStale", "MetricFresh"
            text = f"{data.node} has fresh samples for {what} again"
            group = f"{{count}} nodes have fresh samples for {what} again"
    begins = condition == reason
    return Notice(
        kind=_kind(type(data)),
        reason=reason,
        condition=condition,
        begins=begins,
        warning=begins,
        labels={"node": data.node, "namespace": data.namespace, "policy": data.policy, "strategy": data.strategy},
        object=data.node,
        scope=what,
        text=text,
        group_text=group,
        node=data.node,
        node_uid=data.node_uid,
        policy=policy,
        policy_uid=data.policy_uid,
    )


def _of_node(data: LabelApplied | LabelRemoved | ResourcePatched) -> Notice:
    match data:
        case LabelApplied():
            reason, scope = "LabelApplied", f"{data.label}={data.value}"
            text, group = f"{data.node} has the label {scope}", f"{{count}} nodes have the label {scope}"
        case LabelRemoved():
            reason, scope = "LabelRemoved", f"{data.label}={data.previous}"
            text = f"{data.node} no longer has the label {scope}"
            group = f"{{count}} nodes no longer have the label {scope}"
        case ResourcePatched():
            reason, scope = "ResourcePatched", f"{data.count} {data.resource}"
            text, group = f"{data.node} offers {scope}", f"{{count}} nodes offer {scope}"
    return Notice(
        kind=_kind(type(data)),
        reason=reason,
        condition=reason,
        begins=None,
        warning=False,
        labels={"node": data.node},
        object=data.node,
        scope=scope,
        text=text,
        group_text=group,
        node=data.node,
        node_uid=data.node_uid,
    )


def _of_source(data: SourceDry | SourceBack) -> Notice:
    (source,) = data.names
    if isinstance(data, SourceDry):
        begins, reason = True, "SourceDry"
        problem = f": {line_of(data.problem)}" if data.problem else ""
        text, group = f"source {source} gives no samples{problem}", "{count} sources give no samples"
    else:
        begins, reason = False, "SourceBack"
        text, group = f"source {source} gives samples again", "{count} sources give samples again"
    return Notice(
        kind=_kind(type(data)),
        reason=reason,
        condition="SourceDry",
        begins=begins,
        warning=begins,
        labels={"source": source},
        object=source,
        scope="",
        text=text,
        group_text=group,
    )


def _of_policy(data: PolicyAccepted | PolicyRefused) -> Notice:
    policy = PolicyKey(data.namespace, data.policy)
    if isinstance(data, PolicyRefused):
        begins, reason = True, "PolicyRefused"
        more = f" (and {data.total - len(data.problems)} more)" if data.total > len(data.problems) else ""
        text = f"policy {policy} has invalid fields: {line_of('; '.join(data.problems))}{more}"
        group = "{count} policies have invalid fields"
    else:
        begins, reason = False, "PolicyAccepted"
        text, group = f"policy {policy} is in force as written", "{count} policies are in force as written"
    return Notice(
        kind=_kind(type(data)),
        reason=reason,
        condition="PolicyRefused",
        begins=begins,
        warning=begins,
        labels={"namespace": data.namespace, "policy": data.policy},
        object=str(policy),
        scope="",
        text=text,
        group_text=group,
        policy=policy,
        policy_uid=data.policy_uid,
    )


def _of_breaker(data: BreakerTripped | BreakerReset) -> Notice:
    name = data.policy or "all policies"
    if isinstance(data, BreakerTripped):
        begins, reason = True, "BreakerTripped"
        nodes = f"{data.wanted} of {counted(data.selected, 'node')}" if data.selected else counted(data.wanted, "node")
        text = (
            f"the breaker of {name} has tripped: {nodes} would have labels, {data.limit} may; "
            f"no label is set or removed until: tas reset {data.policy or '--all'}"
        )
        group = "the breakers of {count} policies have tripped"
    else:
        begins, reason = False, "BreakerReset"
        text, group = f"the breaker of {name} was reset", "the breakers of {count} policies were reset"
    return Notice(
        kind=_kind(type(data)),
        reason=reason,
        condition="BreakerTripped",
        begins=begins,
        warning=begins,
        labels={"policy": data.policy} if data.policy else {},
        object=name,
        scope="",
        text=text,
        group_text=group,
        freeze=data.policy or ALL,
    )


def _of_pause(data: LabelsPaused | LabelsResumed) -> Notice:
    if isinstance(data, LabelsPaused):
        begins, reason = True, "LabelsPaused"
        why = f": {line_of(data.reason)}" if data.reason else ""
        text = f"all labels were paused by {line_of(data.by)}{why}; no label is set or removed until: tas resume"
    else:
        begins, reason = False, "LabelsResumed"
        text = "labels are set and removed again: the pause has ended"
    return Notice(
        kind=_kind(type(data)),
        reason=reason,
        condition="LabelsPaused",
        begins=begins,
        warning=begins,
        labels={},
        object="all labels",
        scope="",
        text=text,
        group_text=text,
        freeze=ALL,
    )


def _of_bus(data: EpochChanged | Gap) -> Notice:
    if isinstance(data, EpochChanged):
        reason, text = "BusEpochChanged", "the bus is new or was wiped: its records are written again"
    else:
        reason = "EventsLost"
        text = f"{data.last - data.first + 1} changes of {data.stream} were lost before they were announced"
    return Notice(
        kind=_kind(type(data)),
        reason=reason,
        condition=reason,
        begins=None,
        warning=True,
        labels={},
        object=reason,  # not the bus: two gaps are counted, and a gap does not replace an epoch
        scope="",
        text=text,
        group_text=text,
    )
