"""How long a whole queue waits after a request that has failed, on a real bus."""

from bus.connection import Bus
from bus.errors import UnavailableError
from tests.integration.servers import Server, eventually
from workers.kubernetes.errors import KubernetesError
from workers.reconcile.failed_requests import requeued
from workers.reconcile.work_queue import LOST_SECONDS


async def test_without_the_bus_all_keys_wait_whose_handler_needs_it(bus: Bus, server: Server) -> None:
    """Each handler finds that out only after work of its own: 1,400 nodes of `labels` took half a processor."""
    of_bus, of_kubernetes = UnavailableError("no answer"), KubernetesError("no answer")
    assert requeued(of_bus, bus).pause == 0.0
    await server.stop()
    await eventually(lambda: not bus.connected)
    assert requeued(of_bus, bus).pause == LOST_SECONDS
    assert requeued(of_kubernetes, bus).pause == 0.0
