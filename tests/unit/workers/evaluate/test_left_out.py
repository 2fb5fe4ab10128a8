"""What `evaluate` says of policies for which verdicts have no room."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.records.policies import PolicyRecord
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.verdict.size import NODE_BYTES, policy_size
from workers.evaluate.node_evaluation import LOG_SECONDS, Metrics, NodeEvaluation

RULES = [{"metricname": "m", "operator": "Equals", "target": 1}]


def record(key: PolicyKey, created: float) -> PolicyRecord:
    policy, _ = parse_policy(key, {"strategies": {"deschedule": {"rules": RULES}}})
    return PolicyRecord(policy=policy, uid="u", generation=1, created=created)


def test_thousands_of_policies_without_room_cost_one_line_a_namespace_and_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("workers.process.logs.time", SimpleNamespace(monotonic=lambda: now))
    records: dict[PolicyKey, PolicyRecord] = {}
    changed: set[PolicyKey] = set()
    followed = SimpleNamespace(records=records, changed_records=changed, call=lambda _: None)
    first = record(PolicyKey("a", "p-0000"), 0.0)
    size = policy_size(first.policy, uid="u", created=0.0).bytes
    bus = SimpleNamespace(max_value_bytes=NODE_BYTES + 100 * size, epoch=lambda _: None)
    nodes = NodeEvaluation(
        cast("Any", bus), cast("Any", followed), cast("Any", None), Metrics(CollectorRegistry()),
        before_setting=cast("Any", None),
    )  # fmt: skip

    def take_in(namespace: str, numbers: range) -> list[tuple[str, int, int]]:
        keys = [PolicyKey(namespace, f"p-{number:04}") for number in numbers]
        records.update((key, record(key, 1.0 + number)) for key, number in zip(keys, numbers, strict=True))
        changed.update(keys)
        with capture_logs() as logs:
            nodes.take_in_policies()
        assert all(each["event"] == "policy_left_out" for each in logs)
        return [(each["policy"], each["more"], each["suppressed"]) for each in logs]

    assert take_in("a", range(1000)) == [("a/p-0100", 899, 0)]
    assert take_in("b", range(5000, 5002)) == [("b/p-5000", 1, 0)]
    for number in range(1000, 1050):
        assert take_in("a", range(number, number + 1)) == []
    now += LOG_SECONDS
    assert take_in("a", range(1050, 1051)) == [("a/p-1050", 0, 50)]
    assert len(nodes.left_out) == 953
