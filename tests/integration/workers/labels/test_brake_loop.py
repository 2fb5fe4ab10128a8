"""Pause, breakers and the flap budget, with the sandbox and a real nats-server."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bus.buckets import BREAKERS, PAUSED, SYNCED
from bus.connection import Bus
from bus.feed import Feed
from bus.kinds import BREAKER_RECORDS, PAUSE_RECORDS, synced_of
from cli.pause import TRIES, _pause, _reset, _resume
from lab.sandbox.resources import NODES
from tas.enforcing.brake import BrakeSettings
from tas.enforcing.limits import DefaultLimit
from tas.policy.policy import LABEL_PREFIX, PolicyKey
from tas.verdict.freeze import ALL, Breaker, Trip
from tests.integration.servers import Server, answered, eventually
from tests.kubernetes.admin import Admin
from tests.kubernetes.label_fixtures import Running, labels, labels_running, world
from tests.kubernetes.label_scenarios import VIOLATING, has, received
from tests.kubernetes.world import World, deschedule, labeling, rule
from tests.sandbox import Call, Sandbox
from workers.kubernetes.client import Change, KubernetesClient
from workers.kubernetes.resources import Resource

__all__ = ["labels", "world"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The requests about BREAKERS that read something, by the verb of the JetStream API."""
    found: Counter[str] = Counter()
    ask = Bus.api

    async def counted(bus: Bus, verb: str, body: dict[str, Any] | None = None, **limit: float) -> dict[str, Any]:
        verb_only, _, stream = verb.rpartition(".")
        found[verb_only] += stream == BREAKERS.stream
        return await ask(bus, verb, body, **limit)

    monkeypatch.setattr(Bus, "api", counted)
    return found


async def breaker(world: World, key: str) -> Breaker:
    entry = await answered(partial(BREAKER_RECORDS.get, world.bus, key))
    return entry.readable() or Breaker()


async def wait_for_trip(world: World, key: str) -> None:
    async def is_tripped() -> bool:
        return (await breaker(world, key)).trip is not None

    await eventually(is_tripped)


async def is_complete(world: World) -> bool:
    """Whether `_synced` says that the freezes of this epoch are complete."""
    epoch = await answered(partial(world.bus.epoch, BREAKERS))
    synced = (await answered(partial(synced_of(BREAKERS).get, world.bus, SYNCED))).readable()
    return synced is not None and synced.epoch == epoch.created


async def nodes_of(world: World, count: int) -> list[str]:
    return [await world.node(f"node-{number}") for number in range(count)]


async def postponed_or_labelled(world: World, labels: Running, node: str, policy: str) -> None:
    """Waits until a node has a label, or waits until it may be admitted."""
    queue, brake = labels.worker._queue, labels.worker._brake.state

    async def is_decided() -> bool:
        is_postponed = not queue._busy and node in brake.asked and not brake._is_relisted
        return is_postponed or not await world.has(node, policy, None)

    await eventually(is_decided)


async def sampled(world: World, nodes: Sequence[str], **metrics: int) -> None:
    for node in nodes:
        await world.sample(node, **metrics)
        await world.evaluate(node)


def labelled(sandbox: Sandbox, name: str) -> int:
    return sum(name in node["metadata"].get("labels", {}) for node in sandbox.cluster.store.items(NODES))


