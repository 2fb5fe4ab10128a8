"""The worker `labels` with any API server: the labels that it sets, removes, and must not remove.

Ids are those of docs/background/facts.md: S and G of behaviour, D of the original's defects.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bus.buckets import NODES, VERDICTS
from bus.kinds import NODE_SAMPLES, NODE_VERDICTS
from tas.enforcing.waking import ANNOTATION
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tas.verdict.verdict import DesiredKind, DesiredLabel, LabelVerdict, PolicyVerdict, StrategyVerdict
from tests.integration.servers import Server, eventually
from tests.kubernetes.label_fixtures import Running, labels_running
from tests.kubernetes.world import HOSTNAME, STALE_SECONDS, World, deschedule, labeling, rule
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import InvalidError, RejectedError
from workers.kubernetes.resources import LABELLED_NODES
from workers.reconcile.node_patches import send_patch

VIOLATING = "violating"
PREFIX = "telemetry.aware.scheduling."


def has(world: World, node: str, label: str, value: str | None) -> Callable[[], Awaitable[bool]]:
    return partial(world.has, node, label, value)


async def received(world: World, labels: Running) -> None:
    """Waits until the worker has received all earlier changes of the bus and of nodes. Labels a new node."""
    key = PolicyKey("nowhere", world.name("settled"))
    node = await world.node(f"settled-{time.monotonic_ns()}")
    metadata = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
    await world.claim(key)
    await world.verdict(node, metadata["uid"], {key: desired_by(key.name, DesiredLabel(DesiredKind.SET, VIOLATING))})
    await labels.caught_up()
    await eventually(has(world, node, key.name, VIOLATING))  # so the watch has delivered all earlier changes of nodes


async def settled(world: World, labels: Running) -> None:
    """Waits until the worker has handled every earlier change of the bus and of nodes, and has counted its patches."""
    await received(world, labels)
    await labels.idle()


async def stays(labels: Running, metric: str) -> None:
    """Asserts that a count does not change for longer than the time between the first wakes."""
    before, began = labels.count(metric), time.monotonic()
    await eventually(lambda: time.monotonic() - began > 2.5, every=0.1)
    assert labels.count(metric) == before


def desired_by(label: str, desired: DesiredLabel, *, uid: str = "u") -> PolicyVerdict:
    """A verdict with one label, of no real rule."""
    verdict = StrategyVerdict(
        state=State.UNKNOWN, changed=0.0, labels={label: LabelVerdict(state=State.UNKNOWN, desired=desired)}
    )
    strategy = StrategyType.LABELING if "/" in label else StrategyType.DESCHEDULE
    return PolicyVerdict(uid=uid, generation=1, strategies={strategy: verdict})


REJECTS = {"dontschedule": {"rules": [rule()]}}


def rejects(yes: bool) -> PolicyVerdict:
    """A verdict by which the policy rejects the node, or passes it."""
    verdict = StrategyVerdict(state=State.VIOLATED if yes else State.MET, changed=0.0, rejects=yes)
    return PolicyVerdict(uid="u", generation=1, strategies={StrategyType.DONTSCHEDULE: verdict})


class LabelScenarios:
    """For subclasses with the fixtures `kubeconfig`, `server`, `bus`, `client`, `world` and `labels`."""

    # Set, absent, hold

    @pytest.mark.real_api
    async def test_a_label_is_set_when_its_rule_is_violated_and_removed_when_a_fresh_sample_meets_it(
        self, world: World, labels: Running
    ) -> None:
        node, name = await world.node(), world.name()
        await world.policy(await world.namespace(), name, deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))
        found = await world.admin.get(f"/api/v1/nodes/{node}")
        managers = [
            each["manager"]
            for each in found["metadata"]["managedFields"]
            if f"f:{name}" in each["fieldsV1"].get("f:metadata", {}).get("f:labels", {})
        ]
        assert managers == ["tas-on-nats"]
        await world.sample(node, health=0)
        await world.evaluate(node)
        await eventually(has(world, node, name, None))
        await labels.idle()
        assert labels.count("tas_label_changes_total", change="set") == 1
        assert labels.count("tas_label_changes_total", change="removed") == 1

    async def test_an_unknown_metric_keeps_its_label(self, world: World, labels: Running) -> None:
        node, name = await world.node(), world.name()
        await world.policy(await world.namespace(), name, deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))
        await world.sample(node, health=0, age=STALE_SECONDS + 1)
        await world.evaluate(node)
        await settled(world, labels)
        await world.remove(NODES, NODE_SAMPLES.key(node))
        await world.evaluate(node)
        await settled(world, labels)
        assert (await world.labels(node))[name] == VIOLATING

    @pytest.mark.parametrize("sample", [{"health": 1}, {"other": 0}, None], ids=["violates", "lacks", "gone"])
    async def test_a_removal_that_current_records_do_not_confirm_is_not_made(
        self, world: World, labels: Running, sample: dict[str, int] | None
    ) -> None:
        node, name = await world.node(), world.name()
        key = await world.policy(await world.namespace(), name, deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))
        if sample is None:
            await world.remove(NODES, NODE_SAMPLES.key(node))
        else:
            await world.sample(node, **sample)
        # An earlier verdict of this policy desires the label to be absent.
        metadata = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
        stored = await world.admin.get(f"{world.admin.policies(key.namespace)}/{name}")
        desired = desired_by(name, DesiredLabel(DesiredKind.ABSENT), uid=stored["metadata"]["uid"])
        await world.verdict(node, metadata["uid"], {key: desired})
        await eventually(lambda: labels.count("tas_label_removals_unconfirmed_total") > 0)
        await settled(world, labels)
        assert (await world.labels(node))[name] == VIOLATING
        await world.sample(node, health=0)
        await eventually(has(world, node, name, None))

    async def test_the_record_of_another_policy_of_the_name_confirms_no_removal(
        self, world: World, labels: Running
    ) -> None:
        node, name = await world.node(), world.name()
        key = await world.policy(await world.namespace(), name, deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))
        await world.sample(node, health=0)
        metadata = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
        await world.verdict(
            node, metadata["uid"], {key: desired_by(name, DesiredLabel(DesiredKind.ABSENT), uid="an earlier one")}
        )
        await settled(world, labels)
        assert (await world.labels(node))[name] == VIOLATING
        await world.evaluate(node)
        await eventually(has(world, node, name, None))

    @pytest.mark.real_api
    async def test_facts_S5_one_patch_sets_the_label_of_one_policy_and_removes_that_of_another(
        self, world: World, labels: Running
    ) -> None:
        node, namespace = await world.node(), await world.namespace()
        one, other = world.name("one"), world.name("other")
        await world.policy(namespace, one, deschedule(rule("first")))
        await world.policy(namespace, other, deschedule(rule("second")))
        await world.sample(node, first=0, second=1)
        await world.evaluate(node)
        await eventually(has(world, node, other, VIOLATING))
        await labels.idle()
        before = labels.count("tas_label_patches_total", result="patched")
        await world.sample(node, first=1, second=0)
        await world.evaluate(node)
        await eventually(has(world, node, other, None))
        assert (await world.labels(node))[one] == VIOLATING
        await settled(world, labels)
        assert labels.count("tas_label_patches_total", result="patched") == before + 2  # with that of `settled`

    async def test_facts_G3_a_changed_winner_changes_the_value_and_a_recovery_removes_it(
        self, world: World, labels: Running
    ) -> None:
        node, name = await world.node(), world.name()
        rules = [rule("m", 100, "GreaterThan", "card=card0"), rule("c", 100, "GreaterThan", "card=card1")]
        await world.policy(await world.namespace(), name, labeling(*rules))
        label = f"{PREFIX}{name}/card"
        for m, c, value in ((2000, 200, "card0"), (200, 2000, "card1"), (1, 1, None)):
            await world.sample(node, m=m, c=c)
            await world.evaluate(node)
            await eventually(has(world, node, label, value))

    # Labels of others

    async def test_facts_S1_a_users_value_on_a_policys_key_stays_while_the_rule_is_met(
        self, world: World, labels: Running
    ) -> None:
        name = world.name()
        node = await world.node("node", **{name: ""})
        await world.policy(await world.namespace(), name, deschedule())
        await world.sample(node, health=0)
        await world.evaluate(node)
        await settled(world, labels)
        assert (await world.labels(node))[name] == ""

    async def test_facts_S4_a_users_value_on_a_policys_key_stays_and_is_reported(
        self, world: World, labels: Running
    ) -> None:
        name = world.name()
        node, other = await world.node("node", **{name: "ssd"}), await world.node("other", **{name: "null"})
        key = await world.policy(await world.namespace(), name, deschedule())
        await world.sample(node, health=1)
        await world.sample(other, health=1)
        with capture_logs() as logs:
            await world.evaluate(node, other)
            await eventually(has(world, other, name, VIOLATING))
            await settled(world, labels)
        assert labels.count("tas_label_values_foreign") == 1
        (line,) = (line for line in logs if line["event"] == "label_value_foreign")
        assert (line["node"], line["label"], line["value"]) == (node, name, "ssd")
        await world.delete_policy(key)
        await world.evaluate(node, other)
        await eventually(has(world, other, name, None))
        await settled(world, labels)
        assert (await world.labels(node))[name] == "ssd"
        assert labels.count("tas_label_values_foreign") == 0

    async def test_facts_S4_a_users_value_is_overwritten_with_a_warning_only_if_a_setting_names_the_key(
        self, world: World, kubeconfig: Path, server: Server
    ) -> None:
        name, other = world.name(), world.name("other")
        node = await world.node("node", **{name: "ssd", other: "hdd"})
        namespace = await world.namespace()
        for policy in (name, other):
            await world.policy(namespace, policy, deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        async with labels_running(kubeconfig, server.url, overwrite=(name,)) as worker:
            await eventually(has(world, node, name, VIOLATING))

            async def has_event() -> bool:
                return bool(await world.events(node))

            await eventually(has_event)
            (event,) = await world.events(node)
            assert (event["type"], event["reason"]) == ("Warning", "LabelOverwritten")
            assert f"{name}=ssd" in event["message"]
            await worker.idle()
            assert worker.count("tas_label_changes_total", change="overwritten") == 1
            assert worker.count("tas_label_values_foreign") == 1
        assert (await world.labels(node))[other] == "hdd"

    @pytest.mark.real_api
    async def test_a_label_of_ours_that_a_user_removes_or_changes_is_restored(
        self, world: World, labels: Running
    ) -> None:
        node, name = await world.node(), world.name()
        rules = [rule("health", 1, "Equals", "card=card0")]
        await world.policy(await world.namespace(), name, deschedule() | labeling(*rules))
        await world.sample(node, health=1)
        await world.evaluate(node)
        prefixed = f"{PREFIX}{name}/card"
        await eventually(has(world, node, prefixed, "card0"))
        for label, ours, changes in ((name, VIOLATING, (None, "")), (prefixed, "card0", (None, "theirs"))):
            for theirs in changes:
                await world.admin.label_node(node, {label: theirs})
                await eventually(has(world, node, label, ours))

    async def test_a_foreign_label_without_a_policy_stays_and_is_logged(self, world: World, labels: Running) -> None:
        name = world.name("users")
        node = await world.node("node", **{name: VIOLATING})
        await settled(world, labels)
        assert (
            labels.count("tas_labels_foreign") == 0
        )  # without a verdict it is unknown which labels belong to policies
        await world.evaluate(node)
        await settled(world, labels)
        assert (await world.labels(node))[name] == VIOLATING
        assert labels.count("tas_labels_foreign") == 1

    async def test_a_node_with_200_labels_keeps_them(self, world: World, labels: Running) -> None:
        theirs = {f"example.com/label-{number}": f"value-{number}" for number in range(200)}
        name = world.name()
        node = await world.node("node", **theirs)
        await world.policy(await world.namespace(), name, deschedule())
        for health, value in ((1, VIOLATING), (0, None)):
            await world.sample(node, health=health)
            await world.evaluate(node)
            await eventually(has(world, node, name, value))
        assert theirs.items() <= (await world.labels(node)).items()

    @pytest.mark.real_api
    async def test_facts_D46_a_label_that_the_api_server_refuses_is_skipped_and_the_others_are_set(
        self, world: World, client: KubernetesClient
    ) -> None:
        node = await world.node("node", **{"example.com/old": "1"})
        bad = {"example.com/bad": "-1", "example.com/worse": "with space", "a/b/c": "1"}
        good = {f"example.com/good-{number}": "1" for number in range(5)} | {"example.com/old": None}
        metadata = (await client.get(LABELLED_NODES, node)).metadata
        wanted = bad | good
        refused: dict[str, InvalidError | RejectedError] = {}
        patches = 0
        while wanted:
            # With `inf` the reads are never too old, however slow the requests are.
            patched = await send_patch(client, metadata, wanted, read_at=inf)
            patches += patched.node is not metadata
            metadata = patched.node
            refused |= patched.refused
            wanted = {label: wanted[label] for label in patched.left}
            stored = await world.labels(node)
            assert metadata.labels == stored, "nothing is sent for a later version of the node"
        assert patches > 1
        assert refused.keys() == bad.keys()
        assert all(isinstance(error, InvalidError) for error in refused.values())
        assert {label: stored.get(label) for label in good} == good
        assert not bad.keys() & stored.keys()

    async def test_labels_that_are_not_those_of_its_policy_are_dropped_from_a_verdict_and_the_others_are_set(
        self, world: World, labels: Running
    ) -> None:
        zone, control_plane, name = "topology.kubernetes.io/zone", "node-role.kubernetes.io/control-plane", world.name()
        node = await world.node("node", **{zone: "a", "disktype": "ssd"})
        before = await world.labels(node)
        metadata = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
        forged = {
            HOSTNAME: DesiredLabel(DesiredKind.SET, "another"),
            control_plane: DesiredLabel(DesiredKind.SET, ""),
            zone: DesiredLabel(DesiredKind.SET, "b"),
            "disktype": DesiredLabel(DesiredKind.ABSENT),
            name: DesiredLabel(DesiredKind.SET, VIOLATING),
        }
        strategies = {
            kind: StrategyVerdict(
                state=State.VIOLATED,
                changed=0.0,
                labels={label: LabelVerdict(state=State.VIOLATED, desired=each) for label, each in forged.items()},
            )
            for kind in (StrategyType.DESCHEDULE, StrategyType.LABELING)
        }
        key = PolicyKey("a", name)
        await world.claim(key)
        with capture_logs() as logs:
            await world.verdict(
                node, metadata["uid"], {key: PolicyVerdict(uid="u", generation=1, strategies=strategies)}
            )
            await eventually(has(world, node, name, VIOLATING))
            await settled(world, labels)
        assert await world.labels(node) == before | {name: VIOLATING}
        dropped = [line for line in logs if line["event"] == "verdict_label_dropped"]
        assert {(line["node"], line["policy"]) for line in dropped} == {(node, str(key))}
        assert dropped[0]["label"] in forged
        assert labels.count("tas_verdict_labels_dropped") == 5  # the name too: not a label of `labeling`
        await world.verdict(node, metadata["uid"], {})
        await eventually(lambda: labels.count("tas_verdict_labels_dropped") == 0)

    async def test_an_invalid_desired_label_is_reported_and_the_others_are_set(
        self, world: World, labels: Running
    ) -> None:
        node, name = await world.node(), world.name()
        metadata = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
        card = f"{PREFIX}bad/card"
        policies = {
            PolicyKey("a", "bad"): desired_by(card, DesiredLabel(DesiredKind.SET, "-1")),
            PolicyKey("a", name): desired_by(name, DesiredLabel(DesiredKind.SET, VIOLATING)),
        }
        for key in policies:
            await world.claim(key)
        await world.verdict(node, metadata["uid"], policies)
        await eventually(has(world, node, name, VIOLATING))
        assert labels.count("tas_verdict_labels_dropped") == 1
        policies[PolicyKey("a", "bad")] = desired_by(card, DesiredLabel(DesiredKind.SET, "1"))
        await world.verdict(node, metadata["uid"], policies)
        await eventually(has(world, node, card, "1"))

    # Created and deleted nodes

    @pytest.mark.real_api
    async def test_a_verdict_creates_no_node(self, world: World, labels: Running) -> None:
        node, name = await world.node(), world.name()
        metadata = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
        await world.admin.delete_node(node)
        await world.verdict(
            node, metadata["uid"], {PolicyKey("a", name): desired_by(name, DesiredLabel(DesiredKind.SET, VIOLATING))}
        )
        await settled(world, labels)
        found = await world.admin.get("/api/v1/nodes")
        assert node not in {each["metadata"]["name"] for each in found["items"]}

    @pytest.mark.real_api
    async def test_the_verdict_of_an_earlier_node_of_the_name_does_not_apply_to_a_later_node(
        self, world: World, labels: Running
    ) -> None:
        node, name = await world.node(), world.name()
        await world.policy(await world.namespace(), name, deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))
        await world.admin.delete_node(node)
        await world.node()
        await settled(world, labels)
        assert name not in await world.labels(node)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))

    # Deleted policies

    @pytest.mark.real_api
    async def test_facts_S6_the_labels_of_a_deleted_policy_are_removed_and_other_values_stay(
        self, world: World, labels: Running
    ) -> None:
        name = world.name()
        node, other = await world.node("node"), await world.node("other", **{name: "null"})
        rules = [rule("health", 1, "Equals", "card=card0")]
        key = await world.policy(await world.namespace(), name, deschedule() | labeling(*rules))
        await world.sample(node, health=1)
        await world.evaluate(node)
        await eventually(has(world, node, f"{PREFIX}{name}/card", "card0"))
        await world.delete_policy(key)
        await world.evaluate(node, other)
        await eventually(has(world, node, f"{PREFIX}{name}/card", None))
        await eventually(has(world, node, name, None))
        await settled(world, labels)
        assert (await world.labels(other))[name] == "null"
        assert labels.count("tas_label_changes_total", change="orphan_removed") == 2

    @pytest.mark.real_api
    async def test_while_policies_are_not_served_their_orphans_stay(self, world: World, labels: Running) -> None:
        node, name = await world.node(), world.name()
        namespace = await world.namespace()
        await world.policy(namespace, name, deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))
        failed = partial(labels.count, "tas_label_patches_total", result="failed")
        async with world.admin.without_policies():
            before = failed()
            await world.remove(VERDICTS, NODE_VERDICTS.key(node))
            await eventually(lambda: failed() >= before + 2)
            assert (await world.labels(node))[name] == VIOLATING
        # Now the list of policies is complete, and empty.
        await eventually(has(world, node, name, None))
        await world.policy(namespace, name, deschedule())
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))

    async def test_a_policy_that_only_the_bus_has_lost_keeps_its_labels(self, world: World, labels: Running) -> None:
        node, name = await world.node(), world.name()
        await world.policy(await world.namespace(), name, deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))
        await world.remove(VERDICTS, NODE_VERDICTS.key(node))
        await eventually(lambda: labels.count("tas_label_orphans_kept_total") > 0)
        await settled(world, labels)
        assert (await world.labels(node))[name] == VIOLATING

    async def test_facts_D36_the_labels_of_a_strategy_removed_by_an_edit_are_removed(
        self, world: World, labels: Running
    ) -> None:
        node, name, namespace = await world.node(), world.name(), await world.namespace()
        rules = [rule("health", 1, "Equals", "card=card0", "bus=bus0")]
        await world.policy(namespace, name, deschedule() | labeling(*rules))
        await world.sample(node, health=1)
        await world.evaluate(node)
        await eventually(has(world, node, f"{PREFIX}{name}/bus", "bus0"))
        await world.policy(namespace, name, labeling(rule("health", 1, "Equals", "card=card0")))
        await world.evaluate(node)
        await eventually(has(world, node, name, None))
        await eventually(has(world, node, f"{PREFIX}{name}/bus", None))
        assert (await world.labels(node))[f"{PREFIX}{name}/card"] == "card0"

    async def test_facts_S8_a_policy_of_the_same_name_in_another_namespace_keeps_the_label(
        self, world: World, labels: Running
    ) -> None:
        node, name = await world.node(), world.name()
        here = await world.policy(await world.namespace("a"), name, deschedule())
        there = await world.policy(await world.namespace("b"), name, deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))
        await labels.idle()
        before = labels.count("tas_label_patches_total", result="patched")
        await world.delete_policy(here)
        await world.evaluate(node)
        await settled(world, labels)
        assert labels.count("tas_label_patches_total", result="patched") == before + 1  # that of `settled`
        assert (await world.labels(node))[name] == VIOLATING
        await world.delete_policy(there)
        await world.evaluate(node)
        await eventually(has(world, node, name, None))

    @pytest.mark.real_api
    async def test_facts_D39_the_oldest_policy_in_force_of_a_name_owns_the_label(
        self, world: World, labels: Running
    ) -> None:
        node, name = await world.node(), world.name()
        first, second = await world.namespace("b"), await world.namespace("a")
        here = await world.policy(first, name, deschedule(rule("first")))
        stored = await world.admin.get(f"{world.admin.policies(first)}/{name}")
        await world.second_after(stored["metadata"]["creationTimestamp"])
        await world.policy(second, name, deschedule(rule("second")))

        async def sampled(value: str | None, **metrics: int) -> None:
            await world.sample(node, **metrics)
            await world.evaluate(node)
            await eventually(has(world, node, name, value))

        await sampled(VIOLATING, first=1, second=0)
        await sampled(None, first=0, second=1)
        await sampled(VIOLATING, first=1, second=0)
        await world.policy(first, name, deschedule(rule("first")), suspend=True)
        await sampled(None, first=1, second=0)  # the other policy owns the label, and its rule is met
        await sampled(VIOLATING, first=0, second=1)
        await world.policy(second, name, deschedule(rule("second")), suspend=True)
        await world.sample(node, first=0, second=0)
        await world.evaluate(node)
        await settled(world, labels)
        assert (await world.labels(node))[name] == VIOLATING  # nobody owns the label
        await world.policy(second, name, deschedule(rule("second")))
        await sampled(None, first=1, second=0)
        await world.delete_policy(here)
        await world.policy(first, name, deschedule(rule("first")))  # created anew: the youngest
        await world.evaluate(node)
        await settled(world, labels)
        assert name not in await world.labels(node)
        await sampled(VIOLATING, first=0, second=1)

    async def test_a_change_of_owner_keeps_the_label_until_a_fresh_sample_meets_the_rules_of_the_new_owner(
        self, world: World, labels: Running
    ) -> None:
        node, name = await world.node(), world.name()
        here = await world.policy(await world.namespace("a"), name, deschedule(rule("first")))
        await world.policy(await world.namespace("b"), name, deschedule(rule("second")))
        await world.sample(node, first=1)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))
        await world.delete_policy(here)
        await settled(world, labels)  # the verdict is still that of the former owner
        await world.sample(node, first=0)
        await world.evaluate(node)
        await settled(world, labels)
        assert (await world.labels(node))[name] == VIOLATING
        await world.sample(node, second=0)
        await world.evaluate(node)
        await eventually(has(world, node, name, None))

    async def test_facts_D47_orphans_of_a_crash_and_of_the_original_are_found_at_start(
        self, world: World, kubeconfig: Path, server: Server
    ) -> None:
        node, users = await world.node(), world.name("users")
        await world.policy(await world.namespace(), world.name("existing"), deschedule() | labeling(rule()))
        for manager, labels in (
            ("tas-on-nats", {world.name("crash"): VIOLATING}),
            ("extender", {world.name("original"): VIOLATING, f"{PREFIX}labeling-test": ""}),
            ("somebody", {users: VIOLATING, f"{PREFIX}{world.name('deleted')}/card": "1"}),
            ("extender", {world.name("existing"): VIOLATING, f"{PREFIX}{world.name('existing')}/old": "1"}),
        ):
            await world.admin.patch(f"/api/v1/nodes/{node}?fieldManager={manager}", {"metadata": {"labels": labels}})
        await world.evaluate(node)
        async with labels_running(kubeconfig, server.url) as worker:

            async def has_no_orphans() -> bool:
                return set(await world.labels(node)) == {HOSTNAME, users, world.name("existing")}

            await eventually(has_no_orphans)
            await worker.idle()
            assert worker.count("tas_label_changes_total", change="orphan_removed") == 5

    # Wakes

    @pytest.mark.real_api
    async def test_a_recovery_wakes_waiting_pods_until_no_pod_waits(self, world: World, labels: Running) -> None:
        node, name, namespace = await world.node(), world.name(), await world.namespace()
        await self.rejected(world, labels, node, namespace, name)
        assert await world.annotation(node, ANNOTATION) is None
        await world.sample(node, health=0)
        await world.evaluate(node)
        values: set[str | None] = set()

        async def is_repeated() -> bool:
            values.add(await world.annotation(node, ANNOTATION))
            return len(values) == 3

        await eventually(is_repeated)
        await world.pod(namespace, "waits", name, waits=False)
        await settled(world, labels)
        await stays(labels, "tas_node_wakes_total")

    async def test_a_node_that_is_gone_is_not_created_by_a_wake(self, world: World, labels: Running) -> None:
        gone, node, name, namespace = "gone.example.com", await world.node(), world.name(), await world.namespace()
        key = await self.rejected(world, labels, node, namespace, name)
        await world.verdict(gone, "uid", {key: rejects(True)})
        await world.verdict(gone, "uid", {key: rejects(False)})
        await eventually(lambda: labels.count("tas_node_wakes_failed_total") == 1)
        assert await world.annotation(node, ANNOTATION) is None
        await world.sample(node, health=0)
        await world.evaluate(node)
        await eventually(lambda: labels.count("tas_node_wakes_total") >= 1)
        assert await world.annotation(node, ANNOTATION) is not None
        nodes = await world.admin.get("/api/v1/nodes")
        assert gone not in {each["metadata"]["name"] for each in nodes["items"]}

    async def test_of_two_replicas_one_wakes(
        self, world: World, labels: Running, kubeconfig: Path, server: Server
    ) -> None:
        node, name, namespace = await world.node(), world.name(), await world.namespace()
        async with labels_running(kubeconfig, server.url) as second:
            await self.rejected(world, labels, node, namespace, name)
            await eventually(lambda: second.count("tas_pods_waiting") == 1)
            await world.sample(node, health=0)
            await world.evaluate(node)

            def wakes() -> list[float]:
                return sorted(each.count("tas_node_wakes_total") for each in (labels, second))

            await eventually(lambda: sum(wakes()) >= 3)
            assert wakes()[0] == 0

    async def rejected(self, world: World, labels: Running, node: str, namespace: str, name: str) -> PolicyKey:
        """Makes a pod wait for a policy that rejects the node, and returns the policy."""
        key = await world.policy(namespace, name, REJECTS)
        await world.sample(node, health=1)
        await world.evaluate(node)
        await world.pod(namespace, "waits", name)
        await settled(world, labels)
        assert labels.count("tas_pods_waiting") == 1
        return key

    # Several replicas

    async def test_two_replicas_set_each_label_once(
        self, world: World, labels: Running, kubeconfig: Path, server: Server
    ) -> None:
        name, nodes = world.name(), [await world.node(f"node-{number}") for number in range(5)]
        await world.policy(await world.namespace(), name, deschedule())
        async with labels_running(kubeconfig, server.url) as second:
            for health, value in ((1, VIOLATING), (0, None)):
                for node in nodes:
                    await world.sample(node, health=health)
                await world.evaluate(*nodes)
                for node in nodes:
                    await eventually(has(world, node, name, value))
            replicas = (labels, second)
            await eventually(lambda: all(each.count("tas_label_nodes_pending") == 0 for each in replicas))
            patched = [each.count("tas_label_patches_total", result="patched") for each in replicas]
            assert sum(patched) == 10
