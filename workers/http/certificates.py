"""The certificates in use: reloaded when their files change, and the decision which clients are admitted."""

import asyncio
import datetime as dt
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from math import nan

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from tas.errors import shortened
from tas.values.throttle import Throttle
from workers.http.tls import (
    REFUSALS,
    LoadedTls,
    PeerCertificate,
    Refusal,
    expires_of,
    is_allowed,
    load_tls,
    names_of,
    refusal,
)
from workers.http.tls_files import TlsError, TlsFiles
from workers.process.logs import ThrottledLog

log = structlog.get_logger("tls")

CHECK_SECONDS = 1.0
"""How often the files are read. Polling also works for mounted secrets, replaced links and network folders."""

LOGGED_CLIENTS = 32
"""How many refused clients the log distinguishes: a stranger chooses the names in a certificate."""

ENDING_SECONDS = 5.0
"""So long before a client's certificate expires its connection ends: a client with a new certificate presents this one
only in its next connection, and kube-scheduler repeats no request that was refused. Several sweeps fall into it."""

EXPIRES_SOON_SECONDS = 7 * 86400.0
REMINDER_SECONDS = 6 * 3600.0


class TlsMetrics:
    """Metrics of the certificates of all servers of a process.

    Attributes:
        served: The certificates of these servers.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.served: list[Certificates] = []
        self.loads = Counter(
            "tas_tls_reloads_total", "Attempts to read changed certificates.", ["result"], registry=registry
        )
        for result in ("loaded", "failed"):
            self.loads.labels(result)
        self.refused = Counter("tas_tls_refused_total", "Clients refused.", ["reason"], registry=registry)
        for reason in REFUSALS:
            self.refused.labels(reason)
        self.remaining = Gauge(
            "tas_tls_remaining_seconds",
            "Seconds until the first certificate of the file, or of a connected client, expires; negative after that.",
            ["file"],
            registry=registry,
        )


class Certificates:
    """The server's certificate, the trusted authorities, and the check of each client.

    `current` is replaced as a whole. `verifies_clients`: whether each client must present a certificate. `epoch` grows
    when an authority is removed: connections opened in an earlier epoch must end, after one more answer at most.
    """

    def __init__(
        self,
        files: TlsFiles,
        *,
        allowed: Collection[str] = (),
        metrics: TlsMetrics | None = None,
        check_seconds: float = CHECK_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Reads the files; raises TlsError. `allowed`: client names; empty: every client with a trusted certificate."""
        self.verifies_clients = files.cacert is not None
        self._files = files
        self._allowed = frozenset(allowed)
        self._check_seconds = check_seconds
        self._clock = clock
        self.current: LoadedTls = load_tls(files)
        self.epoch = 0
        self._pending: tuple[bytes, ...] | None = None
        self._problem = ""
        self._throttled = ThrottledLog(log)
        self._refusals = ThrottledLog(log, keys=LOGGED_CLIENTS)
        self._reminders = Throttle(seconds=REMINDER_SECONDS)
        self._metrics = metrics or TlsMetrics(CollectorRegistry())
        self._metrics.served.append(self)
        for file in self.current.expires:
            self._metrics.remaining.labels(file).set_function(partial(self._remaining, file))
        self._warn_of_dates()

    def observe_clients(self, expires: Callable[[], Iterable[float]]) -> None:
        """`expires()`: when the certificate of each connected client expires, in seconds since 1970."""
        first = self._metrics.remaining.labels("client")
        first.set_function(lambda: min(expires(), default=nan) - self._clock())

    async def run(self) -> None:
        """Follows the files until cancelled. While they are invalid, the last valid credentials stay in use.

        This is also so while new certificates are not valid yet, or any more, as long as those in use are.
        """
        while True:
            await asyncio.sleep(self._check_seconds)
            self._warn_of_dates()
            try:
                await self._check_files()
            except TlsError as error:
                self._log_failure(str(error))

    async def _check_files(self) -> None:
        contents = await asyncio.to_thread(self._files.read)
        if contents == self.current.contents:
            self._clear_problem()
        elif contents != self._pending:
            self._pending = contents  # the file may still be being written: contents count once read twice
        else:
            self._replace(await asyncio.to_thread(load_tls, self._files))

    def _replace(self, loaded: LoadedTls) -> None:
        now = self._clock()
        if self.current.is_valid(now):
            self._check_dates(loaded, now)
        removed = len(self.current.authorities - loaded.authorities)
        self.current = loaded
        if removed:
            self.epoch += 1
        self._metrics.loads.labels("loaded").inc()
        expires = {file: _date(seconds) for file, seconds in loaded.expires.items()}
        log.info("certificates_loaded", expires=expires, authorities_removed=removed)
        self._clear_problem()

    def _check_dates(self, loaded: LoadedTls, now: float) -> None:
        if (early := loaded.early(now)) is not None:
            raise TlsError(f"{early}: is not valid before {_date(loaded.begins[early])}")
        if (expired := loaded.expired(now)) is not None:
            shown = self._files.shown(expired.removeprefix(self._files.prefix))
            raise TlsError(f"{shown}: is not valid after {_date(loaded.until(expired, now))}")

    def _log_failure(self, problem: str) -> None:
        self._metrics.loads.labels("failed").inc()
        self._problem = problem
        self._throttled.error("certificates_not_loaded", problem, error=problem, in_force="the last valid ones")

    def _clear_problem(self) -> None:
        self._pending = None
        if self._problem:
            log.info("certificates_recovered", problem=self._problem)
            self._problem = ""

    def check(self, certificate: PeerCertificate) -> Refusal | None:
        """Why a client with a trusted certificate is refused; None if it is admitted."""
        if expires_of(certificate) <= self._clock():
            return Refusal(reason="expired", text="certificate has expired", client=_joined_names(certificate))
        if not is_allowed(certificate, self._allowed):
            text = "none of its names is among --client-names"
            return Refusal(reason="name", text=text, client=_joined_names(certificate))
        return None

    def refusal_of(self, error: Exception) -> Refusal:
        """Why a handshake failed.

        OpenSSL looks at the dates of an authority before it verifies what this authority has signed. So a certificate
        that anybody has forged in the name of an expired authority, too, has expired in the words of OpenSSL.
        """
        refused = refusal(error)
        presented = getattr(error, "presented", b"")
        if refused.reason == "expired" and not self.current.may_have_signed(presented, self._clock()):
            return replace(refused, reason="untrusted")
        return refused

    def is_expired(self, expires: float) -> bool:
        """Whether a certificate that expires at `expires` is not valid any more."""
        return expires <= self._clock()

    def is_ending(self, epoch: int, expires: float) -> bool:
        """Whether a connection admitted in `epoch` with a certificate that expires at `expires` must end.

        It ends with its next answer, or while it is idle: so the client sees an orderly end, and connects again.
        """
        return epoch != self.epoch or self.is_expired(expires - ENDING_SECONDS)

    def record_refusal(self, refusal: Refusal, address: str, peer: str) -> None:
        """Counts and logs a refused client. `peer`: its address without the port, which is another each time."""
        self._metrics.refused.labels(refusal.reason).inc()
        self._refusals.warning(
            "client_refused",
            (refusal.reason, peer, refusal.client),
            reason=refusal.reason,
            error=refusal.text,
            client=refusal.client or None,
            address=address,
        )

    def _remaining(self, file: str) -> float:
        now = self._clock()
        return self.current.expiry(file, now) - now

    def _warn_of_dates(self) -> None:
        now = self._clock()
        for file, expires in self.current.expires.items():
            is_soon = expires - now < EXPIRES_SOON_SECONDS
            if is_soon and self._reminders.admit((file, expires), time.monotonic()) is not None:
                log.warning("certificate_expiring", file=f"--{file}", expires=_date(expires))
        if (early := self.current.early(now)) is not None:
            begins = self.current.begins[early]
            if self._reminders.admit((early, begins), time.monotonic()) is not None:
                log.warning("certificate_not_yet_valid", file=early, begins=_date(begins))


def _joined_names(certificate: PeerCertificate) -> str:
    return shortened(", ".join(names_of(certificate)))


def _date(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()
