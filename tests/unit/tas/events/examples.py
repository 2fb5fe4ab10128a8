"""One event of each type, with every field set."""

from datetime import UTC, datetime
from typing import Any

from tas.events.data import (
    BreakerReset,
    BreakerTripped,
    EndReason,
    EpochChanged,
    EventData,
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
    ViolationEnded,
    ViolationStarted,
)

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
NODE: dict[str, Any] = {"node": "ip-10-0-0-1.ec2.internal", "node_uid": "n-1"}
POLICY: dict[str, Any] = {"namespace": "default", "policy": "demo.policy", "policy_uid": "p-1", "generation": 3}
STRATEGY: dict[str, Any] = NODE | POLICY | {"strategy": "deschedule"}
LABEL: dict[str, Any] = NODE | {"label": "telemetry.aware.scheduling.demo/Gpu_1", "policy": "demo"}

EXAMPLES: tuple[EventData, ...] = (
    ViolationStarted(**STRATEGY, value="2", dry_run=True),
    ViolationEnded(**STRATEGY, reason=EndReason.MET, value="2", since=SINCE),
    MetricStale(**STRATEGY, state="violated", kept_since=SINCE),
    MetricFresh(**STRATEGY, state="met"),
    MetricEnded(**STRATEGY, reason=EndReason.NODE_REMOVED, since=SINCE),
    LabelApplied(**LABEL, value="high", previous="low"),
    LabelRemoved(**LABEL, previous="high", gone=True),
    ResourcePatched(**NODE, resource="telemetry/scheduling", count=1000),
    SourceDry(source="prometheus", kind="prometheus", problem="no answer within 5 s"),
    SourceBack(source="prometheus", kind="prometheus", since=SINCE),
    PolicyAccepted(**POLICY),
    PolicyRefused(**POLICY, problems=("spec.strategies = 1: must be an object",), total=1),
    PolicyRemoved(**POLICY),
    BreakerTripped(policy="demo.policy", limit=10, wanted=11, selected=20),
    BreakerReset(policy="demo.policy", since=SINCE),
    LabelsPaused(by="ops@host-1", reason="maintenance"),
    LabelsResumed(since=SINCE),
    EpochChanged(epoch="1795277068888665", previous="1795277000000000"),
    Gap(stream="VERDICT_LOG", first=5, last=9),
)
