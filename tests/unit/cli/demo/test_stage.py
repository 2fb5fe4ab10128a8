"""The checks of `tas demo` while the cluster and the bus change between their reads."""

import io
from collections.abc import Callable
from typing import Any, cast

from rich.console import Console

from bus.buckets import Bucket
from bus.connection import Bus
from bus.entry import RawEntry
from bus.errors import UnavailableError
from bus.kinds import NODE_INVENTORY
from bus.records.devices import NodeInventory
from cli.demo.narration import Narration, Observed
from cli.demo.stage import CardPlace, Node, Stage
from tas.devices.inventory import Inventory
from tas.devices.policy_facts import PolicyFacts
from tas.enforcing.waking import ANNOTATION
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.resources import NODES, PODS, Metadata, PodObject, PodSpec, Resource


class Cluster:
    """An API server with one node and one pod; `after_read` is called after each request."""

    def __init__(self, after_read: Callable[["Cluster"], None]) -> None:
        self.annotations: dict[str, str] = {}
        self.node_name = ""
        self._after_read = after_read

    async def create(self, *_: Any, **__: Any) -> None:
        """A namespace."""

    async def get(self, resource: Resource[Any], name: str, *, namespace: str = "") -> Any:
        found = {
            PODS: PodObject(metadata=Metadata(name=name), spec=PodSpec(node_name=self.node_name)),
            NODES: PodObject(metadata=Metadata(name=name, annotations=dict(self.annotations))),
        }
        self._after_read(self)
        return found[resource]


class Stored:
    """A bus whose answers are given one after the other."""

    def __init__(self, *answers: NodeInventory | UnavailableError | None) -> None:
        self.left = list(answers)

    def on_invalid(self, *_: Any) -> None:
        raise AssertionError

    async def get(self, _bucket: Bucket, key: str) -> RawEntry | None:
        answer = self.left.pop(0)
        if isinstance(answer, UnavailableError):
            raise answer
        return None if answer is None else RawEntry(key, NODE_INVENTORY.encode(answer), 1, 0.0)


async def ready() -> Observed:
    return Observed(expected=True, state="ready")


def stage_of(cluster: Cluster | None, bus: Stored | None = None) -> tuple[Stage, io.StringIO]:
    out = io.StringIO()
    stage = Stage(
        cast("KubernetesClient", cluster),
        cast("Bus", bus),
        nodes=[Node("node-3", "node-3")],
        namespace="demo",
        extender="",
        ready=ready,
        narration=Narration(Console(file=out, soft_wrap=True), within=60.0),
    )
    return stage, out


async def test_a_pod_that_an_annotation_has_moved_between_two_reads_was_not_placed_before() -> None:
    begun = False

    def woken(cluster: Cluster) -> None:
        if begun:
            cluster.annotations[ANNOTATION] = "2026"
            cluster.node_name = "node-3"

    stage, out = stage_of(Cluster(woken))
    await stage.set_up()
    begun = True
    await stage.expect_retried("app", node="node-3")
    assert f"observed  node-3 has {ANNOTATION}=2026" in out.getvalue()
    assert "before" not in out.getvalue()


async def test_a_pod_may_be_placed_without_an_annotation() -> None:
    stage, out = stage_of(Cluster(lambda _: None))
    await stage.set_up()
    placed = Cluster(lambda _: None)
    placed.node_name = "node-3"
    stage._client = cast("KubernetesClient", placed)
    await stage.expect_retried("app", node="node-3")
    assert "observed  the scheduler has placed app before" in out.getvalue()


async def test_a_hot_card_is_awaited_on_the_bus() -> None:
    """The label of the node is there earlier."""
    before = NodeInventory(uid="u", inventory=Inventory())
    hot = NodeInventory(uid="u", inventory=Inventory(), facts=PolicyFacts(disabled={1: ("gpu",)}))
    bus = Stored(None, UnavailableError("no answer within 2 s"), before, hot)
    stage, out = stage_of(None, bus)
    await stage.expect_disabled(CardPlace("node-3", "card1"))
    assert bus.left == []
    assert "observed  node-3 has disabled card1" in out.getvalue()
