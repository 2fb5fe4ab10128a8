"""Bad input with a real API server and a real nats-server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.integration.servers import eventually
from tests.kubernetes.admin import Admin, AdminError
from tests.kubernetes.bad_input_scenarios import TRUE, BadInputScenarios
from tests.kubernetes.enforcement import PREFIX, VIOLATING, Enforced, Refusing, enforced, quick_refusals
from tests.kubernetes.world import HOSTNAME, World, deschedule, labeling, rule

__all__ = ["enforced", "quick_refusals"]

ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture
def refusing(admin: Admin) -> Refusing:
    """Refuses the label by a ValidatingAdmissionPolicy."""

    @asynccontextmanager
    async def refusing(node: str, label: str) -> AsyncIterator[str]:
        name, message = f"refuse-{label}", f"ask the team before you label with {label}"
        is_other = f"object.metadata.name != '{node}' || !('{label}' in object.metadata.labels)"
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
        policy = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": is_other, "message": message}],
        }
        binding = {"policyName": name, "validationActions": ["Deny"]}
        kinds = (("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding))
        for plural, spec in kinds:
            await admin.create(f"{ADMISSION}/{plural}", {"metadata": {"name": name}, "spec": spec})

        async def is_refused() -> bool:
            try:
                await admin.patch(f"/api/v1/nodes/{node}?dryRun=All", {"metadata": {"labels": {label: "violating"}}})
            except AdminError as error:
                return message in str(error)
            return False

        try:
            await eventually(is_refused, every=0.1)
            yield message
        finally:
            for plural, _ in kinds:
                await admin.delete(f"{ADMISSION}/{plural}/{name}")

    return refusing


class TestBadInput(BadInputScenarios):
    refuses_one_label = True

    async def test_the_policies_of_a_deleted_namespace_lose_their_labels_and_others_keep_them(
        self, enforced: Enforced
    ) -> None:
        async with enforced.undisturbed():
            node, name, shared = await enforced.node(), enforced.name(), enforced.name("shared")
            label = f"{PREFIX}{name}/card"
            deleted, other = await enforced.namespace("deleted"), await enforced.namespace("other")
            strategies = deschedule() | labeling(rule("health", 1, "Equals", "card=card0"))
            await enforced.policy(deleted, name, strategies)
            owner, heir = [
                await enforced.policy(namespace, shared, deschedule(rule("shared"))) for namespace in (deleted, other)
            ]
            await enforced.sample(node, health=1, shared=1)
            await enforced.wait_for_labels(node, {name: VIOLATING, label: "card0", shared: VIOLATING})
            await enforced.wait_for_status(heir, Ready=(TRUE, "PartlyIgnored"))  # the older policy owns the label

            async def is_forgotten() -> bool:
                return await enforced.stored(owner) is None

            await enforced.admin.delete(f"/api/v1/namespaces/{deleted}")
            await enforced.wait_for_labels(node, {name: None, label: None})
            await enforced.wait_for_status(heir, Ready=(TRUE, "InForce"), Violating=(TRUE, "NodesViolate"))
            await eventually(is_forgotten)
            assert await enforced.values(node, shared) == [None, VIOLATING]
            await enforced.sample(node, health=1, shared=0)
            await enforced.wait_for_labels(node, {shared: None})
            assert await enforced.values(node, name) == [None, VIOLATING, None]

    async def test_a_node_that_is_created_again_while_labelled_is_labelled_only_by_its_own_verdict(
        self, enforced: Enforced
    ) -> None:
        async with enforced.undisturbed():
            node, name, met = await enforced.node(), enforced.name(), enforced.name("met")
            namespace = await enforced.namespace()
            await enforced.policy(namespace, name, deschedule())
            await enforced.policy(namespace, met, deschedule(rule("health", 0)))
            await enforced.sample(node, health=1)
            await enforced.wait_for_labels(node, {name: VIOLATING})
            # At the next start the verdict of the first node desires a label that the second must never get.
            await enforced.stop()
            await enforced.admin.delete_node(node)
            await enforced.admin.create_node(node, **{HOSTNAME: node, "life": "second"})
            await World.sample(enforced, node, health=0)
            await enforced.start()
            await enforced.wait_for_labels(node, {met: VIOLATING})
            second = [labels for labels in await enforced.history(node) if "life" in labels]
            assert not any(name in labels for labels in second)
            await enforced.sample(node, health=1)
            await enforced.wait_for_labels(node, {name: VIOLATING, met: None})

    async def test_a_sample_of_a_clock_one_minute_ahead_sets_and_removes_no_label(self, enforced: Enforced) -> None:
        async with enforced.undisturbed():
            node, name = await enforced.node(), enforced.name()
            await enforced.policy(await enforced.namespace(), name, deschedule())
            for health, label in ((1, VIOLATING), (0, None)):
                await enforced.sample(node, health=health)
                await enforced.wait_for_labels(node, {name: label})
                await enforced.refused_sample(node, age=-60, health=1 - health)
            assert await enforced.values(node, name) == [None, VIOLATING, None]
