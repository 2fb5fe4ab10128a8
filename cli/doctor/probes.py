"""What all probes share: a time limit, and errors as reasons."""

import asyncio
from collections.abc import Awaitable
from email.utils import parsedate_to_datetime
from typing import TypeVar

import aiohttp

from bus.errors import BusError
from bus.records.codec import UNREADABLE
from tas.diagnosis.clocks import Offset
from tas.diagnosis.finding import Missing
from tas.errors import InvalidInputError
from workers.kubernetes.errors import KubernetesError
from workers.process.http_body import TooLargeError, failed_request
from workers.process.manifests import ManifestError

T = TypeVar("T")

PROBE_SECONDS = 15.0
"""How long one probe may take."""

REQUEST_SECONDS = 5.0
"""How long a request to an extender or a monitor may take."""

_ERRORS = (BusError, KubernetesError, InvalidInputError, ManifestError, TooLargeError, OSError, *UNREADABLE)


async def probed(call: Awaitable[T], *, mend: str = "", run: str = "", seconds: float = PROBE_SECONDS) -> T | Missing:
    """The result of `call`, or why there is none: `mend` and `run` make it known."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await call
    except TimeoutError:  # of all, or of one request
        return Missing(f"no answer within {seconds if limit.expired() else REQUEST_SECONDS:g} s", mend, run)
    except aiohttp.ClientError as error:
        return Missing(failed_request(error), mend, run)
    except _ERRORS as error:
        return Missing(str(error) or type(error).__name__, mend, run)


def offset_of(date: str, asked: float, answered: float) -> Offset | Missing:
    """The clock of a server by the header `Date` of its answer, which has whole seconds.

    `asked` and `answered` are the times of this machine, in seconds since 1970.
    """
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return Missing("the answer has no date")
    return Offset(ahead=theirs + 0.5 - (asked + answered) / 2, doubt=0.5 + (answered - asked) / 2)
