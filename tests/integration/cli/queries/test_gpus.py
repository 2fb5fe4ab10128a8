"""GPU cards as `tas get gpus` and `tas explain` print them, from records on a real bus."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from bus.buckets import HOLDS, NODES
from bus.connection import Bus
from bus.kinds import NODE_HOLDS, NODE_INVENTORY
from bus.records.codec import encode
from bus.records.devices import NodeHold, NodeInventory
from cli.top.cards import Cards
from tests.integration.bus.limits import long_limits
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server, eventually
from tests.unit.tas.gpu.notation import Node
from workers.process.manifests import MAX_BYTES

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

PACKAGE = "gpu.intel.com/"
WORKLOAD = Path(__file__).parents[4] / "deploy" / "examples" / "gpu" / "workload.yaml"


@pytest.fixture
def tas(tas: Tas, server: Server) -> Tas:
    """A user whose TAS_BUS is the test's server."""
    tas.environment["TAS_BUS"] = server.url
    return tas


async def put_node(bus: Bus, name: str, described: str, *, hold_uid: str | None = "uid") -> None:
    """A node in the notation of `tests/unit/tas/gpu`. `hold_uid`: of the node of its hold; None: it has no hold."""
    node = Node(described)
    inventory = NodeInventory(uid="uid", inventory=node.inventory, facts=node.facts)
    await bus.put(NODES, NODE_INVENTORY.key(name), encode(inventory), revision=0, read_at=time.monotonic())
    if hold_uid is not None:
        hold = NodeHold(uid=hold_uid, pods=node.hold.pods)
        await bus.put(HOLDS, NODE_HOLDS.key(name), encode(hold), revision=0, read_at=time.monotonic())


async def put_gpu_nodes(bus: Bus) -> None:
    """Three nodes: one in use with a hot card, one whose hold is that of an earlier node, one without a hold."""
    used = "N(0,1) i20 mc2000 mem32 t4 links=x disable-card1@hot deschedule-pods-card1@bad"
    await put_node(bus, "gpu-1.example.com", f"{used} ; card0: i1 mc500 mem4 gt1 ; card1: mc1000!")
    await put_node(bus, "gpu-2", "N(0) i1 mc1000 mem16 prefer-gpu=card0", hold_uid="earlier")
    await put_node(bus, "gpu-3", "N(0) i1 mc1000 mem16", hold_uid=None)


async def test_get_gpus_shows_each_card_with_its_amounts_pods_and_policies(tas: Tas, bus: Bus) -> None:
    done = await tas("get", "gpus")
    assert (done.code, done.out.split()) == (0, ["NODE", "CARD", "RESOURCE", "IN", "USE", "FREE", "PODS", "STATE"])
    assert done.err.startswith("no GPU cards: no node offers gpu.intel.com resources")
    await put_gpu_nodes(bus)
    done = await tas("get", "gpus")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[1:9] == [
        "gpu-1.example.com card0 i915 1 of 10 █░░░░░░░░░ 9 default/used c gt1 -",
        "memory.max 3.725Gi of 14.9Gi ██░░░░░░░░ 11.18Gi",
        "millicores 500 of 1000 █████░░░░░ 500",
        "tiles 1 of 2 █████░░░░░ 1",
        "gpu-1.example.com card1 i915 0 of 10 ---------- 0 default/used c (reserved) emptied by bad",
        "memory.max 0 of 14.9Gi ---------- 0 disabled by hot",
        "millicores 1000 of 1000 ██████████ 0",
        "tiles 0 of 2 ---------- 0",
    ]
    assert "gpu-1.example.com: gpu.intel.com/xe-links = 'x': 'x' is no link such as 0.0-1.0" in lines
    for name in ("gpu-2", "gpu-3"):
        assert (
            f"{name}: nobody knows yet who has the cards of the node, so no pod gets one (tas run inventory)" in lines
        )
        assert any(line.startswith(f"{name} card0 i915 0 of 1 ---------- 0 -") for line in lines)