async def test_a_breaker_trips_before_one_label_too_many_freezes_and_is_reset_by_level(
    world: World, labels: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, (first, second, third) = world.name(), await nodes_of(world, 3)
    await world.policy(await world.namespace(), name, deschedule(), breaker={"maxNodes": 2})
    await sampled(world, [first, second], health=1)
    for node in (first, second):
        await eventually(has(world, node, name, VIOLATING))
    await eventually(lambda: labels.count("tas_labelled_nodes") == 2)
    await sampled(world, [third], health=1)
    await wait_for_trip(world, name)
    await eventually(lambda: labels.count("tas_breakers_tripped") == 1)
    trip = (await breaker(world, name)).trip
    assert trip is not None
    assert (trip.limit, trip.wanted, trip.selected) == (2, 3, 3)
    await eventually(lambda: labels.count("tas_breaker_trips_total") == 1)
    await sampled(world, [first], health=0)
    await labels.caught_up()
    await labels.idle()
    assert await world.has(first, name, VIOLATING)  # neither removed nor set
    assert await world.has(third, name, None)
    # However slow this machine is, the first node makes room before the third one trips the breaker again.
    monkeypatch.setattr("tas.enforcing.brake.PATIENCE_SECONDS", 600.0)
    assert await TRIES.of(lambda: _reset(world.bus, name)) == 0
    await eventually(has(world, first, name, None))
    await eventually(has(world, third, name, VIOLATING))
    assert (await breaker(world, name)).trip is None
    assert labels.count("tas_breaker_trips_total") == 1


async def test_two_replicas_of_which_one_ends_label_no_node_beyond_the_limit(
    sandbox: Sandbox, world: World, kubeconfig: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.reconcile.lease_first.HOLD_BACK_SECONDS", 0.0)  # both act at once
    name, nodes = world.name(), await nodes_of(world, 12)
    counts: list[int] = []

    def count(_: object) -> bool:
        counts.append(labelled(sandbox, name))
        return False

    brake = BrakeSettings(policy=DefaultLimit(0, 3), over_all=None)
    async with AsyncExitStack() as first, labels_running(kubeconfig, server.url, brake=brake) as second:
        await first.enter_async_context(labels_running(kubeconfig, server.url, brake=brake))
        await world.policy(await world.namespace(), name, deschedule())
        sandbox.faults.answer(500, which=count)  # counts before each request
        await sampled(world, nodes[:2], health=1)
        await eventually(lambda: labelled(sandbox, name) == 2)
        await sampled(world, nodes[2:4], health=1)
        await first.aclose()
        await sampled(world, nodes[4:], health=1)
        await wait_for_trip(world, name)
        await second.idle()
    assert max(counts) in (2, 3)
    assert labelled(sandbox, name) in (2, 3)


async def test_an_old_admission_is_worth_nothing_when_users_have_labelled_other_nodes_since(
    world: World, kubeconfig: Path, server: Server
) -> None:
    """A replica that ended between its admission and its patch leaves the admission behind."""
    name, (first, second, third) = world.name(), await nodes_of(world, 3)
    await world.policy(await world.namespace(), name, deschedule(), breaker={"maxNodes": 2})
    version = int((await world.admin.get(f"/api/v1/nodes/{first}"))["metadata"]["resourceVersion"])
    admitted = Breaker(nodes={first: version})
    await answered(lambda: BREAKER_RECORDS.put(world.bus, name, admitted, revision=0, read_at=time.monotonic()))
    for node in (second, third):
        await world.admin.label_node(node, {name: VIOLATING})
    await sampled(world, [first, second, third], health=1)
    # Without the breaker over all policies, which would have the node admitted anew in any case.
    brake = BrakeSettings(over_all=None)
    async with labels_running(kubeconfig, server.url, brake=brake) as labels:
        await wait_for_trip(world, name)
        trip = (await breaker(world, name)).trip
        assert trip is not None
        assert (trip.limit, trip.wanted) == (2, 3)
        await labels.idle()
        assert await world.has(first, name, None)
        # A reset changes nothing, as long as as many nodes have the label.
        assert await TRIES.of(lambda: _reset(world.bus, name)) == 0
        await eventually(lambda: labels.count("tas_breaker_trips_total") == 2)
        assert await world.has(first, name, None)
        await world.admin.label_node(third, {name: None})
        await sampled(world, [third], health=0)
        assert await TRIES.of(lambda: _reset(world.bus, name)) == 0
        await eventually(has(world, first, name, VIOLATING))


@pytest.mark.parametrize("is_admitted", [True, False], ids=["admitted before", "new"])
@pytest.mark.parametrize("counts", [True, False], ids=["of a policy", "of others"])
async def test_over_all_policies_the_labels_of_policies_take_room_and_those_of_others_take_none(
    world: World, kubeconfig: Path, server: Server, counts: bool, is_admitted: bool
) -> None:
    """For a node that is admitted now as for one that another replica has admitted. Others set `violating`, too."""
    p, q, others = world.name("p"), world.name("q"), world.name("others")
    first, second, third = await nodes_of(world, 3)
    namespace = await world.namespace()
    for name in (p, q):
        await world.policy(namespace, name, deschedule())
    version = int((await world.admin.get(f"/api/v1/nodes/{first}"))["metadata"]["resourceVersion"])
    before = Breaker(nodes={first: version}) if is_admitted else Breaker()
    await answered(lambda: BREAKER_RECORDS.put(world.bus, ALL, before, revision=0, read_at=time.monotonic()))
    await world.admin.label_node(second, {p: VIOLATING})
    await world.admin.label_node(third, {q if counts else others: VIOLATING})
    await sampled(world, [first, second, *([third] if counts else [])], health=1)
    brake = BrakeSettings(policy=None, over_all=DefaultLimit(0, 2))
    async with labels_running(kubeconfig, server.url, brake=brake) as labels:
        if counts:
            await wait_for_trip(world, ALL)
            trip = (await breaker(world, ALL)).trip
            assert trip is not None
            assert (trip.limit, trip.wanted, trip.selected) == (2, 3, 3)
            await labels.idle()
            assert await world.has(first, p, None)
        else:
            await eventually(has(world, first, p, VIOLATING))
            assert (await breaker(world, ALL)).trip is None


async def test_a_lowered_limit_counts_at_once_for_what_was_admitted_before(
    world: World, kubeconfig: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tas.enforcing.limits.LIMIT_SECONDS", 3600.0)
    name, (first, second, third) = world.name(), await nodes_of(world, 3)
    limited = partial(world.policy, await world.namespace(), name, deschedule())
    await limited(breaker={"maxNodes": 3})
    version = int((await world.admin.get(f"/api/v1/nodes/{first}"))["metadata"]["resourceVersion"])
    admitted = Breaker(nodes={first: version})
    await answered(lambda: BREAKER_RECORDS.put(world.bus, name, admitted, revision=0, read_at=time.monotonic()))
    await world.admin.label_node(second, {name: VIOLATING})
    await sampled(world, [second], health=1)
    async with labels_running(kubeconfig, server.url, brake=BrakeSettings(over_all=None)) as labels:
        await sampled(world, [third], health=1)
        await eventually(has(world, third, name, VIOLATING))
        await limited(breaker={"maxNodes": 2})
        await labels.caught_up()
        await sampled(world, [first], health=1)
        await wait_for_trip(world, name)
        assert await world.has(first, name, None)


async def test_the_limit_of_a_younger_policy_of_the_name_in_another_namespace_trips_no_breaker(
    world: World, labels: Running
) -> None:
    name, nodes = world.name(), await nodes_of(world, 2)
    await world.policy(await world.namespace("a"), name, deschedule(), breaker={"maxNodes": 1})
    older = {"uid": "older", "generation": 1, "creationTimestamp": "2020-01-01T00:00:00Z"}
    spec = {"strategies": deschedule(), "breaker": {"maxNodes": 2}}
    await world.record(PolicyKey("b", name), {"metadata": older, "spec": spec})
    await sampled(world, nodes, health=1)
    for node in nodes:
        await eventually(has(world, node, name, VIOLATING))
    assert (await breaker(world, name)).trip is None


async def test_a_node_is_admitted_again_for_the_labels_that_a_refused_patch_has_left(
    sandbox: Sandbox, world: World, labels: Running
) -> None:
    first, second, (node,) = world.name("a"), world.name("b"), await nodes_of(world, 1)
    namespace = await world.namespace()
    for name in (first, second):
        await world.policy(namespace, name, deschedule())
    await labels.caught_up()  # with both policies, so the first patch has both labels
    sandbox.faults.answer(422, which=lambda call: (call.verb, call.resource) == ("patch", "nodes"))
    await sampled(world, [node], health=1)
    for name in (first, second):
        await eventually(has(world, node, name, VIOLATING))
    await labels.idle()
    assert labels.count("tas_label_patches_total", result="patched") == 2
    patched_at = (await breaker(world, first)).nodes[node]
    assert (await breaker(world, second)).nodes[node] > patched_at, "the first patch gave the node a later version"


async def test_the_breaker_over_all_policies_freezes_all_of_them(
    world: World, kubeconfig: Path, server: Server
) -> None:
    async with labels_running(kubeconfig, server.url, brake=BrakeSettings(over_all=DefaultLimit(0, 1))) as labels:
        p, q, (first, second) = world.name("p"), world.name("q"), await nodes_of(world, 2)
        namespace = await world.namespace()
        await world.policy(namespace, p, deschedule())
        await world.policy(namespace, q, deschedule())
        await sampled(world, [first], health=1)
        await eventually(has(world, first, p, VIOLATING))
        await eventually(has(world, first, q, VIOLATING))
        await sampled(world, [second], health=1)
        await wait_for_trip(world, ALL)
        await eventually(lambda: labels.count("tas_breakers_tripped") == 1)
        assert (await breaker(world, p)).trip is None
        await sampled(world, [first], health=0)
        await labels.caught_up()
        await labels.idle()
        assert await world.has(first, p, VIOLATING)
        assert await world.has(second, q, None)


async def test_a_policy_whose_name_begins_as_labels_of_labeling_do_holds_no_first_label_back(
    world: World, labels: Running
) -> None:
    """Its label would have the breaker of no name, which nobody can store, and so no round would ever be answered."""
    name, odd, (node,) = world.name(), f"{LABEL_PREFIX}{world.name()}", await nodes_of(world, 1)
    namespace = await world.namespace()
    for each in (odd, name):
        await world.policy(namespace, each, deschedule())
    await sampled(world, [node], health=1)
    await eventually(has(world, node, name, VIOLATING))
    await labels.idle()
    assert await world.has(node, odd, None)
    assert not labels.worker._brake.state.asked


async def test_while_paused_no_label_changes_and_a_wiped_bus_does_not_end_the_pause(
    world: World, labels: Running, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.labels.breaker_records.IN_FLIGHT_SECONDS", 0.5)
    name, (first, second) = world.name(), await nodes_of(world, 2)
    namespace = await world.namespace()
    await world.policy(namespace, name, deschedule())
    await sampled(world, [first], health=1)
    await eventually(has(world, first, name, VIOLATING))
    assert await answered(partial(_pause, world.bus, "upgrade")) == 0
    await eventually(lambda: labels.count("tas_labels_paused") == 1)
    await server.restart(wiped=True)
    await world.bus.wait_connected()

    async def is_written_again() -> bool:
        entry = await answered(partial(PAUSE_RECORDS.get, world.bus, PAUSED))
        pause = entry.readable()
        return pause is not None and pause.reason == "upgrade"

    await eventually(is_written_again)
    await eventually(partial(is_complete, world))  # `labels` knew all freezes, so it waits for no other replica
    paused = await answered(partial(PAUSE_RECORDS.get, world.bus, PAUSED))
    synced = await answered(partial(synced_of(BREAKERS).get, world.bus, SYNCED))
    assert 0 < paused.revision < synced.revision
    await world.begin()
    for node in (first, second):
        await world.facts(node, await world.admin.get(f"/api/v1/nodes/{node}"))
    await world.policy(namespace, name, deschedule())
    await sampled(world, [first], health=0)
    await sampled(world, [second], health=1)
    await eventually(lambda: labels.worker.unready() is None)
    await labels.caught_up()
    await labels.idle()
    assert await world.has(first, name, VIOLATING)
    assert await world.has(second, name, None)
    assert await answered(partial(_resume, world.bus)) == 0
    await eventually(has(world, first, name, None))
    await eventually(has(world, second, name, VIOLATING))


async def test_a_replica_that_knows_no_earlier_freezes_waits_before_it_calls_them_complete(
    bus: Bus, kubeconfig: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Admin.connect(kubeconfig) as admin:
        world = World(admin, bus)
        await world.begin(freezes=False)
        for seconds, writes in ((600.0, False), (0.3, True)):
            monkeypatch.setattr("workers.labels.breaker_records.STRANGER_SECONDS", seconds)
            async with labels_running(kubeconfig, server.url) as labels:
                if writes:
                    await eventually(partial(is_complete, world))
                else:
                    await labels.idle()
                    assert labels.worker.unready() is None
                    assert not await is_complete(world)


async def test_after_a_loss_of_the_records_the_labels_of_the_nodes_count(
    world: World, labels: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.labels.breaker_records.IN_FLIGHT_SECONDS", 0.5)
    name, (first, second, third) = world.name(), await nodes_of(world, 3)
    await world.policy(await world.namespace(), name, deschedule(), breaker={"maxNodes": 2})
    await sampled(world, [first, second], health=1)
    for node in (first, second):
        await eventually(has(world, node, name, VIOLATING))
    await world.bus.api(f"STREAM.DELETE.{BREAKERS.stream}")
    await sampled(world, [third], health=1)
    await wait_for_trip(world, name)
    assert (await breaker(world, name)).nodes.keys() == {first, second}
    assert await world.has(third, name, None)


async def test_a_patch_from_before_a_wipe_counts_for_a_replica_that_starts_after_it(
    sandbox: Sandbox, world: World, kubeconfig: Path, server: Server
) -> None:
    name, (first, second) = world.name(), await nodes_of(world, 2)
    namespace = await world.namespace()
    limited = partial(world.policy, namespace, name, deschedule(), breaker={"maxNodes": 1})
    await limited()
    released = sandbox.faults.hold(which=lambda call: call.verb == "patch" and call.resource == "nodes")
    async with labels_running(kubeconfig, server.url):
        await sampled(world, [first], health=1)
        await eventually(lambda: sandbox.faults.waiting == 0)  # the patch is on its way
    await server.restart(wiped=True)
    await world.bus.wait_connected()
    await world.begin()
    for node in (first, second):
        await world.facts(node, await world.admin.get(f"/api/v1/nodes/{node}"))
    await limited()
    await sampled(world, [second], health=1)
    async with labels_running(kubeconfig, server.url, brake=BrakeSettings(new_bus_wait=30.0)) as labels:
        await postponed_or_labelled(world, labels, second, name)
        assert await world.has(second, name, None)
        assert await world.has(first, name, None), "the patch has arrived too early to be a hard case"
        released.set()
        await eventually(has(world, first, name, VIOLATING))
        labels.worker._brake.lose_records(0.0)  # the 30 s are over
        await eventually(lambda: labels.worker._brake.state._is_relisted)
        labels.worker._brake.add_all()
        await wait_for_trip(world, name)
        assert await world.has(second, name, None)


async def test_a_list_of_nodes_that_was_requested_before_the_end_of_the_wait_admits_nobody(
    sandbox: Sandbox, labels: Running
) -> None:
    """Such a list may not show a patch that arrived after the API server had made the list."""

    def is_list(call: Call) -> bool:
        return (call.verb, call.resource, call.user_agent) == ("list", "nodes", "tas-on-nats/labels")

    nodes, brake = labels.worker._followed, labels.worker._brake
    listed = nodes.listed
    early = sandbox.faults.hold(which=is_list)
    nodes.relist()
    await eventually(lambda: sandbox.faults.waiting == 0)  # it is requested
    late = sandbox.faults.hold(which=is_list)
    brake.lose_records(0.0)
    early.set()
    await eventually(lambda: nodes.listed > listed)
    assert not brake.state._is_relisted
    late.set()
    await eventually(lambda: brake.state._is_relisted)


async def test_a_replica_that_starts_waits_only_while_the_bus_is_young(
    world: World, kubeconfig: Path, server: Server
) -> None:
    name, (node,) = world.name(), await nodes_of(world, 1)
    await world.policy(await world.namespace(), name, deschedule())
    await sampled(world, [node], health=1)
    age = (await answered(partial(world.bus.epoch, BREAKERS))).age
    async with labels_running(kubeconfig, server.url, brake=BrakeSettings(new_bus_wait=age + 600)) as labels:
        await postponed_or_labelled(world, labels, node, name)
        assert await world.has(node, name, None)
    async with labels_running(kubeconfig, server.url, brake=BrakeSettings(new_bus_wait=age)):
        await eventually(has(world, node, name, VIOLATING))


async def test_a_burst_of_nodes_costs_few_reads_and_writes(
    sandbox: Sandbox, world: World, kubeconfig: Path, server: Server, reads: Counter[str]
) -> None:
    first, second, nodes = world.name("a"), world.name("b"), await nodes_of(world, 40)
    namespace = await world.namespace()
    for name in (first, second):
        await world.policy(namespace, name, deschedule())
    await sampled(world, nodes, health=1)  # all are waiting when `labels` starts
    brake = BrakeSettings(policy=DefaultLimit(100, 1), over_all=DefaultLimit(100, 1))
    async with labels_running(kubeconfig, server.url, brake=brake) as labels:
        await eventually(lambda: labelled(sandbox, first) == labelled(sandbox, second) == len(nodes))
        await labels.idle()
        assert not reads["STREAM.MSG.GET"], "while the watch is not behind, no record is read"
        assert 1 <= reads["STREAM.INFO"] <= len(nodes) // 2
        for name in (first, second):
            assert (await breaker(world, name)).nodes.keys() == set(nodes)
        entry = await answered(partial(world.bus.epoch, BREAKERS))
        info = await answered(partial(world.bus.api, f"STREAM.INFO.{BREAKERS.stream}"))
        written = entry.last_sequence - info["config"]["first_seq"] + 1
        assert 3 <= written <= len(nodes)


async def test_a_pause_and_a_trip_that_the_watch_has_not_delivered_are_read(
    world: World, labels: Running, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, other, (node,) = world.name("a"), world.name("b"), await nodes_of(world, 1)
    namespace = await world.namespace()
    receive = Feed._receive
    monkeypatch.setattr(
        Feed, "_receive", lambda feed, message: "" if feed._bucket is BREAKERS else receive(feed, message)
    )
    for each in (name, other):
        await world.policy(namespace, each, deschedule())
    tripped = Breaker(trip=Trip(since=1.0, limit=1, wanted=2, selected=2))
    await answered(lambda: BREAKER_RECORDS.put(world.bus, other, tripped, revision=0, read_at=time.monotonic()))
    await sampled(world, [node], health=1)
    await eventually(has(world, node, name, VIOLATING))
    assert reads["STREAM.MSG.GET"] > 0
    assert await answered(partial(_pause, world.bus, "upgrade")) == 0
    await eventually(lambda: labels.worker._brake._records._is_old([name]))  # until then a permit is given unread
    await sampled(world, [node], health=0)
    await eventually(lambda: labels.count("tas_labels_paused") == 1)
    await labels.idle()
    assert await world.has(node, name, VIOLATING)
    assert await world.has(node, other, None)


async def test_an_oscillation_costs_at_most_the_flap_budget(world: World, kubeconfig: Path, server: Server) -> None:
    async with labels_running(kubeconfig, server.url, brake=BrakeSettings(flap_budget=4)) as labels:
        name, (node,) = world.name(), await nodes_of(world, 1)
        await world.policy(await world.namespace(), name, deschedule())
        for turn in range(4):
            await sampled(world, [node], health=(turn + 1) % 2)
            await eventually(has(world, node, name, None if turn % 2 else VIOLATING))
        for turn in range(4):
            await sampled(world, [node], health=(turn + 1) % 2)
            await labels.caught_up()
            await labels.idle()
        assert labels.count("tas_label_patches_total", result="patched") == 4
        assert labels.count("tas_labels_flapping") == 1
        assert list(labels.worker.concerns()) == ["1 label of a policy on a node is set and removed again and again"]
        assert await world.has(node, name, None)


async def test_a_node_is_handled_again_when_the_flap_budget_allows_what_a_conflict_has_shown(
    world: World, kubeconfig: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read of the node after the conflict shows the change that uses the budget up; the watch brings no other."""
    name, (node,) = world.name(), await nodes_of(world, 1)
    label = f"{LABEL_PREFIX}{name}/k"
    await world.policy(await world.namespace(), name, labeling(rule("health", 1, "Equals", "k=v")))
    async with labels_running(kubeconfig, server.url, brake=BrakeSettings(flap_budget=2)) as labels:
        await sampled(world, [node], health=1)
        await eventually(has(world, node, label, "v"))
        await received(world, labels)
        await labels.idle()
        follower, merge_patch = labels.worker._followed.follower, KubernetesClient.merge_patch
        deliver, held, changed = follower.change, list[Change[Any]](), asyncio.Event()
        monkeypatch.setattr(follower, "change", held.append)  # the watch is behind from here on

        async def sent_late(self: KubernetesClient, resource: Resource[Any], of: str, *args: Any, **more: Any) -> Any:
            if of == node and not changed.is_set():
                await world.admin.label_node(node, {label: "x"})
                await eventually(lambda: any(each.object.metadata.name == node for each in held))
                changed.set()
            return await merge_patch(self, resource, of, *args, **more)

        monkeypatch.setattr(KubernetesClient, "merge_patch", sent_late)
        await sampled(world, [node], health=0)
        await labels.caught_up()
        await eventually(lambda: labels.count("tas_label_patches_total", result="conflict") == 1)
        await labels.idle()
        for change in held:
            deliver(change)
        await labels.idle()
        assert await world.has(node, label, "x")
        assert labels.worker._queue._due.when(node) is not None
