"""The extender beside a bus that loses all it had: it was ready, so it answers from the last view."""

from functools import partial
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import NODES, POLICIES
from bus.connection import Bus
from tests.e2e.processes import free_ports
from tests.integration.bus.limits import long_limits
from tests.integration.servers import answered, eventually
from tests.integration.workers.running import epoch_on, running
from workers.extender.worker import ExtenderWorker
from workers.following.followed_view import FollowedView
from workers.following.synced import write_synced
from workers.http.address import Address
from workers.scheduler.server import SchedulerServer

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

ASK = {"Pod": {"metadata": {"name": "p", "namespace": "n"}}, "Nodes": None, "NodeNames": ["a"]}


async def test_once_ready_it_answers_also_while_the_lists_of_a_new_epoch_are_incomplete(bus: Bus) -> None:
    listen = Address("127.0.0.1", *free_ports(1))
    followed = FollowedView(bus, default_stale_after=60.0)
    registry = CollectorRegistry()
    worker = ExtenderWorker(bus, followed, SchedulerServer("extender", listen, registry), registry=registry)

    async def filtered(session: aiohttp.ClientSession) -> tuple[int, Any]:
        async with session.post(f"http://{listen}/scheduler/filter", json=ASK) as answer:
            return answer.status, (await answer.json()).get("NodeNames")

    async with running(worker), aiohttp.ClientSession() as session:

        async def listens() -> bool:
            try:
                return (await filtered(session))[0] == 503
            except aiohttp.ClientConnectionError:
                return False

        await eventually(listens)
        for bucket in (NODES, POLICIES):
            epoch = await epoch_on(bus, bucket)
            await answered(partial(write_synced, bus, bucket, epoch, count=0, writer="test", cluster=True))
        await eventually(followed.completed.is_set)
        assert await filtered(session) == (200, ["a"])
        for bucket in (NODES, POLICIES):
            before = followed.watches[bucket.name].epoch
            await answered(partial(bus.api, f"STREAM.DELETE.{bucket.stream}"))
            await eventually(lambda name=bucket.name, before=before: followed.watches[name].epoch is not before)  # type: ignore[misc]
        assert followed.unready() is not None
        assert await filtered(session) == (200, ["a"])
