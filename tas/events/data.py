"""The data of each public event. Fields may be added; no field is removed or changed within a version.

A subject of the stream has the events of one thing, so that the last event there is what was last announced about it.
`CHANNEL` and `NAMES` say which subject: the channel, and the fields whose values follow.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar

import msgspec

Time = Annotated[datetime, msgspec.Meta(tz=True)]


class EndReason(StrEnum):
    """Why a violation, or a stale metric, has ended."""

    MET = "met"
    """Fresh samples meet the rules, or the policy does not select the node any more."""
    POLICY_REMOVED = "policyRemoved"
    """The policy or its strategy no longer exists."""
    NODE_REMOVED = "nodeRemoved"


class Data(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The base of all. `TYPE` is the last part of the event's type, with its version."""

    TYPE: ClassVar[str] = ""
    CHANNEL: ClassVar[str] = ""
    ABOUT: ClassVar[str] = "bus"
    NAMES: ClassVar[tuple[str, ...]] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The values of the fields `NAMES`."""
        return tuple(getattr(self, field) for field in self.NAMES)

    @property
    def about(self) -> str:
        """The attribute `subject` of CloudEvents: the object that the event is about, as a path."""
        return self.ABOUT.format_map(msgspec.structs.asdict(self))


class _OfNode(Data, frozen=True, kw_only=True):
    """An event about a node. `node_uid` is empty without a cluster."""

    ABOUT: ClassVar[str] = "nodes/{node}"

    node: str
    node_uid: str = ""


class _OfStrategy(_OfNode, frozen=True, kw_only=True):
    """An event about a node by one strategy of a policy; `generation` is the policy's."""

    NAMES: ClassVar[tuple[str, ...]] = ("node", "namespace", "policy", "strategy")

    namespace: str
    policy: str
    strategy: str
    policy_uid: str = ""
    generation: int = 0


class ViolationStarted(_OfStrategy, frozen=True, kw_only=True):
    """A node violates a strategy by fresh samples. `value` is the value of its first rule as quantity text, or "".

    `dry_run`: the policy is suspended or dry-run, so it changes nothing.
    """

    TYPE: ClassVar[str] = "violation.started.v1"
    CHANNEL: ClassVar[str] = "violation"

    value: str = ""
    dry_run: bool = False


class ViolationEnded(_OfStrategy, frozen=True, kw_only=True):
    """The violation has ended. `since` is when it started, if that was announced; `value` as in the start."""

    TYPE: ClassVar[str] = "violation.ended.v1"
    CHANNEL: ClassVar[str] = "violation"

    reason: EndReason
    value: str = ""
    since: Time | None = None


class MetricStale(_OfStrategy, frozen=True, kw_only=True):
    """The strategy has no fresh sample any more, so its state is unknown. `state` is the state before.

    `kept_since` is when the oldest of the last known values was measured by which filter goes on rejecting the node
    (`onStale: keep`).
    """

    TYPE: ClassVar[str] = "metric.stale.v1"
    CHANNEL: ClassVar[str] = "metric"

    state: str
    kept_since: Time | None = None


class MetricFresh(_OfStrategy, frozen=True, kw_only=True):
    """The strategy has fresh samples again, after `MetricStale`. `state` is the state now."""

    TYPE: ClassVar[str] = "metric.fresh.v1"
    CHANNEL: ClassVar[str] = "metric"

    state: str


class MetricEnded(_OfStrategy, frozen=True, kw_only=True):
    """`MetricStale` has ended without fresh samples: the node, or the policy or its strategy, no longer exists.

    `reason` is never `met`; `since` is when the state became unknown.
    """

    TYPE: ClassVar[str] = "metric.ended.v1"
    CHANNEL: ClassVar[str] = "metric"

    reason: EndReason
    since: Time | None = None


class LabelApplied(_OfNode, frozen=True, kw_only=True):
    """A node has a label of a policy, or another value of it: observed at the API server, whoever has set it.

    `policy` is the name of the policies to which the label belongs, in any namespace. `previous` is the value before,
    if that was announced.
    """

    TYPE: ClassVar[str] = "label.applied.v1"
    CHANNEL: ClassVar[str] = "label"
    NAMES: ClassVar[tuple[str, ...]] = ("node", "label")

    label: str
    value: str
    policy: str = ""
    previous: str | None = None


class LabelRemoved(_OfNode, frozen=True, kw_only=True):
    """A node does not have the label any more, which had the value `previous`. `gone`: the node was deleted."""

    TYPE: ClassVar[str] = "label.removed.v1"
    CHANNEL: ClassVar[str] = "label"
    NAMES: ClassVar[tuple[str, ...]] = ("node", "label")

    label: str
    previous: str
    policy: str = ""
    gone: bool = False


class ResourcePatched(_OfNode, frozen=True, kw_only=True):
    """A node offers `count` units of `resource`."""

    TYPE: ClassVar[str] = "resource.patched.v1"
    CHANNEL: ClassVar[str] = "resource"
    NAMES: ClassVar[tuple[str, ...]] = ("node",)

    resource: str
    count: int


class _OfSource(Data, frozen=True, kw_only=True):
    ABOUT: ClassVar[str] = "sources/{source}"
    NAMES: ClassVar[tuple[str, ...]] = ("source",)

    source: str
    kind: str = ""


