"""The optional alert by the metrics of kube-scheduler: what a real one counts when it reaches no extender."""

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.test_alerts import RULES

from .cluster import Cluster, extender
from .processes import free_ports, until
from .test_alerts import promtool

ATTEMPTS = "scheduler_schedule_attempts_total"
ASKED = 'tas_extender_last_request_timestamp_seconds{path="/scheduler", verb="filter"}'
ALERT = "TasSchedulerAsksNobody"


def attempts(text: str) -> dict[str, float]:
    """How often the scheduler has tried pods, by result."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == ATTEMPTS:
                assert sample.labels.keys() == {"result", "profile"}
                result = sample.labels["result"]
                found[result] = found.get(result, 0.0) + sample.value
    return found


def refused_for(cluster: Cluster, namespace: str, pod: str) -> str:
    """The reason of the condition PodScheduled while it is False."""
    status = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["status"]
    return next((each["reason"] for each in status.get("conditions", ()) if each["status"] == "False"), "")


@pytest.mark.parametrize(("ignorable", "result"), [(True, "scheduled"), (False, "error")])
def test_a_scheduler_that_reaches_no_extender_is_known_by_its_own_attempts(
    cluster: Cluster, namespace: str, tmp_path: Path, prometheus_binary: Path, *, ignorable: bool, result: str
) -> None:
    """By facts.md c70. Then promtool plays it, and the extender was asked last ten minutes before."""
    nobody, port = free_ports(2)
    with cluster.scheduler(extender(f"http://127.0.0.1:{nobody}", names_only=True, ignorable=ignorable), port=port):
        cluster.create_pod(namespace, "first", policy="demo")
        until(lambda: attempts(cluster.metrics(port)).get(result, 0) >= 1, f"a pod is tried: {result}")
        before = attempts(cluster.metrics(port))[result]
        cluster.create_pod(namespace, "second", policy="demo")
        until(lambda: attempts(cluster.metrics(port))[result] > before, f"one more is tried: {result}")
        text = cluster.metrics(port)
        if ignorable:
            assert cluster.placed(namespace, "second")
        else:
            until(lambda: refused_for(cluster, namespace, "second") == "SchedulerError", "the pod waits after an error")
        names = {family.name for family in text_string_to_metric_families(text)}
        assert [name for name in names if "extender" in name] == [], "no metric counts requests to extenders"
        after = attempts(text)[result]
    series = f'{ATTEMPTS}{{result="{result}", profile="default-scheduler"}}'
    case = {
        "interval": "15s",
        "input_series": [
            {"series": series, "values": f"{before}x40 {after}x4 {after + 1}x40"},
            {"series": ASKED, "values": "0x40 0x90"},
        ],
        "alert_rule_test": [
            {"eval_time": "10m", "alertname": ALERT, "exp_alerts": []},
            {
                "eval_time": "660s",
                "alertname": ALERT,
                "exp_alerts": [
                    {
                        "exp_labels": {"severity": "critical", "result": result},
                        "exp_annotations": {
                            "summary": f"The scheduler tries pods (result: {result}), "
                            "and has asked no extender for two minutes",
                            "description": f"What to do: tas runbook {ALERT}",
                            "runbook_url": f"https://tas-on-nats.example/docs/operations.md#{ALERT}",
                        },
                    }
                ],
            },
        ],
    }
    file = tmp_path / "played.test.yaml"
    file.write_text(json.dumps({"rule_files": list(map(str, RULES)), "evaluation_interval": "10s", "tests": [case]}))
    promtool(prometheus_binary, "test", "rules", file)
