"""The certificates in force: they follow their files, and say who may ask."""

import asyncio
import datetime as dt
import time
from collections.abc import Callable, Collection
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from tas.errors import shortened
from workers.logs import Throttle
from workers.tls import (
    Credentials,
    PeerCertificate,
    Refusal,
    TlsError,
    TlsFiles,
    expires_of,
    is_allowed,
    load_credentials,
    names_of,
)

log = structlog.get_logger("tls")

LOOK_SECONDS = 1.0
"""How often the files are read. Mounted secrets, links swapped under them and network folders all allow that."""

EXPIRES_SOON_SECONDS = 7 * 86400.0
REMIND_SECONDS = 6 * 3600.0


class Certificates:
    """What the server shows, whom it trusts, and which clients it refuses.

    `current` is replaced as a whole. `epoch` grows when an authority is taken away: connections that were opened before
    have no right to go on.
    """

    def __init__(
        self,
        files: TlsFiles,
        *,
        allowed: Collection[str] = (),
        registry: CollectorRegistry | None = None,
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Reads the files; raises TlsError. `allowed` are names of clients; none: whoever the authorities vouch for."""
        self._files = files
        self._allowed = frozenset(allowed)
        self._look_seconds = look_seconds
        self._clock = clock
        self.current: Credentials = load_credentials(files)
        self.epoch = 0
        self._seen: tuple[bytes, ...] | None = None
        self._problem = ""
        self._told = Throttle()
        self._reminded = Throttle(seconds=REMIND_SECONDS)
        registry = registry or CollectorRegistry()
        self._loads = Counter(
            "tas_tls_reloads_total", "Attempts to read changed certificates.", ["result"], registry=registry
        )
        for result in ("loaded", "failed"):
            self._loads.labels(result)
        self._refused = Counter("tas_tls_refused_total", "Clients refused.", ["reason"], registry=registry)
        remaining = Gauge(
            "tas_tls_remaining_seconds", "Until the first certificate of the file expires.", ["file"], registry=registry
        )
        for file in self.current.expires:
            remaining.labels(file).set_function(partial(self._remaining, file))
        self._remind()

    async def run(self) -> None:
        """Follows the files until cancelled. Whatever they hold, the last good credentials stay in force."""
        while True:
            await asyncio.sleep(self._look_seconds)
            self._remind()
            try:
                await self._look()
            except TlsError as error:
                self._failed(str(error))

    async def _look(self) -> None:
        contents = await asyncio.to_thread(self._files.read)
        if contents == self.current.contents:
            self._over()
        elif contents != self._seen:
            self._seen = contents  # it may still be written: only what was read twice counts
        else:
            self._take(await asyncio.to_thread(load_credentials, self._files))

    def _take(self, credentials: Credentials) -> None:
        removed = len(self.current.authorities - credentials.authorities)
        self.current = credentials
        if removed:
            self.epoch += 1
        self._loads.labels("loaded").inc()
        expires = {file: _date(seconds) for file, seconds in credentials.expires.items()}
        log.info("certificates_loaded", expires=expires, authorities_removed=removed)
        self._over()

    def _failed(self, problem: str) -> None:
        self._loads.labels("failed").inc()
        self._problem = problem
        held_back = self._told.admit(("reload", problem), time.monotonic())
        if held_back is not None:
            log.error("certificates_not_loaded", error=problem, in_force="the last good ones", alike_before=held_back)

    def _over(self) -> None:
        self._seen = None
        if self._problem:
            log.info("certificates_problem_over", problem=self._problem)
            self._problem = ""

    # --- clients

    def check(self, certificate: PeerCertificate) -> Refusal | None:
        """Why a client whose certificate the authorities vouch for is refused all the same; None: it may ask."""
        if expires_of(certificate) <= self._clock():
            return Refusal(reason="expired", text="certificate has expired", client=_told_names(certificate))
        if not is_allowed(certificate, self._allowed):
            text = "none of its names is among --client-names"
            return Refusal(reason="name", text=text, client=_told_names(certificate))
        return None

    def is_over(self, epoch: int, expires: float) -> bool:
        """Whether a connection admitted in `epoch` by a certificate that expires at `expires` may go on no longer."""
        return epoch != self.epoch or expires <= self._clock()

    def refused(self, refusal: Refusal, address: str) -> None:
        """Counts and logs a refused client."""
        self._refused.labels(refusal.reason).inc()
        held_back = self._told.admit((refusal.reason, refusal.client or address), time.monotonic())
        if held_back is not None:
            log.warning(
                "client_refused",
                reason=refusal.reason,
                error=refusal.text,
                client=refusal.client or None,
                address=address,
                alike_before=held_back,
            )

    # --- time

    def _remaining(self, file: str) -> float:
        return self.current.expires[file] - self._clock()

    def _remind(self) -> None:
        for file, expires in self.current.expires.items():
            is_soon = expires - self._clock() < EXPIRES_SOON_SECONDS
            if is_soon and self._reminded.admit((file, expires), time.monotonic()) is not None:
                log.warning("certificate_expires", file=f"--{file}", expires=_date(expires))


def _told_names(certificate: PeerCertificate) -> str:
    return shortened(", ".join(names_of(certificate)))


def _date(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()
