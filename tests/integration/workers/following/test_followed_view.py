"""The view that follows the bus."""

import time

import pytest

from bus.buckets import NODES, POLICIES
from bus.connection import Bus
from bus.kinds import NODE_FACTS, POLICY_RECORDS
from bus.records.nodes import NodeFacts
from bus.records.policies import PolicyRecord
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tests.integration.servers import eventually
from tests.integration.workers.running import running
from workers.following.followed_view import FollowedView
from workers.following.synced import write_synced

KEY = PolicyKey("a", "p")


@pytest.mark.parametrize(("uid", "generation"), [("other", 1), ("u", 2)])
async def test_a_policy_with_another_uid_or_generation_is_judged_again_though_its_rules_are_the_same(
    bus: Bus, uid: str, generation: int
) -> None:
    """A verdict with an earlier uid confirms no removal: the label would stay."""
    policy, _ = parse_policy(KEY, {"strategies": {"deschedule": {"rules": []}}})
    record = PolicyRecord(policy=policy, uid="u", generation=1)
    revision = await POLICY_RECORDS.put(bus, KEY, record, revision=0, read_at=time.monotonic())
    facts = NodeFacts(uid="n", labels={})
    await NODE_FACTS.put(bus, "node-1", facts, revision=0, read_at=time.monotonic())
    for bucket in (NODES, POLICIES):
        await write_synced(bus, bucket, await bus.epoch(bucket), count=1, writer="test", cluster=True)
    followed = FollowedView(bus, default_stale_after=60.0, verdicts=True)
    async with running(followed):
        await eventually(lambda: followed.unready() is None)
        followed.view.touched.clear()
        record = PolicyRecord(policy=policy, uid=uid, generation=generation)
        await POLICY_RECORDS.put(bus, KEY, record, revision=revision, read_at=time.monotonic())
        await eventually(lambda: KEY in followed.view.touched.get("node-1", ()))