class SourceDry(_OfSource, frozen=True, kw_only=True):
    """A source has no fresh sample of any metric that policies use, or nobody reads the source. `problem` says why."""

    TYPE: ClassVar[str] = "source.dry.v1"
    CHANNEL: ClassVar[str] = "source"

    problem: str = ""


class SourceBack(_OfSource, frozen=True, kw_only=True):
    """A source has samples again, or is not needed any more. `since` is when it was announced as dry."""

    TYPE: ClassVar[str] = "source.back.v1"
    CHANNEL: ClassVar[str] = "source"

    since: Time | None = None


class _OfPolicy(Data, frozen=True, kw_only=True):
    ABOUT: ClassVar[str] = "namespaces/{namespace}/taspolicies/{policy}"
    NAMES: ClassVar[tuple[str, ...]] = ("namespace", "policy")

    namespace: str
    policy: str


class PolicyAccepted(_OfPolicy, frozen=True, kw_only=True):
    """A generation of a policy is in force as written."""

    TYPE: ClassVar[str] = "policy.accepted.v1"
    CHANNEL: ClassVar[str] = "policy"

    policy_uid: str
    generation: int


class PolicyRefused(_OfPolicy, frozen=True, kw_only=True):
    """A generation of a policy has fields that are refused: only the rest is in force.

    `problems` has the first ones, each as `field = value: reason`; `total` counts all.
    """

    TYPE: ClassVar[str] = "policy.refused.v1"
    CHANNEL: ClassVar[str] = "policy"

    policy_uid: str
    generation: int
    problems: tuple[str, ...]
    total: int


class PolicyRemoved(_OfPolicy, frozen=True, kw_only=True):
    """A policy that was accepted or refused was deleted. Uid and generation are those that were announced last."""

    TYPE: ClassVar[str] = "policy.removed.v1"
    CHANNEL: ClassVar[str] = "policy"

    policy_uid: str
    generation: int


ALL_POLICIES = "_all"
"""The token of the limit over all policies, in place of a policy."""


class _OfBreaker(Data, frozen=True, kw_only=True):
    """`policy` is the name of the policies that share the breaker; without a name it is the limit over all policies."""

    ABOUT: ClassVar[str] = "breakers/{policy}"
    NAMES: ClassVar[tuple[str, ...]] = ("policy",)

    policy: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The policy, or the token for all policies."""
        return (self.policy or ALL_POLICIES,)

    @property
    def about(self) -> str:
        """The breaker."""
        return f"breakers/{self.policy or ALL_POLICIES}"


class BreakerTripped(_OfBreaker, frozen=True, kw_only=True):
    """More nodes would get labels than the breaker allows: no label is set or removed until a reset.

    `wanted` is the number of nodes that would have labels, `limit` the most that may, of `selected` nodes.
    """

    TYPE: ClassVar[str] = "breaker.tripped.v1"
    CHANNEL: ClassVar[str] = "breaker"

    limit: int
    wanted: int
    selected: int = 0


class BreakerReset(_OfBreaker, frozen=True, kw_only=True):
    """Labels are set and removed again. `since` is when the breaker tripped, if that was announced."""

    TYPE: ClassVar[str] = "breaker.reset.v1"
    CHANNEL: ClassVar[str] = "breaker"

    since: Time | None = None


class _OfPause(Data, frozen=True, kw_only=True):
    """All labels of all policies."""

    ABOUT: ClassVar[str] = "pause"
    CHANNEL: ClassVar[str] = "pause"


class LabelsPaused(_OfPause, frozen=True, kw_only=True):
    """Somebody (`by`) has paused all labels: no label is set or removed until they are resumed."""

    TYPE: ClassVar[str] = "labels.paused.v1"

    by: str
    reason: str = ""


class LabelsResumed(_OfPause, frozen=True, kw_only=True):
    """The pause has ended. `since` is when it began, if that was announced."""

    TYPE: ClassVar[str] = "labels.resumed.v1"

    since: Time | None = None


class EpochChanged(Data, frozen=True, kw_only=True):
    """The bus was wiped, or is new: events with `resync` only restate what is. `previous` is empty if unknown."""

    TYPE: ClassVar[str] = "bus.epochchanged.v1"
    CHANNEL: ClassVar[str] = "bus.epoch"

    epoch: str
    previous: str = ""


class Gap(Data, frozen=True, kw_only=True):
    """Changes were lost before they were announced: transitions are missing, but what follows is current.

    The stream `stream` no longer has the sequences from `first` to `last`.
    """

    TYPE: ClassVar[str] = "gap.v1"
    CHANNEL: ClassVar[str] = "gap"

    stream: str
    first: int
    last: int


class Unknown(Data, frozen=True, kw_only=True):
    """The data of an event of a type or a version that this version does not know: the JSON document as decoded."""

    document: Any = None


EventData = (
    ViolationStarted
    | ViolationEnded
    | MetricStale
    | MetricFresh
    | MetricEnded
    | LabelApplied
    | LabelRemoved
    | ResourcePatched
    | SourceDry
    | SourceBack
    | PolicyAccepted
    | PolicyRefused
    | PolicyRemoved
    | BreakerTripped
    | BreakerReset
    | LabelsPaused
    | LabelsResumed
    | EpochChanged
    | Gap
    | Unknown
)
