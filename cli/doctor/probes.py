"""What all probes share: a time limit, and errors as reasons. Those of HTTP are in `cli.doctor.requests`."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from bus.errors import BusError
from bus.records.codec import UNREADABLE
from tas.diagnosis.finding import Missing
from tas.errors import InvalidInputError

T = TypeVar("T")

PROBE_SECONDS = 15.0
"""How long one probe may take."""

REQUEST_SECONDS = 5.0
"""How long a request to an extender or a monitor may take."""

_ERRORS = (BusError, InvalidInputError, OSError, *UNREADABLE)


async def probed(
    call: Awaitable[T],
    *,
    mend: str = "",
    run: str = "",
    seconds: float = PROBE_SECONDS,
    errors: tuple[type[Exception], ...] = (),
) -> T | Missing:
    """The result of `call`, or why there is none: `mend` and `run` make it known.

    `errors` are reasons beside those of the bus and of files; any other exception is raised.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await call
    except TimeoutError:  # of all, or of one request
        return Missing(f"no answer within {seconds if limit.expired() else REQUEST_SECONDS:g} s", mend, run)
    except _ERRORS + errors as error:
        return Missing(str(error) or type(error).__name__, mend, run)
