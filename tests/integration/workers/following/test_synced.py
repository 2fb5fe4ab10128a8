"""`_synced` of a bucket: written once for each list that differs, and read with the list."""

from datetime import UTC, datetime
from functools import partial

from bus.buckets import NODES, SYNCED
from bus.connection import Bus
from bus.kinds import NODE_FACTS, synced_of
from bus.records.codec import encode
from bus.records.nodes import NodeFacts
from bus.records.synced import Synced
from tests.integration.servers import answered, eventually
from tests.integration.watched import meanwhile
from tests.integration.workers.running import epoch_on, put
from workers.following.synced import SyncedWatch, write_synced


async def test_a_list_is_reported_again_only_if_its_count_or_its_source_differs(bus: Bus) -> None:
    """A list from no cluster must not stay reported after a cluster has given one: `labels` would never be ready."""
    epoch, revisions = await epoch_on(bus, NODES), []
    for count, cluster in ((0, False), (0, False), (0, True), (2, True), (2, True)):
        await answered(partial(write_synced, bus, NODES, epoch, count=count, writer="test", cluster=cluster))
        entry = await answered(lambda: synced_of(NODES).get(bus, SYNCED))
        synced = entry.readable()
        assert synced is not None
        assert (synced.epoch, synced.count, synced.cluster) == (epoch.created, count, cluster)
        revisions.append(entry.revision)
    first, again, of_cluster, more, more_again = revisions
    assert first == again < of_cluster < more == more_again


async def test_a_list_is_complete_once_all_that_is_stored_was_read(bus: Bus) -> None:
    """A key that was written again after `_synced` is delivered after `_synced`."""
    await listed(bus, (await epoch_on(bus, NODES)).created)
    for number in range(3):
        await put(bus, NODES, NODE_FACTS.key(f"node-{number}"), encode(NodeFacts(uid="u", labels={})))
    read: list[str] = []
    at_completion: list[int] = []
    watch = SyncedWatch(
        bus,
        NODE_FACTS.to(lambda entry: read.append(entry.key)),
        on_epoch=lambda _: None,
        on_complete=lambda _: at_completion.append(len(read)),
    )
    async with meanwhile(watch.run()):
        await eventually(lambda: watch.unready() is None)
    assert at_completion == [3]


async def test_a_list_of_an_earlier_epoch_is_not_complete(bus: Bus) -> None:
    await listed(bus, "earlier")
    watch = SyncedWatch(bus, bucket=NODES, on_epoch=lambda _: None, on_complete=lambda _: None)
    async with meanwhile(watch.run()):
        await eventually(lambda: watch.status.caught_up)
        assert "no complete list" in (watch.unready() or "")
        await listed(bus, (await epoch_on(bus, NODES)).created)
        await eventually(lambda: watch.unready() is None)


async def listed(bus: Bus, epoch: str) -> None:
    synced = Synced(epoch=epoch, count=0, time=datetime.now(UTC), writer="test", cluster=True)
    await put(bus, NODES, SYNCED, encode(synced))
