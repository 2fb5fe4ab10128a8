"""What the probes by HTTP share: errors as reasons, and the clock of a server."""

from collections.abc import Awaitable
from email.utils import parsedate_to_datetime
from typing import TypeVar

import aiohttp

from cli.doctor.probes import PROBE_SECONDS, probed
from tas.diagnosis.clocks import Offset
from tas.diagnosis.finding import Missing
from workers.http.body import TooLargeError, failed_request
from workers.kubernetes.errors import KubernetesError

T = TypeVar("T")


class _RequestError(Exception):
    """A request failed, for this reason."""


_ERRORS = (_RequestError, KubernetesError, TooLargeError)


async def requested(
    call: Awaitable[T], *, mend: str = "", run: str = "", seconds: float = PROBE_SECONDS
) -> T | Missing:
    """As `probed`, for a call with requests to an API server, an extender or a monitor."""
    return await probed(_named(call), mend=mend, run=run, seconds=seconds, errors=_ERRORS)


async def _named(call: Awaitable[T]) -> T:
    """The result of `call`. Raises _RequestError with the reason of a request that failed."""
    try:
        return await call
    except TimeoutError:  # which may be an error of aiohttp, too
        raise
    except aiohttp.ClientError as error:
        raise _RequestError(failed_request(error)) from error


def offset_of(date: str, asked: float, answered: float) -> Offset | Missing:
    """The clock of a server by the header `Date` of its answer, which has whole seconds.

    `asked` and `answered` are the times of this machine, in seconds since 1970.
    """
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return Missing("the answer has no date")
    return Offset(ahead=theirs + 0.5 - (asked + answered) / 2, doubt=0.5 + (answered - asked) / 2)
