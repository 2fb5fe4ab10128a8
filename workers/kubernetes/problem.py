"""What is wrong with the requests for one resource, and when it is logged."""

from typing import NamedTuple

from tas.values.throttle import Throttle
from workers.kubernetes.errors import ForbiddenError, KubernetesError

LASTING_SECONDS = 10.0
"""A permission that is refused for so long is missing.

An API server that has just started refuses everything until it has read the roles.
"""


class Report(NamedTuple):
    """A problem to log. `suppressed`: how many like it were left out since the last one."""

    lasts: bool
    suppressed: int


class Problem:
    """The problem of one resource. Each kind is reported at once, then at intervals while it lasts.

    Times are in seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self._kind: tuple[type[KubernetesError], int, bool] | None = None
        self._refused_since: float | None = None
        self._throttle = Throttle()

    def failed(self, error: KubernetesError, now: float) -> Report | None:
        """Notes a failed request, and returns what to log; None for nothing.

        `lasts` is true for a permission that has been refused without a break for `LASTING_SECONDS`.
        """
        if not isinstance(error, ForbiddenError):
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        lasts = self._refused_since is not None and now - self._refused_since >= LASTING_SECONDS
        kind = (type(error), error.code, lasts)
        is_new, self._kind = self._kind != kind, kind
        suppressed = self._throttle.admit(kind, now)
        return Report(lasts, suppressed or 0) if is_new or suppressed is not None else None

    def ended(self) -> bool:
        """Notes that a request succeeded, and returns whether there was a problem."""
        was_known = self._kind is not None
        self._kind = self._refused_since = None
        return was_known
