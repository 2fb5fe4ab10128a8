"""The files of `deploy/examples/gpu` agree with each other, and with the rules about cards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tas.enforcing.pod import PodKey
from tas.gpu.assigning import assign
from tas.gpu.assignment import Assignment
from tas.gpu.claim import Claim, ContainerRequest, DevicePod, Options, read_claim
from tas.gpu.hold import EMPTY, Held, Hold, Phase, add
from tas.gpu.inventory import Inventory, read_inventory
from tas.gpu.names import EVICTION_LABEL, EVICTION_VALUE, I915, TILES, XE
from tas.gpu.policy_facts import PolicyFacts, read_policy_facts
from tas.gpu.refusal import Cause, Refusal
from tas.policy.policy import LABEL_PREFIX
from workers.process.manifests import read_yaml

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "gpu"
OPTIONS = Options()


def documents(name: str, kind: str) -> list[Mapping[str, Any]]:
    """The documents of a kind in a file of the example."""
    found = [each for each in read_yaml((EXAMPLE / name).read_bytes()) if isinstance(each, dict)]
    return [each for each in found if each["kind"] == kind]


def inventories() -> dict[str, Inventory]:
    return {
        node["metadata"]["name"]: read_inventory(node["metadata"]["labels"], node["status"]["allocatable"])
        for node in documents("nodes.yaml", "Node")
    }


def facts_of(*labels: str) -> PolicyFacts:
    """The facts of a node that the policy has labelled so."""
    (policy,) = documents("policy.yaml", "TASPolicy")
    prefix = f"{LABEL_PREFIX}{policy['metadata']['name']}/"
    return read_policy_facts({prefix + key: value for key, _, value in (each.partition("=") for each in labels)}, ())


def pod(uid: str) -> DevicePod:
    """A pod of the workload."""
    (deployment,) = documents("workload.yaml", "Deployment")
    containers = tuple(
        ContainerRequest(
            name=each["name"], limits={key: str(amount) for key, amount in each["resources"]["limits"].items()}
        )
        for each in deployment["spec"]["template"]["spec"]["containers"]
    )
    return DevicePod(key=PodKey("gpu-demo", uid), uid=uid, containers=containers)


def placed(hold: Hold, facts: PolicyFacts, uid: str) -> tuple[Hold, int | Refusal]:
    """The hold with one more pod of the workload on gpu-1, and its card; or the refusal."""
    claim = read_claim(pod(uid), OPTIONS)
    assert isinstance(claim, Claim)
    found = assign(hold, inventories()["gpu-1"], facts, claim, OPTIONS)
    if not isinstance(found, Assignment):
        return hold, found
    (share,) = found.shares()
    return add(hold, uid, Held(pod=PodKey("gpu-demo", uid), assignment=found, phase=Phase.BOUND)), share.card


def test_the_nodes_have_two_cards_with_two_tiles_each_and_no_problem() -> None:
    for inventory in inventories().values():
        assert inventory.problems == ()
        assert [card.number for card in inventory.cards] == [0, 1]
        assert {card.capacity[TILES] for card in inventory.cards} == {2}
        assert [node.cards for node in inventory.numa] == [(0,), (1,)]
    assert sorted(inventories()) == ["gpu-1", "gpu-2"]
    for node in documents("nodes.yaml", "Node"):
        assert node["status"]["capacity"] == node["status"]["allocatable"]


def test_each_label_of_the_policy_is_a_fact_about_a_card_of_the_nodes() -> None:
    (policy,) = documents("policy.yaml", "TASPolicy")
    labels = [label for rule in policy["spec"]["strategies"]["labeling"]["rules"] for label in rule["labels"]]
    facts = facts_of(*labels[:4], labels[4])
    assert facts.problems == ()
    assert sorted(facts.disabled) == sorted(facts.evicted) == [0, 1]
    assert [facts_of(label).preferred for label in labels[4:]] == [(0,), (1,)]


def test_a_card_has_room_for_two_pods_of_the_workload_and_policies_say_which() -> None:
    nothing, hot, cool = facts_of(), facts_of("gas-disable-card0=true"), facts_of("gas-prefer-gpu=card1")
    assert placed(EMPTY, nothing, "a")[1] == 0
    assert placed(EMPTY, hot, "a")[1] == placed(EMPTY, cool, "a")[1] == 1
    hold, cards = EMPTY, []
    for uid in "abcde":
        hold, card = placed(hold, nothing, uid)
        cards.append(card)
    *found, refused = cards
    assert found == [0, 0, 1, 1]
    assert isinstance(refused, Refusal)
    assert refused.cause is Cause.WILL_NOT_FIT


def test_the_scheduler_asks_for_pods_with_cards_and_binds_none_that_was_refused() -> None:
    (configuration,) = documents("scheduler.yaml", "KubeSchedulerConfiguration")
    (gpu,) = [each for each in configuration["extenders"] if "bindVerb" in each]
    assert {each["name"] for each in gpu["managedResources"]} == {I915, XE}
    assert (gpu["ignorable"], gpu["nodeCacheCapable"]) == (False, True)
    assert not any(each["ignoredByScheduler"] for each in gpu["managedResources"])


def test_the_descheduler_selects_the_label_of_the_product() -> None:
    (policy,) = documents("descheduler.yaml", "DeschedulerPolicy")
    plugins = {each["name"]: each["args"] for each in policy["profiles"][0]["pluginConfig"]}
    assert plugins["PodLifeTime"]["labelSelector"] == {"matchLabels": {EVICTION_LABEL: EVICTION_VALUE}}
    assert "nodeFit" not in plugins["DefaultEvictor"]
