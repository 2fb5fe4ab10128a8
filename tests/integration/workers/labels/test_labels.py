"""The worker `labels` over the sandbox and a real nats-server, also while things go wrong."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bus.buckets import NODES as NODES_BUCKET
from bus.buckets import POLICIES, SYNCED, VERDICTS, Bucket
from bus.kinds import NODE_VERDICTS
from bus.records.codec import encode
from bus.records.synced import Synced
from bus.subjects import policy_key
from lab.sandbox.resources import NODES
from tas.enforcing.brake import BrakeSettings
from tas.policy.policy import PolicyKey
from tas.verdict.verdict import ABSENT, DesiredKind, DesiredLabel
from tests.integration.bus.followers import consumers
from tests.integration.replicas import replica
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.halting_labels import SIGNALS
from tests.kubernetes.fixtures import admin, client
from tests.kubernetes.label_fixtures import Running, labels, labels_running, world
from tests.kubernetes.label_scenarios import VIOLATING, LabelScenarios, desired_by, has, received, settled
from tests.kubernetes.world import World, deschedule
from tests.sandbox import Call, Drop, Sandbox, Which
from workers.kubernetes.client import WRITE_SECONDS, KubernetesClient
from workers.kubernetes.resources import POLICIES as POLICY_OBJECTS
from workers.kubernetes.resources import Resource
from workers.reconcile.node_patches import PATCHES, PATCHES_SECONDS

__all__ = ["admin", "client", "labels", "world"]

OURS = "tas-on-nats/labels"


class TestLabels(LabelScenarios):
    pass


def ours(verb: str, resource: str = "nodes") -> Which:
    """Requests of the worker."""
    return lambda call: call.verb == verb and call.resource == resource and call.user_agent == OURS


def at(verb: str, happens: Callable[[], object]) -> Which:
    """Matches nothing; calls `happens` once, when the first such request of the worker arrives."""
    done: list[Call] = []

    def note(call: Call) -> bool:
        if not done and ours(verb)(call):
            done.append(call)
            happens()
        return False

    return note


async def violating(world: World, *, labelled: bool = False) -> tuple[str, str]:
    """A node and the policy that it violates; `labelled` waits until the label is set."""
    node, name = await world.node(), world.name()
    await world.policy(await world.namespace(), name, deschedule())
    await world.sample(node, health=1)
    await world.evaluate(node)
    if labelled:
        await eventually(has(world, node, name, VIOLATING))
    return node, name


@pytest.mark.parametrize("status", [409, 429, 500, 503])
@pytest.mark.parametrize("verb", ["get", "patch"])
async def test_a_patch_that_the_api_server_rejects_is_sent_again(
    sandbox: Sandbox, world: World, labels: Running, status: int, verb: str
) -> None:
    if verb == "get":  # a node is read when a patch found it changed
        sandbox.faults.answer(409, times=4, which=ours("patch"))
    sandbox.faults.answer(status, times=3, which=ours(verb), retry_after=1 if status == 429 else None)
    node, name = await violating(world)
    await eventually(has(world, node, name, VIOLATING))
    assert sandbox.faults.waiting <= 0
    await eventually(lambda: labels.count("tas_label_nodes_failing") == 0)


async def test_facts_S7_a_node_that_cannot_be_patched_is_logged_and_delays_no_other_node(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    bad, name = f"bad-{world.number}.example.com", world.name()
    sandbox.faults.answer(500, times=10**6, which=lambda call: ours("patch")(call) and call.name == bad)
    nodes = [await world.node("bad"), await world.node("good")]
    await world.policy(await world.namespace(), name, deschedule())
    for node in nodes:
        await world.sample(node, health=1)
    with capture_logs() as logs:
        await world.evaluate(*nodes)
        await eventually(has(world, nodes[1], name, VIOLATING))
        failed = {"event": "node_patch_failed", "node": bad}
        await eventually(lambda: any(failed.items() <= line.items() for line in logs))
    await eventually(lambda: labels.count("tas_label_nodes_failing") == 1)  # it is counted after the line
    assert name not in await world.labels(bad)
    sandbox.faults.clear()
    await eventually(has(world, bad, name, VIOLATING))


async def test_a_patch_of_which_every_label_is_refused_is_no_patch(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    sandbox.faults.answer(422, times=10**6, which=ours("patch"))
    node, name = await world.node("bad"), world.name()
    await world.policy(await world.namespace(), name, deschedule())
    await world.sample(node, health=1)
    with capture_logs() as logs:
        await world.evaluate(node)
        await eventually(lambda: labels.count("tas_labels_refused_total") == 1)
        await labels.idle()
    (refused,) = [line for line in logs if line["event"] == "label_refused"]
    assert (refused["node"], refused["label"], refused["value"]) == (node, name, VIOLATING)
    assert "node_patched" not in {line["event"] for line in logs}
    assert labels.count("tas_label_patches_total", result="patched") == 0

    async def follows_once() -> bool:
        return await consumers(world.bus, VERDICTS) == 1

    await eventually(follows_once)  # a busy server that sends no heartbeat is followed anew


async def test_a_refusal_is_known_until_its_label_is_set_or_not_desired_or_its_node_is_gone(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    name, nodes = world.name(), [await world.node(name) for name in ("forbidden", "gone", "met", "without-verdict")]
    forbidden, gone, met, without_verdict = nodes
    sandbox.faults.answer(403, times=10**6, which=lambda call: ours("patch")(call) and call.name == forbidden)
    sandbox.faults.answer(422, times=10**6, which=ours("patch"))
    await world.policy(await world.namespace(), name, deschedule())
    for node in nodes:
        await world.sample(node, health=1)
    await world.evaluate(*nodes)

    def count() -> int:
        return sum(each.count for each in labels.worker._refusals.of(name, ()))

    await eventually(lambda: count() == 4)
    await world.admin.delete_node(gone)
    await world.sample(met, health=0)
    await world.evaluate(met)
    await eventually(lambda: count() == 2)
    await world.remove(VERDICTS, NODE_VERDICTS.key(without_verdict))
    await labels.caught_up()
    await labels.idle()
    sandbox.faults.clear()
    await eventually(has(world, forbidden, name, VIOLATING))
    await labels.idle()
    assert [each.nodes for each in labels.worker._refusals.of(name, ())] == [(without_verdict,)]


async def test_a_refusal_is_known_while_a_removal_on_the_node_is_not_confirmed(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    node, kept = await violating(world, labelled=True)
    (namespace,), refused = world.namespaces, world.name("refused")
    await world.policy(namespace, refused, deschedule())
    sandbox.faults.answer(422, times=10**6, which=ours("patch"))
    policies = {}
    for name, desired in ((kept, ABSENT), (refused, DesiredLabel(DesiredKind.SET, VIOLATING))):
        stored = await world.admin.get(f"{world.admin.policies(namespace)}/{name}")
        policies[PolicyKey(namespace, name)] = desired_by(name, desired, uid=stored["metadata"]["uid"])
    metadata = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
    await world.verdict(node, metadata["uid"], policies)
    await eventually(lambda: bool(labels.worker._refusals.of(refused, ())))
    await eventually(lambda: labels.count("tas_label_removals_unconfirmed_total") > 1)
    assert not labels.worker._refusals.of(kept, ())


async def test_after_a_429_no_patch_is_sent_before_retry_after_has_passed(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    await settled(world, labels)
    times: list[float] = []

    def note(call: Call) -> bool:
        if ours("patch")(call):
            times.append(time.monotonic())
        return False

    sandbox.faults.answer(500, which=note)
    sandbox.faults.answer(429, which=ours("patch"), retry_after=1)
    nodes = [await world.node(f"node-{number}") for number in range(3)]
    for node in nodes:
        await world.sample(node, health=1)
    await world.policy(await world.namespace(), world.name(), deschedule())
    await world.evaluate(nodes[0])
    await eventually(lambda: sandbox.faults.waiting == 1)
    await world.evaluate(*nodes[1:])
    for node in nodes:
        await eventually(has(world, node, world.name(), VIOLATING))
    refused, *later = times
    assert min(later) - refused >= 1


async def test_a_404_that_does_not_name_the_node_does_not_mean_that_the_node_is_missing(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    sandbox.faults.answer(409, times=2, which=ours("patch"))
    sandbox.faults.answer(404, times=2, which=ours("get"))
    node, name = await violating(world)
    await eventually(has(world, node, name, VIOLATING))
    assert labels.count("tas_label_patches_total", result="failed") == 2
    assert labels.count("tas_label_patches_total", result="gone") == 0


@pytest.mark.parametrize("drop", list(Drop))
async def test_after_a_lost_answer_the_label_is_set(
    sandbox: Sandbox, world: World, labels: Running, drop: Drop
) -> None:
    sandbox.faults.drop(drop, which=ours("patch"))
    node, name = await violating(world)
    await eventually(has(world, node, name, VIOLATING))
    await settled(world, labels)
    assert (await world.labels(node))[name] == VIOLATING


async def test_a_label_that_the_api_server_refused_is_tried_again_later(
    sandbox: Sandbox, world: World, kubeconfig: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.labels.worker.RESYNC_SECONDS", 0.5)
    async with labels_running(kubeconfig, server.url) as labels:
        sandbox.faults.answer(422, which=ours("patch"))
        node, name = await violating(world)
        await eventually(has(world, node, name, VIOLATING))
        assert labels.count("tas_labels_refused_total") == 1


async def test_a_node_deleted_between_its_verdict_and_the_patch_is_not_created(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    await settled(world, labels)
    name = f"node-{world.number}.example.com"
    sandbox.faults.answer(500, which=at("patch", lambda: sandbox.cluster.delete(NODES, "", name)))
    node, _ = await violating(world)
    assert node == name
    await eventually(lambda: ("patch", 404) in {(call.verb, call.status) for call in sandbox.calls})
    await settled(world, labels)
    assert name not in {each["metadata"]["name"] for each in (await world.admin.get("/api/v1/nodes"))["items"]}


async def test_a_node_replaced_between_its_verdict_and_the_patch_is_not_labelled(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    await settled(world, labels)
    name = f"node-{world.number}.example.com"

    def replace() -> None:
        sandbox.cluster.delete(NODES, "", name)
        sandbox.add_node(name)

    sandbox.faults.answer(500, which=at("patch", replace))
    node, policy = await violating(world)
    await eventually(lambda: {409, 422} & {call.status for call in sandbox.calls if ours("patch")(call)} != set())
    await settled(world, labels)
    assert policy not in await world.labels(node)
    assert labels.count("tas_labels_refused_total") == 0


async def test_a_node_created_again_while_the_answer_says_that_it_is_missing_is_labelled(
    sandbox: Sandbox, world: World, labels: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await settled(world, labels)
    name, get, created = f"node-{world.number}.example.com", KubernetesClient.get, asyncio.Event()

    async def answered_late(self: KubernetesClient, resource: Resource[Any], of: str, **more: Any) -> Any:
        try:
            return await get(self, resource, of, **more)
        finally:
            if of == name and not created.is_set():
                sandbox.add_node(name)
                await received(world, labels)
                created.set()

    monkeypatch.setattr(KubernetesClient, "get", answered_late)
    sandbox.faults.answer(500, which=at("patch", lambda: sandbox.cluster.delete(NODES, "", name)))
    node, policy = await violating(world)
    await eventually(created.is_set)
    assert ("get", 404) in {(call.verb, call.status) for call in sandbox.calls if call.name == name}
    await labels.idle()
    await world.evaluate(node)
    await eventually(has(world, node, policy, VIOLATING))


async def test_a_node_that_is_missing_in_a_list_causes_no_request(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    node, _ = await violating(world, labelled=True)
    uid = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]["uid"]
    await settled(world, labels)
    before = len(sandbox.calls)
    sandbox.cluster.delete(NODES, "", node)
    sandbox.forget_history()
    sandbox.cut_watches()  # before it delivers the deletion
    await eventually(lambda: sandbox.count(since=before, which=ours("list"))["list", "nodes"] > 0)
    await settled(world, labels)
    other = PolicyKey("a", world.name("other"))
    await world.claim(other)
    await world.verdict(node, uid, {other: desired_by(other.name, DesiredLabel(DesiredKind.SET, VIOLATING))})
    await settled(world, labels)
    assert not sandbox.count(since=before, which=lambda call: call.name == node)


async def test_a_node_changed_between_its_reading_and_the_patch_is_read_again(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    await settled(world, labels)
    name = f"node-{world.number}.example.com"

    def change() -> None:
        found = sandbox.cluster.get(NODES, "", name)
        found["metadata"]["labels"]["theirs"] = "1"
        sandbox.cluster.store.put(NODES, found)

    sandbox.faults.answer(500, which=at("patch", change))
    node, policy = await violating(world)
    await eventually(has(world, node, policy, VIOLATING))
    assert (await world.labels(node))["theirs"] == "1"
    assert labels.count("tas_label_patches_total", result="conflict") == 1


async def test_a_patch_whose_reads_are_older_than_two_seconds_is_not_sent(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    orphan = f"telemetry.aware.scheduling.{world.name('gone')}/card"
    expired: list[float] = []

    def note(call: Call) -> bool:
        if ours("patch")(call):
            expired.append(labels.count("tas_label_patches_total", result="expired"))
        return False

    sandbox.faults.answer(500, which=note)
    sandbox.faults.delay(2.2, which=ours("list", "taspolicies"))
    node = await world.node(**{orphan: "card0"})
    await eventually(has(world, node, orphan, None))
    assert expired[0] > 0  # before the first patch, what was read before the delay has expired


async def test_no_node_is_read_or_patched_before_all_lists_are_complete(
    sandbox: Sandbox, world: World, kubeconfig: Path, server: Server
) -> None:
    node, name = await violating(world)
    await server.restart(wiped=True)
    await world.bus.wait_connected()
    async with labels_running(kubeconfig, server.url, wait=False) as worker:
        assert "VERDICTS: not caught up" in (worker.worker.unready() or "")
        before = len(sandbox.calls)
        metadata = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
        await world.verdict(node, metadata["uid"], {})
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began > 1.5)
        assert "_synced" in (worker.worker.unready() or "")
        calls = sandbox.count(since=before, which=lambda call: call.user_agent == OURS)
        assert calls.keys() <= {("list", "nodes"), ("watch", "nodes")}
        await world.begin()
        await world.policy(f"a-{world.number}", name, deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))


async def write_synced(world: World, bucket: Bucket, **otherwise: Any) -> None:
    epoch = (await answered(partial(world.bus.epoch, bucket))).created
    fields: dict[str, Any] = {"epoch": epoch, "count": 0, "time": datetime.now(UTC), "writer": "test"}
    await world.put(bucket, SYNCED, encode(Synced(**{"cluster": True} | fields | otherwise)))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param((POLICIES, {"cluster": False}, "not those of a cluster"), id="policies of a directory"),
        pytest.param((NODES_BUCKET, {"cluster": False}, "no complete list of a cluster"), id="nodes of no cluster"),
        pytest.param((NODES_BUCKET, {"epoch": "earlier"}, "no complete list"), id="nodes of an earlier life"),
    ],
)
async def test_no_node_is_patched_without_lists_of_a_cluster_in_the_current_epoch(
    world: World,
    kubeconfig: Path,
    server: Server,
    fields: tuple[Bucket, dict[str, Any], str],
) -> None:
    bucket, otherwise, reason = fields
    node, name = await violating(world)
    await write_synced(world, bucket, **otherwise)
    async with labels_running(kubeconfig, server.url, wait=False) as worker:

        def waits_for_this_alone() -> bool:
            reasons = (worker.worker.unready() or "").split("; ")
            is_it = len(reasons) == 1 and bucket.name in reasons[0] and reason in reasons[0]
            return is_it and worker.worker._inputs.nodes.status.caught_up  # then what `_synced` says has been seen

        await eventually(waits_for_this_alone)
        await world.evaluate(node)
        assert name not in await world.labels(node)
        await write_synced(world, bucket)
        await world.evaluate(node)
        await eventually(has(world, node, name, VIOLATING))


async def delete_stream(world: World, bucket: Bucket) -> None:
    """Deletes a bucket with its content; connections create it again."""
    await answered(partial(world.bus.api, f"STREAM.DELETE.{bucket.stream}"))


async def test_after_a_loss_of_the_verdicts_the_label_of_a_deleted_policy_is_removed(
    world: World, labels: Running
) -> None:
    node, name = await violating(world, labelled=True)
    await world.delete_policy(PolicyKey(f"a-{world.number}", name))
    await settled(world, labels)
    assert (await world.labels(node))[name] == VIOLATING  # as in the verdict
    await delete_stream(world, VERDICTS)
    await eventually(has(world, node, name, None))


async def test_after_a_loss_of_the_policies_a_deleted_policy_keeps_no_orphan(world: World, labels: Running) -> None:
    node, name = await violating(world, labelled=True)
    await world.remove(VERDICTS, NODE_VERDICTS.key(node))
    await eventually(lambda: labels.count("tas_label_orphans_kept_total") >= 1)
    await settled(world, labels)
    await world.admin.delete_policy(f"a-{world.number}", name)
    await delete_stream(world, POLICIES)
    await write_synced(world, POLICIES)
    await eventually(has(world, node, name, None))


async def test_after_a_loss_of_the_policies_a_deleted_policy_owns_no_label(world: World, labels: Running) -> None:
    node, name = await violating(world, labelled=True)
    key = PolicyKey(f"a-{world.number}", name)
    stored = await world.admin.get(f"{world.admin.policies(key.namespace)}/{name}")
    older = {"uid": "older", "generation": 1, "creationTimestamp": "2020-01-01T00:00:00Z"}
    await world.record(PolicyKey("b", name), {"metadata": older, "spec": {"strategies": deschedule()}})
    await labels.caught_up()
    await delete_stream(world, POLICIES)
    await world.record(key, stored)
    await write_synced(world, POLICIES)
    await world.sample(node, health=0)
    await world.evaluate(node)
    await eventually(has(world, node, name, None))


async def test_a_node_that_changes_while_the_records_of_breakers_are_read_anew_is_handled_afterwards(
    world: World, labels: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch of BREAKERS says nothing at the beginning of an epoch: only the handled node notices it."""
    node, name = await violating(world, labelled=True)
    await settled(world, labels)
    with monkeypatch.context() as patch:
        patch.setattr(labels.worker._brake, "unready", lambda: "BREAKERS: not caught up with the bus")
        await world.admin.label_node(node, {name: None})
        await eventually(lambda: name not in labels.worker._nodes[node].labels)
        await labels.idle()
        assert await world.has(node, name, None)
    labels.worker._brake._note_batch()  # as when the watch has caught up
    await eventually(has(world, node, name, VIOLATING))