async def test_get_gpus_as_json_has_every_fact(tas: Tas, bus: Bus) -> None:
    await put_gpu_nodes(bus)
    one, two, three = (await tas("get", "gpus", "--json")).json
    assert [each["node"] for each in (one, two, three)] == ["gpu-1.example.com", "gpu-2", "gpu-3"]
    assert [each["hold_known"] for each in (one, two, three)] == [True, False, False]
    card0, card1 = one["cards"]
    assert card0["resources"][f"{PACKAGE}millicores"] == {"capacity": 1000, "used": 500, "free": 500}
    assert [(tile["tile"], tile["pods"]) for tile in card0["tiles"]] == [("gt0", []), ("gt1", ["default/used"])]
    assert (card1["disabled"], card1["evicted"]) == (["bad", "hot"], ["bad"])
    assert [problem["field"] for problem in one["problems"]] == [f"{PACKAGE}xe-links"]


async def test_pods_of_a_node_without_inventory_are_shown_and_an_empty_hold_is_not(tas: Tas, bus: Bus) -> None:
    for name, described in (("gone", "; card0: i1"), ("empty", "")):
        hold = NodeHold(uid="uid", pods=Node(described).hold.pods)
        await bus.put(HOLDS, NODE_HOLDS.key(name), encode(hold), revision=0, read_at=time.monotonic())
    (node,) = (await tas("get", "gpus", "--json")).json
    assert (node["node"], node["hold_known"]) == ("gone", True)
    assert [(each["card"], each["exists"]) for each in node["cards"]] == [("card0", False)]


async def test_a_hold_that_cannot_be_read_is_reported_and_hides_no_other_node(tas: Tas, bus: Bus) -> None:
    await put_gpu_nodes(bus)
    await put_node(bus, "gpu-4", "N(0) i1", hold_uid=None)
    await bus.put(HOLDS, NODE_HOLDS.key("gpu-4"), b'{"uid": "uid", "pods": 7}', revision=0, read_at=time.monotonic())
    done = await tas("get", "gpus", "--json")
    assert [each["hold_known"] for each in done.json] == [True, False, False, False]
    assert "left out: HOLDS/gpu-4: hold of a node: body" in done.err


async def test_explain_node_shows_its_cards_and_what_of_its_labels_cannot_be_read(tas: Tas, bus: Bus) -> None:
    await put_gpu_nodes(bus)
    done = await tas("explain", "node", "gpu-1.example.com")
    assert done.code == 0
    assert "emptied by bad" in done.out
    assert "gpu-1.example.com: gpu.intel.com/xe-links = 'x': 'x' is no link such as 0.0-1.0" in done.out
    assert "gpu-2" not in done.out
    document = (await tas("explain", "node", "gpu-2", "--json")).json
    assert document["cards"]["cards"][0]["preferred"] is True
    done = await tas("explain", "node", "gpu-9", "--json")
    assert (done.code, done.json["cards"]) == (1, None)


async def test_explain_pod_says_for_each_node_which_card_lacks_what(tas: Tas, bus: Bus, tmp_path: Path) -> None:
    await put_gpu_nodes(bus)
    await put_node(bus, "gpu-4", "N(0,1) i20 mc2000 mem32")
    done = await tas("explain", "pod", "gpu-demo/new", "--manifest", str(WORKLOAD))
    assert done.code == 0
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[:3] == ["NODE GPU CARDS TILES WHY NOT", "gpu-1.example.com card0 - -", "gpu-4 card0 - -"]
    assert "gpu-2 - - nobody knows yet who has the cards of the node" in lines
    wishes = {"name": "n", "annotations": {"gas-allow": "card1"}}
    pod = {"metadata": wishes, "spec": {"containers": [{"name": "c", "resources": {"limits": LIMITS}}]}}
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod))
    done = await tas("explain", "pod", "new", "--manifest", str(file))
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    at = lines.index("gpu-1.example.com - - will not fit: no card has room for container c")
    assert lines[at + 1] == "card0: gpu.intel.com/millicores: needs 600, 500 free"
    assert lines[at + 2] == "card1: disabled by bad, hot"
    assert (
        lines[0]
        == "the annotation gas-allow does not count: --allowlist is off; give --allowlist on if tas run gpu has it"
    )
    assert "gpu-4 card0 - -" in lines
    found = (await tas("explain", "pod", "new", "--manifest", str(file), "--allowlist", "on", "--json")).json
    assert (found["now"], found["cards"]["ignored"]) == (None, [])
    by_node = {each["node"]: each for each in found["cards"]["nodes"]}
    assert by_node["gpu-1.example.com"]["refused"]["card0"] == "not in gas-allow"
    assert by_node["gpu-4"]["cards"] == "card1"


