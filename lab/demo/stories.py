"""The demos of `tas demo`: the worked examples of the original, a policy for free memory, and GPU cards."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from lab.demo.stage import SOURCE, CardPlace, Stage
from tas.policy.policy import LABEL_PREFIX
from tas.verdict.verdict import VIOLATING

THREE_NODES = ("node-1", "node-2", "node-3")
HEALTH_POLICY, HEALTH = "demo-policy", "health_metric"
LABELING_POLICY, CARD0, CARD1 = "labeling-policy", "metric_card0", "metric_card1"
MEMORY_POLICY, MEMORY = "memory-policy", "memory_MemFree_bytes"
GPU_POLICY = "gpu-health"
TEMPERATURES = {"card0": "gpu_card0_temperature", "card1": "gpu_card1_temperature"}
TWO_CARDS = {"gpu.intel.com/i915": "20", "gpu.intel.com/millicores": "2000"}
"""What the device plugin says of a node with two cards, each of which ten containers may share."""
PART_OF_A_CARD = {"gpu.intel.com/i915": "1", "gpu.intel.com/millicores": "600"}
NO_AFFINITY = "didn't match Pod's node affinity"
"""The scheduler's message for a node with a label that the pod's affinity excludes."""


def _rule(metric: str, operator: str, target: int | str | None = None, **more: object) -> dict[str, object]:
    rule: dict[str, object] = {"metricname": metric, "operator": operator}
    return rule | ({} if target is None else {"target": target}) | more


async def health_metric(stage: Stage) -> None:
    """Unhealthy nodes get no new pods, and lose their pods.

    With a health_metric of 1 a node gets no new pods; with 2 its running pods are evicted, too.
    """
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

    # The scheduler takes the first of the nodes with the fewest pods: the node `unhealthy`, if it were healthy.
    unhealthy, healthy = (node for node in stage.nodes if node != first)
    await stage.report(metric, {unhealthy: "1"})
    await stage.expect_rejected(policy, unhealthy)
    await stage.pod("demo-app-2", policy=policy, avoids=avoids)
    await stage.expect_placed("demo-app-2", first, healthy)

    await stage.report(metric, {first: "2"})
    await stage.expect_labels({first: {policy: VIOLATING}})
    await stage.expect_rejected(policy, first, unhealthy)
    await stage.evict("demo-app-1")
    await stage.pod("demo-app-3", policy=policy, avoids=avoids)
    await stage.expect_placed("demo-app-3", healthy)

    await stage.report(metric, {first: "0", unhealthy: "0"})
    await stage.expect_labels({})
    await stage.expect_rejected(policy)


async def labeling(stage: Stage) -> None:
    """Nodes with hot cards are labelled.

    A pod that needs a cool card waits until a node has one.
    """
    policy = LABELING_POLICY
    card0, card1 = (f"{LABEL_PREFIX}{policy}/{card}" for card in ("card0", "card1"))
    avoids = {card0: "true", card1: "true"}
    first, second = stage.nodes
    await stage.report(CARD0, {first: "50", second: "50"})
    await stage.report(CARD1, {first: "50", second: "50"})
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
    await stage.expect_placed("demo-app-1", first, second)

    await stage.report(CARD0, {first: "150"})
    await stage.expect_labels({first: {card0: "true"}})
    await stage.pod("demo-app-2", policy=policy, avoids=avoids)
    await stage.expect_placed("demo-app-2", second)

    await stage.report(CARD1, {second: "250"})
    await stage.expect_labels({first: {card0: "true"}, second: {card1: "true"}})
    await stage.pod("demo-app-3", policy=policy, avoids=avoids)
    await stage.expect_waiting("demo-app-3", reason=NO_AFFINITY)

    await stage.report(CARD0, {first: "50"})
    await stage.expect_labels({second: {card1: "true"}})
    await stage.expect_placed("demo-app-3", first)
    await stage.report(CARD1, {second: "50"})
    await stage.expect_labels({})


async def memory(stage: Stage) -> None:
    """Pods go to the node with the most free memory.

    While all nodes have less than 2Gi, pods wait.
    """
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
    await stage.expect_rejected(policy, three)
    await stage.pod("demo-app-1", policy=policy, avoids={})
    await stage.expect_placed("demo-app-1", two)

    await stage.report(metric, {two: "1Gi"})
    await stage.expect_rejected(policy, two, three)
    await stage.pod("demo-app-2", policy=policy, avoids={})
    await stage.expect_placed("demo-app-2", one)

    await stage.report(metric, {one: "1Gi"})
    await stage.expect_rejected(policy, one, two, three)
    await stage.pod("demo-app-3", policy=policy, avoids={})
    await stage.expect_waiting("demo-app-3", reason=f"Node violates {policy}: {metric} of {SOURCE} LessThan")

    # A sample is no news for the scheduler: the annotation on the node makes it try again.
    await stage.report(metric, {three: "16Gi"})
    await stage.expect_retried("demo-app-3", node=three)
    await stage.expect_placed("demo-app-3", three)


async def gpu(stage: Stage) -> None:
    """A hot GPU card gets no new pod.

    Kubernetes counts the cards of a node together. tas run gpu counts each card: here a pod uses more than half a card,
    so each card has room for one. While a card is hot, its node has room by its totals, but the pod waits.

    With --kubeconfig the demo creates two nodes, which kwok simulates, and deletes them at the end. There tas run all,
    inventory and gpu must be running, the scheduler must ask gpu, and --extender-health is the address of gpu.
    """
    for node in stage.nodes:
        await stage.cards(node, {"gpu.intel.com/gpu-numbers": "0.1"}, TWO_CARDS)
    await stage.policy(
        GPU_POLICY,
        {
            "labeling": {
                "rules": [
                    _rule(metric, "GreaterThan", 85, labels=[f"gas-disable-{card}=true"])
                    for card, metric in TEMPERATURES.items()
                ]
            }
        },
    )
    for metric in TEMPERATURES.values():
        await stage.report(metric, dict.fromkeys(stage.nodes, "60"))
    free = {CardPlace(node, card) for node in stage.nodes for card in TEMPERATURES}
    for name in ("demo-app-1", "demo-app-2"):
        await stage.pod_with_card(name, PART_OF_A_CARD)
        free.remove(await stage.expect_card(name, free))

    hot, cool = sorted(free)
    disabled = {hot.node: {f"{LABEL_PREFIX}{GPU_POLICY}/gas-disable-{hot.card}": "true"}}
    await stage.report(TEMPERATURES[hot.card], {hot.node: "95"})
    await stage.expect_labels(disabled)
    await stage.expect_disabled(hot)
    await stage.pod_with_card("demo-app-3", PART_OF_A_CARD)
    await stage.expect_card("demo-app-3", {cool})
    await stage.pod_with_card("demo-app-4", PART_OF_A_CARD)
    await stage.expect_waiting("demo-app-4", reason="Not enough GPU-resources")

    await stage.report(TEMPERATURES[hot.card], {hot.node: "60"})
    await stage.expect_labels({})
    await stage.expect_card("demo-app-4", {hot})


class Story(NamedTuple):
    """One demo: its steps, and the names that it uses.

    `nodes` are those of the simulated cluster: on the user's cluster the demo takes as many nodes, with other names.
    The name `policy` is also in the keys of the labels. `metrics` are those that the demo publishes.

    On a simulated cluster `workers` run, or else those of `tas run all`, and the `entry` of the scheduler's
    configuration has these fields. `answering` is the worker that answers the scheduler. With `own_nodes` the demo
    creates its nodes on the user's cluster, too: simulated ones, since real ones may lack what the demo needs.
    """

    run: Callable[[Stage], Awaitable[None]]
    nodes: Sequence[str]
    namespace: str
    policy: str
    metrics: Collection[str]
    workers: Sequence[str] | None = None
    entry: Mapping[str, object] = {}
    answering: str = "extender"
    own_nodes: bool = False


STORIES: Mapping[str, Story] = {
    "health-metric": Story(health_metric, THREE_NODES, "health-metric-demo", HEALTH_POLICY, {HEALTH}),
    "labeling": Story(labeling, THREE_NODES[:2], "labeling-demo", LABELING_POLICY, {CARD0, CARD1}),
    "gpu": Story(
        gpu,
        ("gpu-demo-1", "gpu-demo-2"),
        "gpu-demo",
        GPU_POLICY,
        set(TEMPERATURES.values()),
        workers=("materialize", "watch", "evaluate", "status", "labels", "inventory", "gpu"),
        entry={
            "bindVerb": "bind",
            "managedResources": [{"name": "gpu.intel.com/i915", "ignoredByScheduler": False}],
        },
        answering="gpu",
        own_nodes=True,
    ),
    "memory": Story(memory, THREE_NODES, "memory-demo", MEMORY_POLICY, {MEMORY}),
}
"""The demos by name."""
