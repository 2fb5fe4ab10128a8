"""How one call is tried until it answers; the only module that knows tenacity.

A loop that never ends, or has a state of its own, uses `Backoff` alone (docs/decisions/2026-11-28-tenacity.md).
"""

# ruff: noqa: PLC0415 - asyncio and tenacity are imported by the first try: most processes never need one
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, NamedTuple, TypeVar

from bus.errors import ConflictError, ExpiredError, NobodyListensError, UnavailableError
from tas.values.backoff import Backoff

T = TypeVar("T")

STALE = (ConflictError, ExpiredError)
"""Nothing was written, because the read was too old: worth another try that begins with the read."""


def is_late(error: Exception) -> bool:
    """Whether a server only did not answer in time: it may answer the next question."""
    return isinstance(error, UnavailableError) and error.code is None and not isinstance(error, NobodyListensError)


class Tries(NamedTuple):
    """After which errors a call is tried again, how often, for how many seconds in all, and after which waits.

    In the end the result or error of the last try counts. `again` has types, or is a question about an error.
    """

    again: tuple[type[Exception], ...] | Callable[[Exception], bool] = ()
    times: float = inf
    within: float = inf
    wait: Backoff = Backoff(first=0.0, longest=0.0)

    async def of(self, call: Callable[[], Awaitable[T]], *, until: Callable[[T], bool] = lambda _: True) -> T:
        """The result of `call`, which is also tried again while `until(result)` is false.

        A try that hangs is cancelled after `within`: then the one before it counts, or else TimeoutError is raised.
        """
        import asyncio

        from tenacity import AsyncRetrying

        last: deque[Any] = deque(maxlen=1)

        async def once() -> T:  # tenacity would not wait for the result of a lambda
            return await call()

        try:
            async with asyncio.timeout(None if self.within == inf else self.within) as limit:
                retrying = AsyncRetrying(**self._policy(until), before_sleep=lambda state: last.append(state.outcome))
                return await retrying(once)
        except TimeoutError as error:
            if not limit.expired():
                raise
            if not last:
                raise TimeoutError(f"no answer within {self.within:g} s") from error
            return last[0].result()  # type: ignore[no-any-return]

    def blocking(self, call: Callable[[], T], *, until: Callable[[T], bool] = lambda _: True) -> T:
        """As `of`, without an event loop: so `call` must limit its own time."""
        from tenacity import Retrying

        return Retrying(**self._policy(until))(call)

    def _policy(self, until: Callable[[Any], bool]) -> dict[str, Any]:
        from tenacity import retry_if_exception, retry_if_not_result, stop_after_attempt, stop_before_delay

        return {
            "retry": retry_if_exception(self._is_worth_it) | retry_if_not_result(until),
            "stop": stop_after_attempt(self.times) | stop_before_delay(self.within),  # type: ignore[arg-type]
            "wait": lambda state: self.wait.after(state.attempt_number),
            "retry_error_callback": lambda state: state.outcome.result(),
        }

    def _is_worth_it(self, error: BaseException) -> bool:
        if isinstance(self.again, tuple):
            return isinstance(error, self.again)
        return isinstance(error, Exception) and self.again(error)  # else a cancellation, or Ctrl-C
