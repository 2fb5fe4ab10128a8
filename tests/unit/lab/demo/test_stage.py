"""The checks of `tas demo` while the cluster and the bus change between their reads."""

import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest
from rich.console import Console

from bus.buckets import Bucket
from bus.connection import Bus
from bus.entry import RawEntry
from bus.errors import UnavailableError
from bus.kinds import NODE_INVENTORY
from bus.records.devices import NodeInventory
from lab.demo.narration import Narration, Observed, StepFailedError
from lab.demo.stage import MOST_EVICTIONS, CardPlace, Node, Stage
from tas.devices.inventory import Inventory
from tas.devices.policy_facts import PolicyFacts
from tas.enforcing.waking import ANNOTATION
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConflictError, KubernetesError
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


class Scheduled:
    """An API server whose scheduler places a pod on the next of `places` each time that it is created."""

    def __init__(self, *places: str, labels: Mapping[str, str]) -> None:
        self.evictions = 0
        self.conflicts = 1
        self._places = list(places)
        self._labels = {"node-1": dict(labels), "node-2": {}}
        self._pod: PodObject | None = None

    async def create(self, _resource: Resource[Any], body: Any, **_: Any) -> None:
        if self.evictions and self.conflicts:
            self.conflicts -= 1  # the evicted one still exists
            raise ConflictError("create pod app", code=409)
        place = self._places.pop(0) if len(self._places) > 1 else self._places[0]
        self._pod = PodObject(metadata=Metadata(name=body["metadata"]["name"]), spec=PodSpec(node_name=place))

    async def get(self, resource: Resource[Any], name: str, **_: Any) -> PodObject:
        if resource is NODES:
            return PodObject(metadata=Metadata(name=name, labels=self._labels[name]))
        if self._pod is None:
            raise KubernetesError("get pod app", code=404)
        return self._pod

    async def evict(self, _name: str, **_: Any) -> None:
        self.evictions += 1
        self._pod = None


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


def stage_of(cluster: Cluster | None, bus: Stored | None = None, *, within: float = 60.0) -> tuple[Stage, io.StringIO]:
    out = io.StringIO()
    stage = Stage(
        cast("KubernetesClient", cluster),
        cast("Bus", bus),
        nodes=[Node("node-3", "node-3")],
        namespace="demo",
        extender="",
        ready=ready,
        narration=Narration(Console(file=out, soft_wrap=True), within=within),
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


async def test_samples_of_a_long_demo_count_to_its_end() -> None:
    """Each is published once, and a demo on a busy cluster may take longer than the default of staleAfter."""

    class Noting(Cluster):
        created: Any = None

        async def create(self, *arguments: Any, **_: Any) -> None:
            self.created = arguments[1]

    cluster = Noting(lambda _: None)
    stage, _ = stage_of(cluster)
    await stage.policy("policy", {"dontschedule": {"rules": [{"metricname": "m"}]}})
    assert cluster.created["spec"] == {
        "staleAfter": "1h",
        "strategies": {"dontschedule": {"rules": [{"metricname": "m", "source": "demo"}]}},
    }


AVOIDS = {"policy": "violating"}


@pytest.mark.parametrize(
    ("places", "labels", "evictions"),
    [
        (["node-2"], AVOIDS, 0),
        (["node-1", "node-2"], AVOIDS, 1),
        (["node-1", "node-1", "node-2"], AVOIDS, 2),
    ],
)
async def test_a_pod_that_the_scheduler_places_before_it_knows_a_label_is_created_again(
    places: list[str], labels: Mapping[str, str], evictions: int
) -> None:
    """A kube-scheduler that was paused for a moment sees the new pod before the older label in 7 of 10 cases."""
    cluster = Scheduled(*places, labels=labels)
    stage, out = stage_of(cast("Cluster", cluster))
    await stage.pod("app", policy="policy", avoids=AVOIDS)
    assert await stage.expect_placed("app", "node-2") == "node-2"
    assert cluster.evictions == evictions
    assert out.getvalue().count("before it knew of policy=violating there: app is evicted") == evictions


@pytest.mark.parametrize(
    ("labels", "evictions"), [({}, 0), ({"policy": "other"}, 0), (AVOIDS, MOST_EVICTIONS)], ids=str
)
async def test_a_pod_that_is_on_a_wrong_node_again_and_again_stays_there(
    labels: Mapping[str, str], evictions: int
) -> None:
    cluster = Scheduled("node-1", labels=labels)
    stage, _ = stage_of(cast("Cluster", cluster))
    await stage.pod("app", policy="policy", avoids=AVOIDS)
    for _ in range(3 * MOST_EVICTIONS):
        with suppress(KubernetesError):  # evicted, and not created yet
            await stage._pod("app")
    assert cluster.evictions == evictions
    assert (await stage._pod("app")).spec.node_name == "node-1"


async def test_a_pod_on_a_wrong_node_is_a_failure() -> None:
    stage, out = stage_of(cast("Cluster", Scheduled("node-1", labels={})), within=0.01)
    await stage.pod("app", policy="policy", avoids=AVOIDS)
    with pytest.raises(StepFailedError, match="app is on node-1"):
        await stage.expect_placed("app", "node-2")
    assert "FAILED    app is on node-1" in out.getvalue()
