"""Bad input over a sandbox and a real nats-server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tas.verdict.size import NODE_BYTES
from tests.integration.servers import eventually
from tests.kubernetes.bad_input_scenarios import TRUE, BadInputScenarios, fields_of
from tests.kubernetes.enforcement import VIOLATING, Enforced, Refusing, enforced, quick_refusals
from tests.kubernetes.world import deschedule, rule
from tests.sandbox import Call, Sandbox

__all__ = ["enforced", "quick_refusals"]


@pytest.fixture
def refusing(sandbox: Sandbox) -> Refusing:
    """The sandbox has no admission policies: every patch of the node by `labels` is refused."""

    @asynccontextmanager
    async def refusing(node: str, _label: str) -> AsyncIterator[str]:
        def is_refused(call: Call) -> bool:
            return (call.verb, call.name, call.user_agent) == ("patch", node, "tas-on-nats/labels")

        sandbox.faults.answer(422, times=10**6, which=is_refused)
        yield "the sandbox is set up to answer 422"
        sandbox.faults.clear()

    return refusing


@pytest.mark.usefixtures("quick_status")
class TestBadInput(BadInputScenarios):
    async def test_a_policy_without_room_in_verdicts_says_so_keeps_its_label_and_does_not_affect_older_ones(
        self, enforced: Enforced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node, namespace = await enforced.node(), await enforced.namespace()
        older, younger = enforced.name("a"), enforced.name("b")
        keys = [await enforced.policy(namespace, name, deschedule(rule(name))) for name in (older, younger)]
        await enforced.sample(node, **{older: 1, younger: 1})
        await enforced.wait_for_labels(node, {older: VIOLATING, younger: VIOLATING})
        await enforced.stop()
        # The server's limit less this is the largest value: there is room for one policy.
        monkeypatch.setattr("bus.link.HEADER_BYTES", (1 << 20) - NODE_BYTES - 1000)
        await enforced.start()
        await enforced.sample(node, **{older: 0, younger: 0})
        await enforced.wait_for_labels(node, {older: None})
        await enforced.wait_for_status(keys[0], Ready=(TRUE, "InForce"))
        status = await enforced.wait_for_status(keys[1], Ready=(TRUE, "PartlyIgnored"))
        assert fields_of(status) == ["spec"]
        assert enforced.count("tas_verdict_policies_left_out") == 1
        await eventually(lambda: enforced.count("tas_label_orphans_kept_total") > 0)
        assert await enforced.values(node, younger) == [None, VIOLATING]
        await enforced.delete_policy(keys[0])
        await enforced.wait_for_labels(node, {younger: None})
        await enforced.wait_for_status(keys[1], Ready=(TRUE, "InForce"))
