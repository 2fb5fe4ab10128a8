"""Events in words: for each type of event, what people and other systems read."""

from collections.abc import Collection, Mapping
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
    MetricEnded,
    MetricFresh,
    MetricStale,
    PolicyAccepted,
    PolicyRefused,
    PolicyRemoved,
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
from tas.verdict.freeze import ALL


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
        case ViolationStarted() | ViolationEnded() | MetricStale() | MetricFresh() | MetricEnded():
            return _of_strategy(event.data)
        case LabelApplied() | LabelRemoved() | ResourcePatched():
            return _of_node(event.data)
        case SourceDry() | SourceBack():
            return _of_source(event.data)
        case PolicyAccepted() | PolicyRefused() | PolicyRemoved():
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
_NOT_STALE = {
    EndReason.MET: "no longer needs a fresh sample for {what}",
    EndReason.POLICY_REMOVED: "no longer needs a fresh sample for {what}: the policy or this strategy was deleted",
    EndReason.NODE_REMOVED: "was deleted, and no longer needs a fresh sample for {what}",
}


def _notice(
    data: Data,
    reason: str,
    text: str,
    *,
    of: str,
    ends: str = "",
    begins: bool = False,
    warning: bool = False,
    labels: Mapping[str, str] | None = None,
    group: str = "",
    scope: str = "",
    policy: PolicyKey | None = None,
    freeze: str = "",
) -> Notice:
    """The notice about `of`, an object. It `begins` a condition, or `ends` the one with this reason, or is of none.

    What begins is a warning, and so is a notice of no condition with `warning`. Without `labels` they are the names of
    the data. `group`: the text for several objects, if it is another one.
    """
    return Notice(
        kind=_kind(type(data)),
        reason=reason,
        condition=ends or reason,
        begins=begins if begins or ends else None,
        warning=begins or warning,
        labels={name: getattr(data, name) for name in data.NAMES} if labels is None else labels,
        object=of,
        scope=scope,
        text=text,
        group_text=group or text,
        node=getattr(data, "node", ""),
        node_uid=getattr(data, "node_uid", ""),
        policy=policy,
        policy_uid="" if policy is None else getattr(data, "policy_uid", ""),
        freeze=freeze,
    )


def _of_strategy(data: ViolationStarted | ViolationEnded | MetricStale | MetricFresh | MetricEnded) -> Notice:
    policy = PolicyKey(data.namespace, data.policy)
    what, ends = f"{policy} ({data.strategy})", ""
    match data:
        case ViolationStarted():
            reason, value = "NodeViolatesPolicy", f": {data.value}" if data.value else ""
            text, group = f"violates {what}{value}", f"violate {what}"
        case ViolationEnded():
            reason, ends = "NodeMeetsPolicy", "NodeViolatesPolicy"
            text, group = _ENDS[data.reason].format(what=what), f"no longer violate {what}"
        case MetricStale():
            reason = "MetricStale"
            text, group = f"has no fresh sample for {what}", f"have no fresh sample for {what}"
        case MetricFresh():
            reason, ends = "MetricFresh", "MetricStale"
            text, group = f"has fresh samples for {what} again", f"have fresh samples for {what} again"
        case MetricEnded():
            reason, ends = "MetricEnded", "MetricStale"
            text, group = _NOT_STALE[data.reason].format(what=what), f"no longer need a fresh sample for {what}"
    text, group = f"{data.node} {text}", f"{{count}} nodes {group}"
    return _notice(data, reason, text, of=data.node, ends=ends, begins=not ends, group=group, scope=what, policy=policy)


def _of_node(data: LabelApplied | LabelRemoved | ResourcePatched) -> Notice:
    match data:
        case LabelApplied():
            reason, scope = "LabelApplied", f"{data.label}={data.value}"
            text, group = f"has the label {scope}", f"have the label {scope}"
        case LabelRemoved():
            reason, scope = "LabelRemoved", f"{data.label}={data.previous}"
            text, group = f"no longer has the label {scope}", f"no longer have the label {scope}"
        case ResourcePatched():
            reason, scope = "ResourcePatched", f"{data.count} {data.resource}"
            text, group = f"offers {scope}", f"offer {scope}"
    text, group = f"{data.node} {text}", f"{{count}} nodes {group}"
    return _notice(data, reason, text, of=data.node, labels={"node": data.node}, group=group, scope=scope)


