"""When a key is handled again whose requests to the API server have failed."""

from workers.kubernetes.errors import ExpiredError, ThrottledError
from workers.reconcile.work_queue import RequeueError


def requeued(error: Exception) -> RequeueError:
    """What a handler raises after a failed request: all keys wait if the API server throttles."""
    pause = error.retry_after if isinstance(error, ThrottledError) else 0.0
    return RequeueError(str(error), pause=pause, too_slow=isinstance(error, ExpiredError))
