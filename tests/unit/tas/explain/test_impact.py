"""The impact of policies before they are applied."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tas.enforcing.limits import DefaultLimit
from tas.enforcing.pod import PodKey
from tas.explain.impact import Impact, ImpactFacts, PodOfPolicy, impacts_of
from tas.policy.manifest import parse_policy
from tas.policy.policy import Policy, PolicyKey
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tas.verdict.freeze import ALL, Breaker, Trip
from tas.view.view import View

NOW = 1000.0
RULE = {"metricname": "m", "operator": "GreaterThan", "target": 40}


def policy(name: str = "p", *kinds: str, **spec: Any) -> Policy:
    strategies = {kind: {"rules": [RULE], "for": "1h"} if kind == "deschedule" else {"rules": [RULE]} for kind in kinds}
    return parse_policy(PolicyKey("default", name), {"strategies": strategies, **spec})[0]


def known(values: Mapping[str, int | None], *, labelled: Mapping[str, str] | None = None, **more: Any) -> ImpactFacts:
    """Nodes with these values of `m`; `labelled` nodes have the label `<policy>=violating`."""
    view = View(default_stale_after=60.0)
    for node, value in values.items():
        labels = {"zone": "a" if node < "n5" else "b"}
        if labelled and node in labelled:
            labels[labelled[node]] = "violating"
        view.set_labels(node, labels)
        if value is not None:
            metrics = {"m": parse_quantity(str(value))}
            view.add_samples(node, [Scrape(source="s", measured=NOW, arrived=NOW, sequence=1, metrics=metrics)], NOW)
    found: dict[str, Any] = {"policies": (), "pods": (), "breakers": {}, "limit": DefaultLimit(30, 2)}
    return ImpactFacts(view=view, **found | {"limit_over_all": DefaultLimit(50, 4)} | more)


def impact_of(wanted: Policy, found: ImpactFacts) -> Impact:
    (only,) = impacts_of([wanted], found, NOW)
    return only


VALUES: dict[str, int | None] = {"n0": 50, "n1": 60, "n2": 70, "n3": 1, "n4": None, **dict.fromkeys(("n5", "n6"), 2)}


def test_the_nodes_of_each_strategy_the_breaker_and_the_pods() -> None:
    pods = [
        PodOfPolicy(PodKey("default", "waits"), PolicyKey("default", "p"), None),
        PodOfPolicy(PodKey("default", "runs"), PolicyKey("default", "p"), "n1"),
        PodOfPolicy(PodKey("default", "elsewhere"), PolicyKey("default", "p"), "n3"),
        PodOfPolicy(PodKey("web", "other"), PolicyKey("web", "p"), "n1"),
    ]
    found = impact_of(policy("p", "dontschedule", "deschedule"), known(VALUES, pods=pods))
    assert (found.nodes, found.selected) == (7, 7)
    assert {each.strategy: (each.violating, each.met, each.unknown) for each in found.strategies} == {
        "dontschedule": (("n0", "n1", "n2"), 3, 1),
        "deschedule": (("n0", "n1", "n2"), 3, 1),
    }
    assert found.labels == ("n0", "n1", "n2")
    of_policy, over_all = found.breakers
    assert (of_policy.limit, of_policy.selected, of_policy.wanted, of_policy.trips) == (2, 7, 3, True)
    assert (over_all.breaker, over_all.limit, over_all.wanted, over_all.trips) == (ALL, 4, 3, False)
    assert found.trips
    assert (found.waiting, found.running) == (("default/waits",), ("default/runs",))


@pytest.mark.parametrize(
    ("wanted", "more", "trips"),
    [
        pytest.param(policy("p", "deschedule", breaker={"maxNodes": 3}), {}, False, id="its own limit"),
        pytest.param(policy("p", "deschedule"), {"limit": None, "limit_over_all": None}, False, id="no limit"),
        pytest.param(policy("p", "deschedule"), {"limit": None, "limit_over_all": DefaultLimit(0, 2)}, True, id="all"),
        pytest.param(policy("p", "dontschedule"), {}, False, id="no label"),
        pytest.param(policy("p", "deschedule", dryRun=True), {}, False, id="dry run"),
        pytest.param(policy("p", "deschedule", suspend=True), {}, False, id="suspended"),
        pytest.param(policy("p", "deschedule"), {"labelled": dict.fromkeys(("n0", "n1", "n2"), "p")}, False, id="has"),
        pytest.param(
            policy("p", "deschedule"), {"limit": DefaultLimit(0, 3), "labelled": {"n3": "p"}}, True, id="room"
        ),
        pytest.param(
            policy("p", "deschedule", breaker={"maxNodes": 3}),
            {"breakers": {"p": Breaker(nodes={"n6": 1})}},
            True,
            id="admitted",
        ),
    ],
)
def test_whether_the_breaker_would_trip(wanted: Policy, more: Mapping[str, Any], trips: bool) -> None:
    assert impact_of(wanted, known(VALUES, **more)).trips is trips


def test_only_selected_nodes_count_and_a_breaker_that_has_tripped_is_named() -> None:
    selector = {"matchLabels": {"zone": "b"}}
    trip = Breaker(trip=Trip(since=1.0, limit=1, wanted=2, selected=3))
    found = impact_of(policy("p", "deschedule", nodeSelector=selector), known(VALUES, breakers={"p": trip}))
    assert (found.selected, found.labels, found.trips) == (2, (), False)
    values = dict.fromkeys(VALUES, 90)
    found = impact_of(policy("p", "deschedule", nodeSelector=selector), known(values, breakers={"p": trip}))
    assert (found.labels, found.breakers[0].tripped) == (("n5", "n6"), True)


def test_policies_of_a_file_share_the_breaker_over_all_and_replace_those_in_force() -> None:
    in_force = policy("q", "deschedule", breaker={"maxNodes": 1}), None
    p, q = policy("p", "deschedule", breaker={"maxNodes": 9}), policy("q", "deschedule", breaker={"maxNodes": 9})
    found = impacts_of([p, q], known(VALUES, policies=[in_force], limit_over_all=DefaultLimit(0, 2)), NOW)
    assert [[(each.breaker, each.trips) for each in impact.breakers] for impact in found] == [
        [("p", False), (ALL, True)],
        [("q", False), (ALL, True)],
    ]


@pytest.mark.parametrize(("created", "limit"), [(NOW - 2, 9), (NOW, 1)])
def test_only_the_limit_of_the_policy_that_owns_the_label_counts(created: float, limit: int) -> None:
    """A policy of the file has the age of that in force; a new one would be the youngest."""
    other = msgspec.structs.replace(policy("p", "deschedule", breaker={"maxNodes": 1}), key=PolicyKey("web", "p"))
    wanted = policy("p", "deschedule", breaker={"maxNodes": 9})
    in_force = [(other, NOW - 1), (policy("p", "deschedule"), created)]
    assert impact_of(wanted, known(VALUES, policies=in_force)).breakers[0].limit == limit
    assert impact_of(wanted, known(VALUES, policies=in_force[:1])).breakers[0].limit == 1


@pytest.mark.parametrize("values", [{}, {"n0": None, "n1": None}])
def test_without_a_fresh_value_nothing_is_known(values: Mapping[str, int | None]) -> None:
    found = impact_of(policy("p", "deschedule"), known(values))
    assert not found.is_known
    assert not found.trips
    assert impact_of(policy("p", "deschedule"), known({"n0": 1})).is_known