def _of_source(data: SourceDry | SourceBack) -> Notice:
    source = data.source
    if isinstance(data, SourceBack):
        # Without a kind its state has expired: whether it gives samples, nobody knows.
        back = "gives samples again, or no policy needs them" if data.kind else "is read by nobody any more"
        group = "{count} sources give samples again, or nobody needs or reads them"
        return _notice(data, "SourceBack", f"source {source} {back}", of=source, ends="SourceDry", group=group)
    problem = f": {line_of(data.problem)}" if data.problem else ""
    text, group = f"source {source} gives no samples{problem}", "{count} sources give no samples"
    return _notice(data, "SourceDry", text, of=source, begins=True, group=group)


def _of_policy(data: PolicyAccepted | PolicyRefused | PolicyRemoved) -> Notice:
    policy = PolicyKey(data.namespace, data.policy)
    if isinstance(data, PolicyRemoved):
        text, group = f"policy {policy} was deleted", "{count} policies were deleted"
        return _notice(data, "PolicyRemoved", text, of=str(policy), ends="PolicyRefused", group=group, policy=policy)
    if isinstance(data, PolicyAccepted):
        text, group = f"policy {policy} is in force as written", "{count} policies are in force as written"
        return _notice(data, "PolicyAccepted", text, of=str(policy), ends="PolicyRefused", group=group, policy=policy)
    more = f" (and {data.total - len(data.problems)} more)" if data.total > len(data.problems) else ""
    text = f"policy {policy} has invalid fields: {line_of('; '.join(data.problems))}{more}"
    group = "{count} policies have invalid fields"
    return _notice(data, "PolicyRefused", text, of=str(policy), begins=True, group=group, policy=policy)


def _of_breaker(data: BreakerTripped | BreakerReset) -> Notice:
    name, freeze = data.policy or "all policies", data.policy or ALL
    labels = {"policy": data.policy} if data.policy else {}
    if isinstance(data, BreakerReset):
        text, group = f"the breaker of {name} was reset", "the breakers of {count} policies were reset"
        return _notice(
            data, "BreakerReset", text, of=name, ends="BreakerTripped", labels=labels, group=group, freeze=freeze
        )
    nodes = f"{data.wanted} of {counted(data.selected, 'node')}" if data.selected else counted(data.wanted, "node")
    text = (
        f"the breaker of {name} has tripped: {nodes} would have labels, {data.limit} may; "
        f"no label is set or removed until: tas reset {data.policy or '--all'}"
    )
    group = "the breakers of {count} policies have tripped"
    return _notice(data, "BreakerTripped", text, of=name, begins=True, labels=labels, group=group, freeze=freeze)


def _of_pause(data: LabelsPaused | LabelsResumed) -> Notice:
    if isinstance(data, LabelsResumed):
        text = "labels are set and removed again: the pause has ended"
        return _notice(data, "LabelsResumed", text, of="all labels", ends="LabelsPaused", freeze=ALL)
    why = f": {line_of(data.reason)}" if data.reason else ""
    text = f"all labels were paused by {line_of(data.by)}{why}; no label is set or removed until: tas resume"
    return _notice(data, "LabelsPaused", text, of="all labels", begins=True, freeze=ALL)


def _of_bus(data: EpochChanged | Gap) -> Notice:
    if isinstance(data, EpochChanged):
        reason, text = "BusEpochChanged", "the bus is new or was wiped: its records are written again"
    else:
        reason = "EventsLost"
        text = f"{data.last - data.first + 1} changes of {data.stream} were lost before they were announced"
    # About itself and not the bus: two gaps are counted, and a gap does not replace an epoch.
    return _notice(data, reason, text, of=reason, warning=True)
