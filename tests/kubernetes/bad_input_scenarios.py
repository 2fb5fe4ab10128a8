"""Bad input with any API server: its effect, and that it has no effect on other policies and nodes.

Ids are those of docs/background/facts.md: D of the original's defects, G, S and C of behaviour.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any

import pytest

from tas.policy.policy import PolicyKey
from tests.integration.servers import eventually
from tests.kubernetes.admin import AdminError
from tests.kubernetes.enforcement import PREFIX, VIOLATING, Enforced, Refusing
from tests.kubernetes.world import HOSTNAME, deschedule, labeling, rule

AT_ONCE = 25
"""Concurrent requests, where a test creates or deletes many policies."""

FALSE, TRUE = "False", "True"


def fields_of(status: Mapping[str, Any]) -> list[str]:
    """The fields of the problems that a status reports."""
    return [problem["field"] for problem in status["problems"]]


class BadInputScenarios:
    """For subclasses with the fixtures `enforced` and `refusing`."""

    refuses_one_label = False
    """Whether `refusing` refuses only patches with the label, not all patches of the node."""

    # The resource

    async def test_facts_D34_names_of_recording_rules_and_quantities_as_targets_work(self, enforced: Enforced) -> None:
        async with enforced.undisturbed():
            node, name = await enforced.node(), enforced.name()
            limit = rule("node:load:rate1m", "1500m", "GreaterThan")  # type: ignore[arg-type]
            await enforced.policy(await enforced.namespace(), name, deschedule(limit))
            for load, value in (("1501m", VIOLATING), ("1.5", None)):
                await enforced.sample(node, **{"node:load:rate1m": load})  # type: ignore[arg-type]
                await enforced.wait_for_labels(node, {name: value})

    @pytest.mark.parametrize("strategies", [{}, {"deschedule": {"rules": []}}], ids=["no-strategy", "no-rules"])
    async def test_facts_D34_a_policy_without_effect_is_reported_and_does_nothing(
        self, enforced: Enforced, strategies: dict[str, Any]
    ) -> None:
        async with enforced.undisturbed():
            node, name = await enforced.node(), enforced.name()
            key = await enforced.policy(await enforced.namespace(), name, strategies)
            await enforced.sample(node, health=1)
            await enforced.wait_for_status(key, Ready=(FALSE, "NothingToDo"))
            await self._wait_for_evaluation(enforced, node)
            assert await enforced.values(node, name) == [None]

    @pytest.mark.parametrize("target", ["much", "1.5x", "", True, 1.5, [1]], ids=repr)
    async def test_facts_D34_a_target_that_is_no_quantity_is_reported_and_removes_nothing(
        self, enforced: Enforced, target: Any
    ) -> None:
        async with enforced.undisturbed():
            node, name, namespace = await enforced.node(), enforced.name(), await enforced.namespace()
            key = await enforced.policy(namespace, name, deschedule())
            await enforced.sample(node, health=1)
            await enforced.wait_for_labels(node, {name: VIOLATING})
            refused: AdminError | None = None  # by the CRD's schema; the sandbox has none
            try:
                await enforced.policy(namespace, name, deschedule(rule(target=target)))
            except AdminError as error:
                refused = error
            if refused is not None:
                assert (refused.status, "target" in str(refused)) == (422, True)
            else:
                status = await enforced.wait_for_status(key, Ready=(FALSE, "PartlyUnreadable"))
                assert fields_of(status) == ["spec.strategies.deschedule.rules[0].target"]
                await enforced.sample(node, health=0)
                await self._wait_for_evaluation(enforced, node, health=0)
            assert await enforced.values(node, name) == [None, VIOLATING]
            await enforced.policy(namespace, name, deschedule(rule(target=2)))
            await enforced.sample(node, health=0)
            await enforced.wait_for_labels(node, {name: None})

    async def test_facts_D35_the_status_shows_violating_and_other_nodes(self, enforced: Enforced) -> None:
        async with enforced.undisturbed():
            node, name = await enforced.node(), enforced.name()
            key = await enforced.policy(await enforced.namespace(), name, deschedule())
            await enforced.sample(node, health=1)
            status = await enforced.wait_for_status(key, Ready=(TRUE, "InForce"), Violating=(TRUE, "NodesViolate"))
            assert (status["violating"], status["violatingNodes"]) == (1, [node])
            await enforced.sample(node, health=0)
            status = await enforced.wait_for_status(key, Violating=(FALSE, "SomeUnknown"), MetricsSeen=(TRUE, "Fresh"))
            assert (status["violating"], status["violatingNodes"], fields_of(status)) == (0, [], [])

    @pytest.mark.real_api
    @pytest.mark.usefixtures("quick_refusals")
    async def test_the_reason_of_a_refused_label_is_in_the_status_until_the_label_is_set(
        self, refusing: Refusing, enforced: Enforced
    ) -> None:
        async with enforced.undisturbed():
            bad, good, name = await enforced.node("bad"), await enforced.node("good"), enforced.name()
            key = await enforced.policy(await enforced.namespace(), name, deschedule())
            other = await enforced.policy(key.namespace, enforced.name("other"), deschedule())
            async with refusing(bad, name) as reason:
                for node in (bad, good):
                    await enforced.sample(node, health=1)
                await enforced.wait_for_labels(good, {name: VIOLATING, other.name: VIOLATING})
                status = await enforced.wait_for_status(key, Ready=(FALSE, "LabelsNotWritten"))
                (problem,) = status["problems"]
                assert (problem["field"], problem["value"]) == ("spec.strategies.deschedule", f"{name}={VIOLATING}")
                assert f"the API server refuses the label on 1 node ({bad}): " in problem["reason"]
                assert reason in problem["reason"]
                assert problem["reason"] in status["message"]
                if self.refuses_one_label:
                    await enforced.wait_for_labels(bad, {other.name: VIOLATING})
                    await enforced.wait_for_status(other, Ready=(TRUE, "InForce"))
                stored = await enforced.refusals(name)
                for restarted in (False, True):
                    if restarted:
                        await enforced.stop()
                        await enforced.start()
                    await self._wait_for_retries(enforced)
                    assert await enforced.refusals(name) == stored  # a refusal again is no message
                await enforced.wait_for_status(key, Ready=(FALSE, "LabelsNotWritten"))
            await enforced.wait_for_labels(bad, {name: VIOLATING, other.name: VIOLATING})
            for each in (key, other):
                status = await enforced.wait_for_status(each, Ready=(TRUE, "InForce"))
                assert fields_of(status) == []
            assert await enforced.values(bad, name) == [None, VIOLATING]

    async def _wait_for_retries(self, enforced: Enforced) -> None:
        """Waits until a refused label was tried again and refused again."""
        before = enforced.count("tas_labels_refused_total")
        await eventually(lambda: enforced.count("tas_labels_refused_total") > before + 1)

    # Created, changed and deleted policies

    async def test_facts_D36_C5_a_strategy_replaced_by_an_edit_is_removed_with_its_labels(
        self, enforced: Enforced
    ) -> None:
        async with enforced.undisturbed():
            node, name, namespace = await enforced.node(), enforced.name(), await enforced.namespace()
            await enforced.policy(namespace, name, deschedule())
            await enforced.sample(node, health=1)
            await enforced.wait_for_labels(node, {name: VIOLATING})
            key = await enforced.policy(namespace, name, labeling(rule("health", 1, "Equals", "card=card0")))
            await enforced.wait_for_labels(node, {name: None, f"{PREFIX}{name}/card": "card0"})
            await enforced.delete_policy(key)
            await enforced.wait_for_labels(node, {f"{PREFIX}{name}/card": None})
            assert await enforced.values(node, name) == [None, VIOLATING, None]

    @pytest.mark.real_api
    async def test_facts_D37_C4_beside_an_unknown_strategy_the_others_work_until_the_policy_is_deleted(
        self, enforced: Enforced
    ) -> None:
        async with enforced.undisturbed():
            node, name = await enforced.node(), enforced.name()
            strategies = {"strategy_unavailable": {"rules": [rule()]}} | deschedule()
            strategies |= {"another": {"rules": []}} | labeling(rule("health", 1, "Equals", "card=card0"))
            key = await enforced.policy(await enforced.namespace(), name, strategies)
            await enforced.sample(node, health=1)
            labels = {name: VIOLATING, f"{PREFIX}{name}/card": "card0"}
            await enforced.wait_for_labels(node, labels)
            status = await enforced.wait_for_status(key, Ready=(TRUE, "PartlyIgnored"))
            unknown = {"spec.strategies.strategy_unavailable", "spec.strategies.another"}
            assert set(fields_of(status)) == unknown
            await enforced.delete_policy(key)
            await enforced.wait_for_labels(node, dict.fromkeys(labels))
            assert await enforced.stored(key) is None

    async def test_facts_D38_a_missed_deletion_is_applied_after_the_next_list(self, enforced: Enforced) -> None:
        async with enforced.undisturbed():
            node, name, namespace = await enforced.node(), enforced.name(), await enforced.namespace()
            key = await enforced.policy(namespace, name, deschedule())
            await enforced.sample(node, health=1)
            await enforced.wait_for_labels(node, {name: VIOLATING})
            await enforced.stop()
            await enforced.delete_policy(key)
            await enforced.start()
            await enforced.wait_for_labels(node, {name: None})
            assert await enforced.stored(key) is None

    async def test_facts_D39_S8_policies_of_one_name_in_two_namespaces_are_separate(self, enforced: Enforced) -> None:
        async with enforced.undisturbed():
            node, name = await enforced.node(), enforced.name()
            label = f"{PREFIX}{name}/card"
            here, there = [
                await enforced.policy(
                    await enforced.namespace(namespace),
                    name,
                    deschedule(rule(namespace)) | labeling(rule(namespace, 1, "Equals", f"card={namespace}")),
                )
                for namespace in ("a", "b")
            ]
            await enforced.sample(node, a=1, b=1)
            await enforced.wait_for_labels(node, {name: VIOLATING, label: "a"})
            for a, values in ((0, (None, None)), (1, (VIOLATING, "a"))):  # only the older policy counts
                await enforced.sample(node, a=a, b=1)
                await enforced.wait_for_labels(node, dict(zip((name, label), values, strict=True)))
            await enforced.wait_for_status(here, Ready=(TRUE, "InForce"), Violating=(TRUE, "NodesViolate"))
            status = await enforced.wait_for_status(
                there, Ready=(TRUE, "PartlyIgnored"), Violating=(TRUE, "NodesViolate")
            )
            assert [str(here) in problem["reason"] for problem in status["problems"]] == [True, True]
            await enforced.delete_policy(here)
            await enforced.wait_for_labels(node, {name: VIOLATING, label: "b"})
            await enforced.wait_for_status(there, Ready=(TRUE, "InForce"))
            await enforced.sample(node, a=1, b=0)
            await enforced.wait_for_labels(node, {name: None, label: None})
            assert await enforced.values(node, name) == [None, VIOLATING, None, VIOLATING, None]
            assert await enforced.values(node, label) == [None, "a", None, "a", "b", None]

    async def test_facts_D40_an_edit_of_any_field_takes_effect(self, enforced: Enforced) -> None:
        async with enforced.undisturbed():
            node, name, namespace = await enforced.node(), enforced.name(), await enforced.namespace()
            label = f"{PREFIX}{name}/"
            rules = [rule("first"), rule("second")]

            def pairs(*labels: str, **fields: Any) -> dict[str, Any]:
                return deschedule(*rules, **fields) | labeling(rule("first", 1, "Equals", *labels))

            await enforced.policy(namespace, name, pairs("x=1", "y=1"))
            await enforced.sample(node, first=1, second=0)
            await enforced.wait_for_labels(node, {name: VIOLATING, f"{label}x": "1", f"{label}y": "1"})
            await enforced.policy(namespace, name, pairs("x=1", logicalOperator="allOf"))
            await enforced.wait_for_labels(node, {name: None, f"{label}x": "1", f"{label}y": None})
            await enforced.policy(namespace, name, pairs("x=1", "y=2", "z=1", logicalOperator="anyOf"))
            await enforced.wait_for_labels(node, {name: VIOLATING, f"{label}y": "2", f"{label}z": "1"})
            rules.clear()
            await enforced.policy(namespace, name, {"deschedule": {"rules": []}} | labeling(rule("first")))
            removed = dict.fromkeys((f"{label}x", f"{label}y", f"{label}z"))
            await enforced.wait_for_labels(node, {name: None} | removed)
            assert await enforced.values(node, f"{label}x") == [None, "1", None]

    async def test_facts_D41_S9_an_edit_without_effect_changes_no_label(self, enforced: Enforced) -> None:
        async with enforced.undisturbed():
            node, name, namespace = await enforced.node(), enforced.name(), await enforced.namespace()
            strategies = deschedule() | labeling(rule("health", 1, "Equals", "card=card0"))
            await enforced.policy(namespace, name, strategies)
            await enforced.sample(node, health=1)
            labels = {name: VIOLATING, f"{PREFIX}{name}/card": "card0"}
            await enforced.wait_for_labels(node, labels)
            await enforced.policy(namespace, name, strategies)
            await enforced.admin.change_policy(namespace, name, {"metadata": {"annotations": {"note": "1"}}})
            reordered = dict(reversed(strategies.items()))
            await enforced.admin.change_policy(namespace, name, {"spec": {"strategies": reordered}})
            await enforced.stop()
            await enforced.start()  # all policies are listed again
            await enforced.policy(namespace, name, strategies, staleAfter="2m")
            await self._wait_for_evaluation(enforced, node)
            for label, value in labels.items():
                assert await enforced.values(node, label) == [None, value]

    @pytest.mark.timeout(1800)
    @pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.ci)])
    async def test_many_policies_at_once_set_and_remove_their_labels(self, enforced: Enforced, count: int) -> None:
        async with enforced.undisturbed():
            node, namespace = await enforced.node(), await enforced.namespace()
            keys = [PolicyKey(namespace, f"{enforced.name('many')}-{number}") for number in range(count)]
            await enforced.sample(node, health=1)
            slots = asyncio.Semaphore(AT_ONCE)

            async def create(key: PolicyKey) -> None:
                async with slots:
                    await enforced.admin.create_policy(key.namespace, key.name, strategies=deschedule())

            async def delete(key: PolicyKey) -> None:
                async with slots:
                    await enforced.delete_policy(key)

            async def labelled(expected: int) -> None:
                names = {key.name for key in keys}

                async def are_set() -> bool:
                    await enforced.sample(node, health=1)  # the first may be stale before the last policy is stored
                    return len(names & (await enforced.labels(node)).keys()) == expected

                await eventually(are_set, within=400, every=0.5)  # all workers share the processor with this test

            await asyncio.gather(*map(create, keys))
            await labelled(count)
            await asyncio.gather(*map(delete, keys))
            await labelled(0)

    # Invalid names and labels

    @pytest.mark.parametrize("length", [64, 226])
    async def test_facts_D45_a_policy_whose_name_is_no_label_key_sets_only_labels_under_the_prefix(
        self, enforced: Enforced, length: int
    ) -> None:
        async with enforced.undisturbed():
            node, name = await enforced.node(), enforced.name().ljust(length, "x")
            strategies = deschedule() | labeling(rule("health", 1, "Equals", "card=card0"))
            key = await enforced.policy(await enforced.namespace(), name, strategies)
            await enforced.sample(node, health=1)
            await enforced.wait_for_labels(node, {f"{PREFIX}{name}/card": "card0"})
            status = await enforced.wait_for_status(
                key, Ready=(TRUE, "PartlyIgnored"), Violating=(TRUE, "NodesViolate")
            )
            assert fields_of(status) == ["metadata.name"]
            assert set(await enforced.labels(node)) == {HOSTNAME, f"{PREFIX}{name}/card"}

    async def test_facts_D45_a_policy_whose_name_is_too_long_for_the_prefix_sets_no_label_and_is_reported(
        self, enforced: Enforced
    ) -> None:
        async with enforced.undisturbed():
            node, name = await enforced.node(), enforced.name().ljust(227, "x")
            strategies = deschedule() | labeling(rule("health", 1, "Equals", "card=card0"))
            key = await enforced.policy(await enforced.namespace(), name, strategies)
            await enforced.sample(node, health=1)
            status = await enforced.wait_for_status(
                key, Ready=(TRUE, "PartlyIgnored"), Violating=(TRUE, "NodesViolate")
            )
            assert set(fields_of(status)) == {"metadata.name"}
            after = await self._wait_for_evaluation(enforced, node)
            assert set(await enforced.labels(node)) == {HOSTNAME, after}

    async def test_facts_D50_G9_the_value_of_the_winning_rule_never_changes_to_the_other_value(
        self, enforced: Enforced
    ) -> None:
        async with enforced.undisturbed():
            node, name = await enforced.node(), enforced.name()
            rules = [
                rule("m1", 10, "GreaterThan", "foo=1", "bar=1"),
                rule("m2", 10, "GreaterThan", "bar=2"),
            ]
            await enforced.policy(await enforced.namespace(), name, labeling(*rules))
            foo, bar = f"{PREFIX}{name}/foo", f"{PREFIX}{name}/bar"
            for more in range(5):
                await enforced.sample(node, m1=50 + more, m2=100 + more)
                await enforced.wait_for_labels(node, {foo: "1", bar: "2"})
            assert await enforced.values(node, foo) == [None, "1"]
            assert await enforced.values(node, bar) == [None, "2"]

    @pytest.mark.parametrize(
        "label",
        [
            pytest.param("foo", id="facts_D51_G10-no-equals-sign"),
            pytest.param("=1", id="facts_D51-no-key"),
            pytest.param("a~b=1", id="facts_D54-tilde"),
            pytest.param("a/b=1", id="facts_D54-slash"),
            pytest.param("a=-1", id="facts_D54-value-with-dash"),
            pytest.param("a=b c", id="facts_D54-space"),
            pytest.param("good=2", id="facts_D54-key-twice"),
            pytest.param(f"{'a' * 64}=1", id="facts_D54-key-of-64"),
            pytest.param(f"a={'b' * 64}", id="facts_D54-value-of-64"),
        ],
    )
    async def test_facts_D51_D54_only_an_invalid_label_is_skipped_and_it_is_reported(
        self, enforced: Enforced, label: str
    ) -> None:
        async with enforced.undisturbed():
            node, name = await enforced.node(), enforced.name()
            rules = [
                rule("health", 1, "Equals", "good=1", label, "last=1"),
                rule("other", 1, "Equals", "other=1"),
            ]
            strategies = deschedule() | labeling(*rules)
            key = await enforced.policy(await enforced.namespace(), name, strategies)
            await enforced.sample(node, health=1, other=1)
            ours = {name: VIOLATING} | {f"{PREFIX}{name}/{each}": "1" for each in ("good", "last", "other")}
            await enforced.wait_for_labels(node, ours)
            assert await enforced.labels(node) == ours | {HOSTNAME: node}
            status = await enforced.wait_for_status(
                key, Ready=(TRUE, "PartlyIgnored"), Violating=(TRUE, "NodesViolate")
            )
            assert fields_of(status) == ["spec.strategies.labeling.rules[0].labels[1]"]
            await enforced.sample(node, health=0, other=1)
            await enforced.wait_for_labels(node, {each: None for each in ours if not each.endswith("/other")})
            assert (await enforced.labels(node)).keys() == {HOSTNAME, f"{PREFIX}{name}/other"}

    async def test_facts_D52_G6_only_a_label_with_mixed_operators_is_skipped_and_it_is_reported(
        self, enforced: Enforced
    ) -> None:
        async with enforced.undisturbed():
            node, name = await enforced.node(), enforced.name()
            rules = [
                rule("memory", 2000, "LessThan", "d=card0", "small=1"),
                rule("cpu", 200, "Equals", "d=card1", "busy=1"),
            ]
            key = await enforced.policy(await enforced.namespace(), name, labeling(*rules))
            await enforced.sample(node, memory=200, cpu=200)
            await enforced.wait_for_labels(node, {f"{PREFIX}{name}/small": "1", f"{PREFIX}{name}/busy": "1"})
            status = await enforced.wait_for_status(key, Ready=(TRUE, "PartlyIgnored"))
            assert fields_of(status) == ["spec.strategies.labeling.rules"]
            assert await enforced.values(node, f"{PREFIX}{name}/d") == [None]

    @pytest.mark.real_api
    async def test_facts_D53_deleting_a_policy_costs_one_patch_for_each_node_that_it_labelled(
        self, enforced: Enforced
    ) -> None:
        def patches() -> float:
            return enforced.count("tas_label_patches_total", result="patched")

        async with enforced.undisturbed():
            name = enforced.name()
            keys = [name, *(f"{PREFIX}{name}/{each}" for each in "abcd")]
            nodes = [await enforced.node(f"node-{number}") for number in range(3)]
            rules = [rule("health", 1, "Equals", *(f"{each}=1" for each in "abcd"))]
            key = await enforced.policy(await enforced.namespace(), name, deschedule() | labeling(*rules))
            for node, value in zip(nodes, (1, 1, 0), strict=True):
                await enforced.sample(node, health=value)
            for node in nodes[:2]:
                await enforced.wait_for_labels(node, {name: VIOLATING, keys[-1]: "1"})
            # A patch is counted when its answer arrives. One patch is that of the policy of `undisturbed`.
            await eventually(lambda: patches() == 3)
            await enforced.delete_policy(key)
            for node in nodes[:2]:
                await enforced.wait_for_labels(node, dict.fromkeys(keys))
                states = [{*keys} & labels.keys() for labels in await enforced.history(node)]
                assert [state for state, _ in groupby(states)] == [set(), {*keys}, set()]
        await eventually(lambda: patches() >= 7)  # `undisturbed` has then changed the labels of its two nodes
        assert patches() == 7

    # Changes by others

    async def test_a_label_of_a_policy_that_a_user_edits_is_restored_and_no_other_label_changes(
        self, enforced: Enforced
    ) -> None:
        async with enforced.undisturbed():
            name = enforced.name()
            theirs = {"example.com/mine": "1", f"{name}-not": VIOLATING}
            node = await enforced.node("node", **theirs)
            rules = [rule("health", 1, "Equals", "card=card0")]
            await enforced.policy(await enforced.namespace(), name, deschedule() | labeling(*rules))
            await enforced.sample(node, health=1)
            ours = {name: VIOLATING, f"{PREFIX}{name}/card": "card0"}
            await enforced.wait_for_labels(node, ours)
            prefixed = f"{PREFIX}{name}/card"
            edits: list[Mapping[str, str | None]] = [dict.fromkeys(ours), {name: "", prefixed: "other"}]
            for edit in (*edits, {f"{PREFIX}{name}/stray": "1"}):
                await enforced.admin.label_node(node, edit)
                await enforced.wait_for_labels(node, ours | {f"{PREFIX}{name}/stray": None})
            assert await enforced.labels(node) == ours | theirs | {HOSTNAME: node}

    @pytest.mark.real_api
    async def test_a_node_that_is_deleted_while_its_labels_change_is_not_recreated_and_affects_no_other_node(
        self, enforced: Enforced
    ) -> None:
        async with enforced.undisturbed():
            name = enforced.name()
            nodes = [await enforced.node(f"node-{number}") for number in range(4)]
            await enforced.policy(await enforced.namespace(), name, deschedule())
            for node in nodes:
                await enforced.sample(node, health=0)
            async with asyncio.TaskGroup() as tasks:
                for node in nodes[2:]:
                    tasks.create_task(enforced.sample(node, health=1))
                for node in nodes[:2]:
                    tasks.create_task(self._violate_and_delete(enforced, node))
            for node in nodes[2:]:
                await enforced.wait_for_labels(node, {name: VIOLATING})
            found = await enforced.admin.get("/api/v1/nodes")
            assert not {each["metadata"]["name"] for each in found["items"]} & set(nodes[:2])

    @staticmethod
    async def _violate_and_delete(enforced: Enforced, node: str) -> None:
        """Publishes a sample that violates, and deletes the node about when the label is set."""
        publishing = asyncio.create_task(enforced.sample(node, health=1))
        await asyncio.sleep(0)
        await enforced.admin.delete_node(node)
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing

    @staticmethod
    async def _wait_for_evaluation(enforced: Enforced, node: str, *, health: int = 1) -> str:
        """Waits until all earlier changes of policies and of the node's samples have had their effect on its labels.

        A later policy is evaluated with them and its label is set by the same patch or a later one. Returns the label.
        """
        name = enforced.name("after")
        await enforced.policy(await enforced.namespace("after"), name, deschedule(rule("health", health)))
        await enforced.wait_for_labels(node, {name: VIOLATING})
        return name