async def test_the_live_view_follows_the_cards(bus: Bus) -> None:
    cards = Cards(bus)
    task = asyncio.create_task(cards.run())
    try:
        assert cards.rows() == {}
        await put_node(bus, "gpu-1", "N(0) i10 ; card0: i1")
        await eventually(lambda: cards.rows() == {"gpu-1 card0": "i915 1/10 █░░░░░░░░░; pods: used"})
        entry = await NODE_HOLDS.get(bus, "gpu-1")
        await NODE_HOLDS.delete(bus, "gpu-1", revision=entry.revision, read_at=time.monotonic())
        unknown = "i915 0/10 ----------; nobody knows yet who has the cards of the node; pods: –"
        await eventually(lambda: cards.rows() == {"gpu-1 card0": unknown})
        await put_node(bus, "gpu-2", "N(0) i1")
        await eventually(lambda: "gpu-2 card0" in cards.rows())
        assert list(cards.rows("*-2")) == ["gpu-2 card0"]
        await bus.api(f"STREAM.DELETE.{HOLDS.stream}")
        await eventually(lambda: cards.rows()["gpu-2 card0"].startswith("i915 0/1 ----------; nobody knows yet"))
    finally:
        task.cancel()


LIMITS = {f"{PACKAGE}i915": 1, f"{PACKAGE}millicores": 600}


async def test_explain_pod_shows_the_cards_of_a_running_pod(tas: Tas, bus: Bus) -> None:
    await put_gpu_nodes(bus)
    done = await tas("explain", "pod", "default/used")
    assert done.code == 0
    assert " ".join(done.out.split()).endswith(
        "gpu-1.example.com has card0 card0:gt1 - gpu-1.example.com has card1 - -"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: Service\nspec: {ports: []}", "neither a pod nor a workload with a template of pods"),
        ("a: [", "--manifest: "),
        ("spec: {containers: 7}", "--manifest: Expected `array`, got `int` - at `$.spec.containers`"),
    ],
)
async def test_a_manifest_that_is_no_pod_is_refused(
    tas: Tas, bus: Bus, tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(text)
    done = await tas("explain", "pod", "new", "--manifest", str(file))
    assert done.code == 1
    assert problem in done.err


async def test_a_manifest_that_is_missing_or_too_large_is_refused(tas: Tas, bus: Bus, tmp_path: Path) -> None:
    done = await tas("explain", "pod", "new", "--manifest", str(tmp_path / "none.yaml"))
    assert (done.code, done.err) == (1, f"Error: --manifest: {tmp_path}/none.yaml: No such file or directory\n")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    done = await tas("explain", "pod", "new", "--manifest", str(large))
    assert done.code == 1
    assert done.err.startswith("Error: --manifest: ")
    assert str(MAX_BYTES) in done.err


async def test_a_claim_that_no_node_can_fulfil_is_told_once(tas: Tas, bus: Bus, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(f"spec: {{containers: [{{name: c, resources: {{limits: {{{PACKAGE}millicores: 5}}}}}}]}}")
    done = await tas("explain", "pod", "new", "--manifest", str(file))
    assert done.out.startswith("GPU cards: no node can ever fulfil what the pod asks: resources conflict: container c")
