"""`_synced` of a bucket: written once for each list that differs."""

from functools import partial

from bus.buckets import NODES, SYNCED
from bus.connection import Bus
from bus.kinds import synced_of
from tests.integration.servers import answered
from tests.integration.workers.running import epoch_on
from workers.following.synced import write_synced


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
