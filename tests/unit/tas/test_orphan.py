"""Whether a label that no verdict speaks of may go."""

from typing import Any

import pytest

from tas.labels import Orphan
from tas.orphan import may_go
from tas.policy import PolicyKey

BARE = Orphan(label="demo", policy_name="demo", rest=None)
PREFIXED = Orphan(label="telemetry.aware.scheduling.demo/card", policy_name="demo", rest="card")
RULE = {"metricname": "m", "operator": "Equals", "target": 1}
OTHER_OPERATOR = {"metricname": "m", "operator": "LessThan", "target": 1, "labels": ["card=1"]}


def labelled(*labels: str) -> dict[str, Any]:
    return {"strategies": {"labeling": {"rules": [RULE | {"labels": list(labels)}]}}}


def policy(spec: object, *, name: str = "demo", namespace: str = "default") -> tuple[PolicyKey, object]:
    return PolicyKey(namespace, name), spec


DESCHEDULE = {"strategies": {"deschedule": {"rules": [RULE]}}}
DONTSCHEDULE = {"strategies": {"dontschedule": {"rules": [RULE]}}}


@pytest.mark.parametrize(
    ("orphan", "specs", "goes"),
    [
        pytest.param(BARE, [], True, id="no policy at all"),
        pytest.param(PREFIXED, [], True, id="no policy at all, prefixed"),
        pytest.param(BARE, [policy(DESCHEDULE, name="other")], True, id="another policy"),
        pytest.param(BARE, [policy(DESCHEDULE)], False, id="its policy"),
        pytest.param(BARE, [policy(DESCHEDULE, namespace="far")], False, id="S8 one of its name elsewhere"),
        pytest.param(BARE, [policy(DONTSCHEDULE)], True, id="C5 its policy without the strategy"),
        pytest.param(BARE, [policy(labelled("card=0"))], True, id="its policy with another strategy"),
        pytest.param(BARE, [policy(DONTSCHEDULE), policy(DESCHEDULE, namespace="far")], False, id="D39 one of two"),
        pytest.param(BARE, [policy({"strategies": {"deschedule": {"rules": []}}})], True, id="without rules"),
        pytest.param(BARE, [policy({"strategies": {"deschedule": {"rules": "x"}}})], False, id="unreadable rules"),
        pytest.param(BARE, [policy(DONTSCHEDULE | {"suspend": True})], False, id="suspended"),
        pytest.param(BARE, [policy(DONTSCHEDULE | {"dryRun": True})], False, id="dry-run"),
        pytest.param(BARE, [policy({"strategies": 7})], False, id="unreadable strategies"),
        pytest.param(PREFIXED, [policy(labelled("card=0"))], False, id="its key"),
        pytest.param(PREFIXED, [policy(labelled("bus=0"))], True, id="another key"),
        pytest.param(PREFIXED, [policy(DESCHEDULE)], True, id="no labeling"),
        pytest.param(PREFIXED, [policy(labelled("bus=0", "card=-1"))], False, id="D54 its key with a bad value"),
        pytest.param(
            PREFIXED,
            [policy({"strategies": {"labeling": {"rules": [RULE | {"labels": ["card=0"]}, OTHER_OPERATOR]}}})],
            False,
            id="D52 its key with two operators",
        ),
        pytest.param(
            PREFIXED,
            [policy({"strategies": {"labeling": {"rules": [{"metricname": "m", "operator": "?"}]}}})],
            False,
            id="a labeling that cannot be read",
        ),
    ],
)
def test_only_what_policies_say_lets_a_label_go(
    orphan: Orphan, specs: list[tuple[PolicyKey, object]], goes: bool
) -> None:
    assert may_go(orphan, specs) is goes


def test_a_malformed_label_under_the_prefix_belongs_to_no_policy() -> None:
    stray = Orphan(label="telemetry.aware.scheduling.demo", policy_name="", rest="")
    assert may_go(stray, [policy(labelled("card=0"))])
