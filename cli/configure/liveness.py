"""Asks the scheduler of this machine whether it is alive."""

import hashlib
import ssl
import time
from collections.abc import Sequence
from functools import partial
from http.client import HTTPException, HTTPSConnection
from typing import NamedTuple

import click

from bus.trying import Tries
from cli.configure.errors import ConfigureError, SomeNotRestoredError
from cli.configure.files import NotRestoredError, Step, undone
from tas.configuring.restart import Restart
from tas.values.backoff import Backoff

STEADY_SECONDS = 3.0
_TIMEOUT_SECONDS = 5.0
_TRIES = Tries(times=3)
_POLL = Tries(wait=Backoff(first=0.2, longest=0.2))


class Sight(NamedTuple):
    """An answer of the scheduler.

    Attributes:
        problem: Why it is not alive; None: it is.
        certificate: A digest of the certificate that it presented; None: it presented none.
        is_slow: Whether it did not answer in time: on a busy machine it may be alive.
    """

    problem: str | None
    certificate: str | None
    is_slow: bool = False


def livez_option() -> click.Option:
    """Where the scheduler says that it is alive."""
    return click.Option(
        ["--livez"], metavar="HOST:PORT", default="127.0.0.1:10259", show_default=True,
        help="Where the scheduler serves /livez.",
    )  # fmt: skip


def look(address: str) -> Sight:
    """Asks a scheduler for /livez, or /healthz where it has no /livez."""
    # Only the answer counts: the scheduler signs its certificate itself.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    certificate: str | None = None
    try:
        connection = HTTPSConnection(address, timeout=_TIMEOUT_SECONDS, context=context)
    except HTTPException as error:
        raise click.UsageError(f"--livez {address}: {error}") from error
    try:
        for path in ("/livez", "/healthz"):
            connection.request("GET", path)
            if isinstance(connection.sock, ssl.SSLSocket):
                certificate = hashlib.sha256(connection.sock.getpeercert(binary_form=True) or b"").hexdigest()
            answer = connection.getresponse()
            answer.read()
            if answer.status != 404:
                return Sight(None if answer.status == 200 else f"code {answer.status}", certificate)
    except (OSError, HTTPException) as error:
        return Sight(str(error) or type(error).__name__, certificate, is_slow=isinstance(error, TimeoutError))
    else:
        return Sight("code 404", certificate)
    finally:
        connection.close()


def look_before(address: str) -> Sight:
    """As `look`, before a change: asked again while a slow scheduler does not even show its certificate."""
    return _TRIES.blocking(partial(look, address), until=lambda sight: bool(sight.certificate) or not sight.is_slow)


def wait_for_restart(
    address: str, before: Sight, steps: Sequence[Step], *, seconds: float, own_certificate: bool
) -> float:
    """Waits until the scheduler has started again, and returns the seconds until then.

    Raises ConfigureError if it does not within this time; then all files are restored. Raises SomeNotRestoredError.
    """
    restart = Restart(before.certificate, own_certificate=own_certificate, steady=STEADY_SECONDS)
    began = time.monotonic()

    def is_back(sight: Sight) -> bool:
        return restart.saw(time.monotonic(), None if sight.problem else sight.certificate, is_slow=sight.is_slow)

    sight = _POLL._replace(within=seconds).blocking(partial(look, address), until=is_back)
    if is_back(sight):
        return time.monotonic() - began
    problem = sight.problem or "it has not started again"
    reason = f"the scheduler does not answer at {address} after {seconds:g} s: {problem}"
    try:
        undone(steps)
    except NotRestoredError as error:
        raise SomeNotRestoredError(f"{reason}; {error}") from error
    raise ConfigureError(f"{reason}; every file is as before")
