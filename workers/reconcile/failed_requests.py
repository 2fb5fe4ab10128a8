"""When a key is handled again whose requests to the API server or the bus have failed."""

from bus.connection import Bus
from bus.errors import BusError
from workers.kubernetes.errors import ExpiredError, ThrottledError
from workers.reconcile.work_queue import LOST_SECONDS, RequeueError


def requeued(error: Exception, bus: Bus) -> RequeueError:
    """What a handler raises after a failed request: all keys wait if the API server throttles, or without the bus."""
    pause = error.retry_after if isinstance(error, ThrottledError) else 0.0
    if isinstance(error, BusError) and not bus.connected:
        pause = LOST_SECONDS
    return RequeueError(str(error), pause=pause, too_slow=isinstance(error, ExpiredError))