async def test_an_unreadable_verdict_removes_nothing_and_is_reported(world: World, labels: Running) -> None:
    node, name = await violating(world, labelled=True)
    await world.delete_policy(PolicyKey(f"a-{world.number}", name))
    await world.put(VERDICTS, NODE_VERDICTS.key(node), b"garbage")
    await eventually(lambda: labels.count("tas_label_patches_total", result="failed") >= 1)
    await settled(world, labels)
    assert (await world.labels(node))[name] == VIOLATING
    await world.remove(VERDICTS, NODE_VERDICTS.key(node))  # then the label is an orphan that no policy keeps
    await eventually(has(world, node, name, None))


@pytest.mark.parametrize("old", ["reconcile.confirmation.LIST_SECONDS", "labels.breaker_records.FRESH_SECONDS"])
async def test_an_orphan_is_not_removed_by_reads_that_are_too_old_for_a_write(
    world: World, labels: Running, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    """One of the list of policies and the records of freezes is shared for longer than a write may wait."""
    node, _ = await violating(world, labelled=True)  # with the product's limits: this write must not expire
    for each in ("reconcile.confirmation.LIST_SECONDS", "labels.breaker_records.FRESH_SECONDS"):
        monkeypatch.setattr(f"workers.{each}", 600.0 if each == old else 0.1)
    monkeypatch.setattr("workers.kubernetes.client.WRITE_SECONDS", 0.5)
    await world.remove(VERDICTS, NODE_VERDICTS.key(node))
    await eventually(lambda: labels.count("tas_label_orphans_kept_total") >= 1)  # by what was read now
    read = time.monotonic()
    await eventually(lambda: time.monotonic() - read > 0.5)
    later, orphan = await world.node("later"), world.name("orphan")
    patch = {"metadata": {"labels": {orphan: VIOLATING}}}
    await world.admin.patch(f"/api/v1/nodes/{later}?fieldManager=tas-on-nats", patch)

    async def is_expired() -> bool:
        assert (await world.labels(later))[orphan] == VIOLATING
        return labels.count("tas_label_patches_total", result="expired") > 0

    await eventually(is_expired)
    monkeypatch.setattr(f"workers.{old}", 0.1)  # so it is read again
    await eventually(has(world, later, orphan, None))


async def test_a_change_that_the_watch_delivers_before_the_answer_to_a_patch_is_kept(
    world: World, labels: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_patch, name, changed = KubernetesClient.merge_patch, world.name(), asyncio.Event()
    node = f"node-{world.number}.example.com"

    async def answered_late(self: KubernetesClient, resource: Resource[Any], of: str, *args: Any, **more: Any) -> Any:
        answer = await merge_patch(self, resource, of, *args, **more)
        if of == node and not changed.is_set():
            await world.admin.label_node(node, {name: None})
            await received(world, labels)
            changed.set()
        return answer

    monkeypatch.setattr(KubernetesClient, "merge_patch", answered_late)
    assert await violating(world) == (node, name)
    await eventually(changed.is_set)
    await eventually(has(world, node, name, VIOLATING))


async def test_a_list_that_is_answered_after_the_deletion_of_a_policy_keeps_its_label_only_shortly(
    world: World, labels: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, name = await violating(world, labelled=True)
    key = PolicyKey(f"a-{world.number}", name)
    list_all, deleted = KubernetesClient.list, asyncio.Event()

    async def answered_late(self: KubernetesClient, resource: Resource[Any], *args: Any, **more: Any) -> Any:
        listing = await list_all(self, resource, *args, **more)
        if resource is POLICY_OBJECTS and not deleted.is_set():
            deleted.set()
            await world.delete_policy(key)
            last = (await answered(partial(world.bus.epoch, POLICIES))).last_sequence
            await eventually(lambda: labels.worker._inputs.policies.status.applied >= last)
        return listing

    monkeypatch.setattr(KubernetesClient, "list", answered_late)
    await world.remove(VERDICTS, NODE_VERDICTS.key(node))
    await eventually(has(world, node, name, None))
    assert deleted.is_set()


async def test_a_change_of_a_foreign_label_causes_no_request(sandbox: Sandbox, world: World, labels: Running) -> None:
    node, _ = await violating(world, labelled=True)
    await world.remove(VERDICTS, NODE_VERDICTS.key(node))  # an orphan that its policy keeps
    await eventually(lambda: labels.count("tas_label_orphans_kept_total") >= 1)
    await settled(world, labels)
    await eventually(lambda: labels.count("tas_label_nodes_pending") <= 1)
    before = len(sandbox.calls)
    await world.admin.label_node(node, {"theirs": "1"})
    await settled(world, labels)  # by one patch of another node
    calls = sandbox.count(since=before, which=lambda call: call.user_agent == OURS)
    assert calls == Counter({("patch", "nodes"): 1})


async def test_a_list_from_before_the_deletion_of_a_policy_keeps_its_label_only_shortly(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    node, name = await violating(world, labelled=True)
    key = PolicyKey(f"a-{world.number}", name)
    await world.remove(VERDICTS, NODE_VERDICTS.key(node))
    await eventually(lambda: labels.count("tas_label_orphans_kept_total") >= 1)
    await world.delete_policy(key)  # within the time in which a list is shared
    await eventually(has(world, node, name, None))


async def test_a_label_needs_one_patch_and_after_a_conflict_one_read_and_a_second_patch(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    node, name = await violating(world, labelled=True)
    await settled(world, labels)
    for health, value, refused in ((0, None, 0), (1, VIOLATING, 1)):
        if refused:
            sandbox.faults.answer(409, which=ours("patch"))
        before = len(sandbox.calls)
        await world.sample(node, health=health)
        await world.evaluate(node)
        await eventually(has(world, node, name, value))
        calls = sandbox.count(since=before, which=lambda call: call.user_agent == OURS and call.verb != "watch")
        assert calls == Counter({("patch", "nodes"): 1 + refused, ("get", "nodes"): refused})


async def test_a_node_whose_labels_are_always_reverted_is_patched_at_a_limited_rate(
    sandbox: Sandbox, world: World, kubeconfig: Path, server: Server
) -> None:
    async with labels_running(kubeconfig, server.url, brake=BrakeSettings(flap_budget=0)) as labels:
        node, name = await violating(world, labelled=True)
        began = time.monotonic()
        while time.monotonic() - began < PATCHES_SECONDS - 1:
            sandbox_node = sandbox.cluster.get(NODES, "", node)
            if sandbox_node["metadata"]["labels"].pop(name, None) is not None:
                sandbox.cluster.store.put(NODES, sandbox_node)
            await asyncio.sleep(0.001)  # a patch takes longer
        assert labels.count("tas_label_patches_total", result="patched") <= PATCHES
        await eventually(has(world, node, name, VIOLATING))


async def test_a_replica_stopped_between_the_check_of_a_removal_and_its_patch_sends_nothing(
    sandbox: Sandbox, world: World, kubeconfig: Path, server: Server, tmp_path: Path
) -> None:
    node, name = await violating(world)
    command = ["-m", "tests.integration.workers.halting_labels", server.url, str(kubeconfig), "STOP", "read"]
    with replica("labels", command, folder=tmp_path) as stopped:
        await eventually(has(world, node, name, VIOLATING))
        await world.sample(node, health=0)
        await world.evaluate(node)
        await eventually(lambda: stopped.paused)
        await world.sample(node, health=1)  # violated again, without a new verdict
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began > WRITE_SECONDS)
        before = len(sandbox.calls)
        stopped.resume()
        await eventually(lambda: any(e["event"] == "label_removal_unconfirmed" for e in stopped.events()))
        stopped.must_run()
        assert sandbox.count(since=before, which=ours("patch"))[("patch", "nodes")] == 0
        assert (await world.labels(node))[name] == VIOLATING
        await world.sample(node, health=0)
        await eventually(has(world, node, name, None))


async def test_a_replica_stopped_after_its_last_check_removes_nothing_from_a_node_that_has_changed(
    sandbox: Sandbox, world: World, kubeconfig: Path, server: Server, tmp_path: Path
) -> None:
    node, name = await violating(world)
    command = ["-m", "tests.integration.workers.halting_labels", server.url, str(kubeconfig), "STOP", "later"]
    with replica("labels", command, folder=tmp_path) as stopped:
        await eventually(has(world, node, name, VIOLATING))
        stopped.send(SIGNALS["send"])
        await world.sample(node, health=0)
        await world.evaluate(node)
        await eventually(lambda: stopped.paused)
        await world.sample(node, health=1)
        await world.evaluate(node)
        await world.admin.label_node(node, {"theirs": "1"})
        before = len(sandbox.calls)
        stopped.resume()

        def refused() -> bool:
            return any(call.verb == "patch" and call.status == 409 for call in sandbox.calls[before:])

        await eventually(refused)
        stopped.must_run()
        assert (await world.labels(node))[name] == VIOLATING


async def test_another_replica_removes_the_label_that_a_killed_replica_was_about_to_remove(
    world: World, kubeconfig: Path, server: Server, tmp_path: Path
) -> None:
    node, name = await violating(world)
    command = ["-m", "tests.integration.workers.halting_labels", server.url, str(kubeconfig), "KILL", "read"]
    with replica("labels", command, folder=tmp_path) as killed:
        await eventually(has(world, node, name, VIOLATING))
        async with labels_running(kubeconfig, server.url) as other:
            await world.sample(node, health=0)
            await world.evaluate(node)
            await eventually(lambda: killed.ended)
            await eventually(has(world, node, name, None))
            await eventually(lambda: other.count("tas_label_changes_total", change="removed") == 1)


async def test_an_older_policy_of_the_same_name_that_no_verdict_has_yet_keeps_the_label(
    world: World, labels: Running
) -> None:
    node, name = await violating(world, labelled=True)
    key, other = PolicyKey(f"a-{world.number}", name), PolicyKey("b", name)
    metadata = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
    uid = (await world.admin.get(f"{world.admin.policies(key.namespace)}/{name}"))["metadata"]["uid"]
    older = {"uid": "older", "generation": 1, "creationTimestamp": "2020-01-01T00:00:00Z"}
    await world.record(other, {"metadata": older, "spec": {"strategies": deschedule()}})
    await world.sample(node, health=0)
    await world.verdict(node, metadata["uid"], {key: desired_by(name, DesiredLabel(DesiredKind.ABSENT), uid=uid)})
    await settled(world, labels)
    assert (await world.labels(node))[name] == VIOLATING
    await world.record(other, {"metadata": older, "spec": {"strategies": deschedule(), "suspend": True}})
    await eventually(has(world, node, name, None))


@pytest.mark.parametrize("is_readable", [True, False], ids=["older", "unreadable"])
async def test_another_policy_that_the_watch_has_not_delivered_yet_confirms_no_removal(
    world: World, labels: Running, monkeypatch: pytest.MonkeyPatch, *, is_readable: bool
) -> None:
    node, name = await violating(world, labelled=True)
    key, other = PolicyKey(f"a-{world.number}", name), PolicyKey("b", name)
    stored = await world.admin.get(f"{world.admin.policies(key.namespace)}/{name}")
    claims = labels.worker._confirmation.claims
    younger = {"uid": "younger", "generation": 1, "creationTimestamp": "2120-01-01T00:00:00Z"}
    await world.record(other, {"metadata": younger, "spec": {"strategies": deschedule()}})
    await labels.caught_up()
    known = dict(claims._names[name])
    older = younger | {"uid": "older", "creationTimestamp": "2020-01-01T00:00:00Z"}
    monkeypatch.setattr(claims, "set", lambda *_: False)
    if is_readable:
        await world.record(other, {"metadata": older, "spec": {"strategies": deschedule()}})
    else:
        await world.put(POLICIES, policy_key(other), b"garbage")
    await labels.caught_up()
    assert claims._names[name] == known
    await world.sample(node, health=0)
    absent = desired_by(name, DesiredLabel(DesiredKind.ABSENT), uid=stored["metadata"]["uid"])
    uid = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]["uid"]
    await world.verdict(node, uid, {key: absent})
    await eventually(lambda: labels.count("tas_label_removals_unconfirmed_total") > 0)
    assert (await world.labels(node))[name] == VIOLATING
    monkeypatch.undo()
    await world.record(key, stored)
    await world.remove(POLICIES, policy_key(other))
    await eventually(has(world, node, name, None))


async def test_an_unreadable_policy_of_the_same_name_keeps_the_label(world: World, labels: Running) -> None:
    node, name = await violating(world, labelled=True)
    key = PolicyKey(f"a-{world.number}", name)
    metadata = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
    uid = (await world.admin.get(f"{world.admin.policies(key.namespace)}/{name}"))["metadata"]["uid"]
    other = policy_key(PolicyKey("b", name))
    await world.put(POLICIES, other, b"garbage")
    await world.sample(node, health=0)
    await world.verdict(node, metadata["uid"], {key: desired_by(name, DesiredLabel(DesiredKind.ABSENT), uid=uid)})
    await settled(world, labels)
    assert (await world.labels(node))[name] == VIOLATING
    await world.remove(POLICIES, other)
    await eventually(has(world, node, name, None))


async def test_an_unreadable_policy_confirms_no_removal_and_delays_no_other_label(
    world: World, labels: Running
) -> None:
    node, name = await violating(world, labelled=True)
    key, other = PolicyKey(f"a-{world.number}", name), world.name("other")
    metadata = (await world.admin.get(f"/api/v1/nodes/{node}"))["metadata"]
    stored = await world.admin.get(f"{world.admin.policies(key.namespace)}/{name}")
    await world.sample(node, health=0)
    await world.put(POLICIES, policy_key(key), b"garbage")
    policies = {
        key: desired_by(name, DesiredLabel(DesiredKind.ABSENT), uid=stored["metadata"]["uid"]),
        PolicyKey("a", other): desired_by(other, DesiredLabel(DesiredKind.SET, VIOLATING)),
    }
    await world.claim(PolicyKey("a", other))
    await world.verdict(node, metadata["uid"], policies)
    await eventually(has(world, node, other, VIOLATING))
    await settled(world, labels)
    assert (await world.labels(node))[name] == VIOLATING
    await world.record(key, stored)
    await eventually(has(world, node, name, None))


async def test_an_orphan_whose_list_of_policies_is_too_slow_delays_no_other_label(
    sandbox: Sandbox, world: World, labels: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.kubernetes.client.WRITE_SECONDS", 1.0)
    sandbox.faults.delay(1.2, which=ours("list", "taspolicies"), times=10**6)
    orphan = f"telemetry.aware.scheduling.{world.name('gone')}/card"
    node, name = await world.node(**{orphan: "card0"}), world.name()
    await eventually(lambda: labels.count("tas_label_patches_total", result="expired") > 0)
    await world.policy(await world.namespace(), name, deschedule())
    await world.sample(node, health=1)
    await world.evaluate(node)
    await eventually(has(world, node, name, VIOLATING))
    assert (await world.labels(node))[orphan] == "card0"
    sandbox.faults.clear()
    await eventually(has(world, node, orphan, None))
    assert (await world.labels(node))[name] == VIOLATING
