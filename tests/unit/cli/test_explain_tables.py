"""The table of a node: of more rules than it shows those that matter come first; values with costs of pods."""

import re
import time

import pytest

from cli.queries.explain_tables import SHOWN_RULES, print_node
from tas.enforcing.pod import PodKey
from tas.explain.explain import explain_node
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tas.view.view import View


def test_of_many_rules_the_violated_and_unknown_ones_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    view = View(default_stale_after=60)
    value = {"m": parse_quantity("1")}
    view.add_samples("node-1", [Scrape(source="s", measured=now, arrived=now, sequence=1, metrics=value)], now)
    met = {"metricname": "m", "operator": "Equals", "target": 2}
    for number in range(SHOWN_RULES // 50 + 1):
        strategies = {"dontschedule": {"rules": [met] * 50}}
        view.set_policy(parse_policy(PolicyKey("default", f"a-{number}"), {"strategies": strategies})[0], now)
    worst = [met, met | {"metricname": "absent"}, met | {"target": 1}]
    strategies = {"dontschedule": {"rules": worst}}
    view.set_policy(parse_policy(PolicyKey("default", "z"), {"strategies": strategies})[0], now)
    print_node(explain_node(view, "node-1", now))
    head, *rows = [re.split(r" {2,}", line.rstrip()) for line in capsys.readouterr().out.splitlines()]
    assert head[0] == "POLICY"
    assert (rows[0][0], rows[0][2], rows[0][-2:]) == ("default/z", "m Equals 1", ["violated", "violated"])
    assert (rows[1][0], rows[1][2], rows[1][-1]) == ("default/z", "absent Equals 2", "unknown")
    assert (rows[2][0], rows[2][-1]) == ("default/z", "met")
    assert (rows[3][0], rows[3][-2:]) == ("default/a-0", ["met", "met"])
    assert rows[SHOWN_RULES - 1][0].startswith("default/a-")
    assert rows[SHOWN_RULES] == ["53 more rules, none of them worse than these: --json has them all"]


def test_a_value_is_shown_with_the_pods_that_the_sample_cannot_show(capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    key = PolicyKey("default", "p")
    view = View()
    rule = {"metricname": "free", "operator": "GreaterThan", "podCost": "1Gi"}
    view.set_policy(parse_policy(key, {"strategies": {"scheduleonmetric": {"rules": [rule]}}})[0], now)
    free = {"free": parse_quantity("8Gi")}
    view.add_samples("node-1", [Scrape(source="s", measured=now, arrived=now, sequence=1, metrics=free)], now)
    for name in ("one", "two"):
        view.place_pod(PodKey("default", name), key, "node-1", now, now)
    print_node(explain_node(view, "node-1", now))
    _, row, *_ = [re.split(r" {2,}", line.rstrip()) for line in capsys.readouterr().out.splitlines()]
    assert row[2:4] == ["high free first (each pod costs 1Gi)", "8Gi (6Gi with 2 new pods)"]
