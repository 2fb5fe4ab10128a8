import time
from collections.abc import Callable
from typing import Any

import pytest

from bus.connection import Bus
from bus.kinds import NODE_VERDICTS
from lab.sandbox.resources import DEPLOYMENTS, NODES, Object
from tas.events.data import ViolationStarted
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tas.verdict.verdict import NodeVerdict, PolicyVerdict, StrategyVerdict
from tests.integration.servers import eventually
from tests.sandbox import Sandbox

from .running import publish, running, store

POLICY = PolicyKey("default", "demo")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("vmm", 10),
        ("vvm", 2),
        ("vuu", None),  # the unknown ones may decide
        ("vvu", 2),  # they cannot
        ("mmu", 10),
        ("v-m", None),  # no verdict is no state
        ("---", None),
    ],
)
def test_a_node_whose_state_is_not_known_changes_nothing(
    example: Callable[[str], Any], states: str, expected: int | None
) -> None:
    known = {"v": State.VIOLATED, "m": State.MET, "u": State.UNKNOWN}
    nodes = [f"node-{number}" for number in range(3)]
    stored = {node: known[state] for node, state in zip(nodes, states, strict=True) if state in known}
    assert example("scale_deployment").replicas(nodes, stored, needed=2, normal=10, reduced=2) == expected


async def test_a_deployment_has_fewer_replicas_while_two_nodes_violate_the_policy(
    example: Callable[[str], Any],
    bus: Bus,
    sandbox: Sandbox,
    kubeconfig: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    labels = {"matchLabels": {"app": "batch"}}
    deployment: Object = {"metadata": {"name": "batch"}, "spec": {"replicas": 10, "selector": labels}}
    module = example("scale_deployment")
    for node in ("node-1", "node-2", "node-3"):
        sandbox.cluster.patch(NODES, "", node, {"metadata": {"labels": {"pool": "batch"}}}, manager="user")
    sandbox.add_node("node-4")  # of another pool; its state is never known
    arguments = (
        "--selector",
        "pool=batch",
        "--nodes",
        "2",
        "--normal",
        "10",
        "--reduced",
        "4",
        "--policy",
        "default/demo",
    )
    with pytest.raises(SystemExit, match="there is no Deployment default/missing"):
        await module.main((*arguments, "default/missing", kubeconfig, "--bus", bus.address))
    with pytest.raises(SystemExit):
        await module.main((*arguments, "missing", kubeconfig, "--bus", bus.address))
    assert "'missing' must be NAMESPACE/NAME" in capsys.readouterr().err
    sandbox.cluster.create(DEPLOYMENTS, "default", deployment, manager="user")

    def replicas() -> int:
        return int(sandbox.cluster.scale("default", "batch")["spec"]["replicas"])

    async def verdict(node: str, state: State) -> None:
        strategy = StrategyVerdict(state=state, changed=time.time())
        policy = PolicyVerdict(uid="u", generation=1, strategies={StrategyType.DONTSCHEDULE: strategy})
        await store(
            bus,
            NODE_VERDICTS,
            node,
            NodeVerdict(node_uid="", nodes_revision=1, policies_revision=1, policies={POLICY: policy}),
        )
        await publish(bus, ViolationStarted(node=node, namespace="default", policy="demo", strategy="dontschedule"))

    await verdict("node-1", State.VIOLATED)
    await verdict("node-2", State.VIOLATED)  # node-3 has none
    async with running(module, bus, "scale-default-batch", *arguments, "default/batch", kubeconfig):
        await eventually(lambda: replicas() == 4)
        await verdict("node-3", State.MET)
        sandbox.faults.answer(503, times=1, which=lambda call: call.resource == "deployments")
        await verdict("node-1", State.MET)
        await eventually(lambda: replicas() == 10)
        assert not sandbox.faults.waiting
