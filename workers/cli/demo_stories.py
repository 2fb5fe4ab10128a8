"""The stories of `tas demo`: the worked examples of the original, and a policy of memory."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from tas.policy import LABEL_PREFIX
from tas.verdict import VIOLATING
from workers.cli.demo_stage import Stage

THREE_NODES = ("node-1", "node-2", "node-3")
NO_AFFINITY = "didn't match Pod's node affinity"
"""The scheduler's words for a label that a pod avoids."""


def _rule(metric: str, operator: str, target: int | str | None = None, **more: object) -> dict[str, object]:
    told: dict[str, object] = {"metricname": metric, "operator": operator}
    return told | ({} if target is None else {"target": target}) | more


async def health_metric(stage: Stage) -> None:
    """The health example: 0 is healthy, 1 keeps new pods away, 2 moves running pods away."""
    namespace, policy, metric = "health-metric-demo", "demo-policy", "health_metric"
    avoids = {policy: VIOLATING}
    await stage.ready()
    stage.policy(
        namespace,
        policy,
        {
            "deschedule": {"rules": [_rule(metric, "Equals", 2)]},
            "dontschedule": {"rules": [_rule(metric, "Equals", 1), _rule(metric, "Equals", 2)]},
            "scheduleonmetric": {"rules": [_rule(metric, "LessThan")]},
        },
    )
    await stage.report(metric, dict.fromkeys(stage.nodes, "0"))
    await stage.expect_scores(namespace, policy, dict.fromkeys(stage.nodes, 10))
    stage.pod(namespace, "demo-app-1", policy=policy, avoids=avoids)
    first = await stage.expect_placed(namespace, "demo-app-1", *stage.nodes)

    # Of equal nodes the scheduler takes the first of the emptiest: this one, if nothing were wrong with it.
    unwell, well = (node for node in stage.nodes if node != first)
    await stage.report(metric, {unwell: "1"})
    await stage.expect_refused(namespace, policy, unwell)
    stage.pod(namespace, "demo-app-2", policy=policy, avoids=avoids)
    await stage.expect_placed(namespace, "demo-app-2", first, well)

    await stage.report(metric, {first: "2"})
    await stage.expect_labels({first: {policy: VIOLATING}})
    await stage.expect_refused(namespace, policy, first, unwell)
    stage.evict(namespace, "demo-app-1")
    stage.pod(namespace, "demo-app-3", policy=policy, avoids=avoids)
    await stage.expect_placed(namespace, "demo-app-3", well)

    await stage.report(metric, {first: "0", unwell: "0"})
    await stage.expect_labels({})
    await stage.expect_refused(namespace, policy)


async def labeling(stage: Stage) -> None:
    """The labeling example: hot cards are labelled, and pods that need a cool one wait until there is one."""
    namespace, policy = "labeling-demo", "labeling-policy"
    card0, card1 = (f"{LABEL_PREFIX}{policy}/{card}" for card in ("card0", "card1"))
    avoids = {card0: "true", card1: "true"}
    one, other = stage.nodes
    await stage.ready()
    await stage.report("metric_card0", {one: "50", other: "50"})
    await stage.report("metric_card1", {one: "50", other: "50"})
    stage.policy(
        namespace,
        policy,
        {
            "labeling": {
                "rules": [
                    _rule("metric_card0", "GreaterThan", 100, labels=["card0=true"]),
                    _rule("metric_card1", "GreaterThan", 200, labels=["card1=true"]),
                ]
            }
        },
    )
    await stage.expect_conditions(namespace, policy, {"Ready": "True", "MetricsSeen": "True", "Violating": "False"})
    await stage.expect_labels({})
    stage.pod(namespace, "demo-app-1", policy=policy, avoids=avoids)
    await stage.expect_placed(namespace, "demo-app-1", one, other)

    await stage.report("metric_card0", {one: "150"})
    await stage.expect_labels({one: {card0: "true"}})
    stage.pod(namespace, "demo-app-2", policy=policy, avoids=avoids)
    await stage.expect_placed(namespace, "demo-app-2", other)

    await stage.report("metric_card1", {other: "250"})
    await stage.expect_labels({one: {card0: "true"}, other: {card1: "true"}})
    stage.pod(namespace, "demo-app-3", policy=policy, avoids=avoids)
    await stage.expect_waiting(namespace, "demo-app-3", words=NO_AFFINITY)

    await stage.report("metric_card0", {one: "50"})
    await stage.expect_labels({other: {card1: "true"}})
    await stage.expect_placed(namespace, "demo-app-3", one)
    await stage.report("metric_card1", {other: "50"})
    await stage.expect_labels({})


async def memory(stage: Stage) -> None:
    """Free memory: pods go where there is most of it, nowhere with less than 2Gi, and wait until there is enough."""
    namespace, policy, metric = "memory-demo", "memory-policy", "memory_MemFree_bytes"
    one, two, three = stage.nodes
    await stage.ready()
    stage.policy(
        namespace,
        policy,
        {
            "scheduleonmetric": {"rules": [_rule(metric, "GreaterThan")]},
            "dontschedule": {"rules": [_rule(metric, "LessThan", "2Gi")]},
        },
    )
    await stage.report(metric, {one: "4Gi", two: "8Gi", three: "1Gi"})
    await stage.expect_scores(namespace, policy, {one: 9, two: 10, three: 8})
    await stage.expect_refused(namespace, policy, three)
    stage.pod(namespace, "demo-app-1", policy=policy, avoids={})
    await stage.expect_placed(namespace, "demo-app-1", two)

    await stage.report(metric, {two: "1Gi"})
    await stage.expect_refused(namespace, policy, two, three)
    stage.pod(namespace, "demo-app-2", policy=policy, avoids={})
    await stage.expect_placed(namespace, "demo-app-2", one)

    await stage.report(metric, {one: "1Gi"})
    await stage.expect_refused(namespace, policy, one, two, three)
    stage.pod(namespace, "demo-app-3", policy=policy, avoids={})
    await stage.expect_waiting(namespace, "demo-app-3", words=f"Node violates {policy}: {metric} LessThan")

    # Nothing else happens in the cluster: what makes the scheduler try again is the annotation on the node.
    await stage.report(metric, {three: "16Gi"})
    await stage.expect_woken(three)
    await stage.expect_placed(namespace, "demo-app-3", three)


class Story(NamedTuple):
    """What is played, and on which nodes."""

    tale: Callable[[Stage], Awaitable[None]]
    nodes: Sequence[str]


STORIES: Mapping[str, Story] = {
    "health-metric": Story(health_metric, THREE_NODES),
    "labeling": Story(labeling, THREE_NODES[:2]),
    "memory": Story(memory, THREE_NODES),
}
"""Each by its name."""
