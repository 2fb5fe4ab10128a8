"""The stories of `tas demo`: the worked examples of the original, and a policy of memory."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from tas.policy import LABEL_PREFIX
from tas.verdict import VIOLATING
from workers.cli.demo_stage import SOURCE, Stage

THREE_NODES = ("node-1", "node-2", "node-3")
HEALTH_POLICY, HEALTH = "demo-policy", "health_metric"
LABELING_POLICY, CARD0, CARD1 = "labeling-policy", "metric_card0", "metric_card1"
MEMORY_POLICY, MEMORY = "memory-policy", "memory_MemFree_bytes"
NO_AFFINITY = "didn't match Pod's node affinity"
"""The scheduler's words for a label that a pod avoids."""


def _rule(metric: str, operator: str, target: int | str | None = None, **more: object) -> dict[str, object]:
    told: dict[str, object] = {"metricname": metric, "operator": operator}
    return told | ({} if target is None else {"target": target}) | more


async def health_metric(stage: Stage) -> None:
    """The health example: 0 is healthy, 1 keeps new pods away, 2 moves running pods away."""
    policy, metric = HEALTH_POLICY, HEALTH
    avoids = {policy: VIOLATING}
    await stage.policy(
        policy,
        {
            "deschedule": {"rules": [_rule(metric, "Equals", 2)]},
            "dontschedule": {"rules": [_rule(metric, "Equals", 1), _rule(metric, "Equals", 2)]},
            "scheduleonmetric": {"rules": [_rule(metric, "LessThan")]},
        },
    )
    await stage.report(metric, dict.fromkeys(stage.nodes, "0"))
    await stage.expect_scores(policy, dict.fromkeys(stage.nodes, 10))
    await stage.pod("demo-app-1", policy=policy, avoids=avoids)
    first = await stage.expect_placed("demo-app-1", *stage.nodes)

    # Of equal nodes the scheduler takes the first of the emptiest: this one, if nothing were wrong with it.
    unwell, well = (node for node in stage.nodes if node != first)
    await stage.report(metric, {unwell: "1"})
    await stage.expect_refused(policy, unwell)
    await stage.pod("demo-app-2", policy=policy, avoids=avoids)
    await stage.expect_placed("demo-app-2", first, well)

    await stage.report(metric, {first: "2"})
    await stage.expect_labels({first: {policy: VIOLATING}})
    await stage.expect_refused(policy, first, unwell)
    await stage.evict("demo-app-1")
    await stage.pod("demo-app-3", policy=policy, avoids=avoids)
    await stage.expect_placed("demo-app-3", well)

    await stage.report(metric, {first: "0", unwell: "0"})
    await stage.expect_labels({})
    await stage.expect_refused(policy)


async def labeling(stage: Stage) -> None:
    """The labeling example: hot cards are labelled, and pods that need a cool one wait until there is one."""
    policy = LABELING_POLICY
    card0, card1 = (f"{LABEL_PREFIX}{policy}/{card}" for card in ("card0", "card1"))
    avoids = {card0: "true", card1: "true"}
    one, other = stage.nodes
    await stage.report(CARD0, {one: "50", other: "50"})
    await stage.report(CARD1, {one: "50", other: "50"})
    await stage.policy(
        policy,
        {
            "labeling": {
                "rules": [
                    _rule(CARD0, "GreaterThan", 100, labels=["card0=true"]),
                    _rule(CARD1, "GreaterThan", 200, labels=["card1=true"]),
                ]
            }
        },
    )
    await stage.expect_conditions(policy, {"Ready": "True", "MetricsSeen": "True", "Violating": "False"})
    await stage.expect_labels({})
    await stage.pod("demo-app-1", policy=policy, avoids=avoids)
    await stage.expect_placed("demo-app-1", one, other)

    await stage.report(CARD0, {one: "150"})
    await stage.expect_labels({one: {card0: "true"}})
    await stage.pod("demo-app-2", policy=policy, avoids=avoids)
    await stage.expect_placed("demo-app-2", other)

    await stage.report(CARD1, {other: "250"})
    await stage.expect_labels({one: {card0: "true"}, other: {card1: "true"}})
    await stage.pod("demo-app-3", policy=policy, avoids=avoids)
    await stage.expect_waiting("demo-app-3", words=NO_AFFINITY)

    await stage.report(CARD0, {one: "50"})
    await stage.expect_labels({other: {card1: "true"}})
    await stage.expect_placed("demo-app-3", one)
    await stage.report(CARD1, {other: "50"})
    await stage.expect_labels({})


async def memory(stage: Stage) -> None:
    """Free memory: pods go where there is most of it, nowhere with less than 2Gi, and wait until there is enough."""
    policy, metric = MEMORY_POLICY, MEMORY
    one, two, three = stage.nodes
    await stage.policy(
        policy,
        {
            "scheduleonmetric": {"rules": [_rule(metric, "GreaterThan")]},
            "dontschedule": {"rules": [_rule(metric, "LessThan", "2Gi")]},
        },
    )
    await stage.report(metric, {one: "4Gi", two: "8Gi", three: "1Gi"})
    await stage.expect_scores(policy, {one: 9, two: 10, three: 8})
    await stage.expect_refused(policy, three)
    await stage.pod("demo-app-1", policy=policy, avoids={})
    await stage.expect_placed("demo-app-1", two)

    await stage.report(metric, {two: "1Gi"})
    await stage.expect_refused(policy, two, three)
    await stage.pod("demo-app-2", policy=policy, avoids={})
    await stage.expect_placed("demo-app-2", one)

    await stage.report(metric, {one: "1Gi"})
    await stage.expect_refused(policy, one, two, three)
    await stage.pod("demo-app-3", policy=policy, avoids={})
    await stage.expect_waiting("demo-app-3", words=f"Node violates {policy}: {metric} of {SOURCE} LessThan")

    # Nothing else happens in the cluster: what makes the scheduler try again is the annotation on the node.
    await stage.report(metric, {three: "16Gi"})
    await stage.expect_woken(three)
    await stage.expect_placed("demo-app-3", three)


class Story(NamedTuple):
    """What is played, on which nodes of a cluster in a box, and what it uses.

    Attributes:
        tale: Plays it.
        nodes: So many are needed; on a cluster of one's own they have other names.
        namespace: Where its policy and its pods are.
        policy: The policy's name, which is in the keys of the labels as well.
        metrics: What is published of the nodes.
    """

    tale: Callable[[Stage], Awaitable[None]]
    nodes: Sequence[str]
    namespace: str
    policy: str
    metrics: Collection[str]


STORIES: Mapping[str, Story] = {
    "health-metric": Story(health_metric, THREE_NODES, "health-metric-demo", HEALTH_POLICY, {HEALTH}),
    "labeling": Story(labeling, THREE_NODES[:2], "labeling-demo", LABELING_POLICY, {CARD0, CARD1}),
    "memory": Story(memory, THREE_NODES, "memory-demo", MEMORY_POLICY, {MEMORY}),
}
"""Each by its name."""
