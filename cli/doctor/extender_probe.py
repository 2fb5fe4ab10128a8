"""Requests to the extender, as the scheduler would send them, and what the extender says about itself."""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from bus.records.codec import UNREADABLE
from cli.doctor.probes import REQUEST_SECONDS
from cli.doctor.requests import offset_of, requested
from cli.doctor.scheduler_files import ELSEWHERE, Tls
from tas.diagnosis.clocks import Offset
from tas.diagnosis.extender import Asked, Distrust, Reach, Request
from tas.diagnosis.finding import Missing
from tas.diagnosis.service import NoService, ServiceName, from_elsewhere, service_of
from tas.diagnosis.url import Url
from tas.extender.verbs import Answer
from workers.http.address import Address
from workers.http.body import body_start, failed_request, read_json

HEALTH_MEND = "give --extender-health HOST:PORT, the --health-listen of the extender"
PROXY_HEADERS = ("Via", "X-Cache", "X-Forwarded-For")
SERVER = "Server"
"""The extender does not send this header. Common proxies add it, and no header `Via`."""

Find = Callable[[ServiceName, int], Awaitable[str | NoService | Missing]]
"""Finds out where a port of a Service can be reached, without the DNS of the cluster."""

_DATES = (9, 10)
_NAMES = (62, 63, 64)
"""X509_V_ERR_… of OpenSSL: not yet valid, has expired; another host name, e-mail, address."""


class ExtenderRead(NamedTuple):
    """All facts from the extender.

    Attributes:
        url: Where the scheduler asks; empty if that is not known.
        health: The URL of the health port.
    """

    url: str
    request: Request | Missing
    clock: Offset | Missing
    health: str
    unready: Mapping[str, str] | Missing
    asked: list[Asked] | Missing


async def _unknown_service(_name: ServiceName, _port: int) -> Missing:
    return Missing("a Service is known in the cluster only")


async def read_extender(
    url: Url, tls: Tls | None, address: Address, *, is_guess: bool, find: Find = _unknown_service
) -> ExtenderRead:
    """Sends one request to `url`, with the certificates of the scheduler, and reads the health port at `address`.

    `is_guess`: the scheduler may ask elsewhere, so that it means nothing if nobody answers.
    """
    health = f"http://{address}"
    (request, clock), unready, asked = await asyncio.gather(
        _wherever(url, tls, find),
        requested(_unready(health), mend=HEALTH_MEND),
        requested(_answers(health), mend=HEALTH_MEND),
    )
    if is_guess and isinstance(request, Request) and request.reach is Reach.FAILED:
        what = f"where the scheduler asks is not known, and nobody answers at {url}: {request.reason}"
        request = Missing(what, f"{ELSEWHERE}, or with --listen HOST:PORT")
    return ExtenderRead("" if is_guess else str(url), request, clock, health, unready, asked)


async def _wherever(url: Url, tls: Tls | None, find: Find) -> tuple[Request | Missing, Offset | Missing]:
    """As `_request`; where this machine does not know the name of a Service, by the address that the Service has."""
    try:
        return await _request(url, tls, url.host)
    except aiohttp.ClientConnectorDNSError as error:
        reason = failed_request(error)
    name = service_of(url.host)
    nobody = Missing("the extender does not answer")
    if name is None:
        what = f"the name {url.host} is not known here ({reason})"
        return Missing(what, "correct urlPrefix, or run tas doctor where the name is known"), nobody
    found = await find(name, url.port)
    return await _behind(url, tls, name, found) if isinstance(found, str) else (_nowhere(url, name, found), nobody)


def _nowhere(url: Url, name: ServiceName, found: NoService | Missing) -> Request | Missing:
    if isinstance(found, NoService):
        return Request(url=str(url), reach=Reach.FAILED, reason=found.reason)
    mend, run = from_elsewhere(name, url)
    what = f"the name {url.host} is not known here, and not where it leads: {found.reason}"
    return Missing(what, found.mend or mend, found.run or run)


async def _behind(
    url: Url, tls: Tls | None, name: ServiceName, host: str
) -> tuple[Request | Missing, Offset | Missing]:
    """As `_request` for a Service at `host`. If nobody answers here, others may be answered in the cluster."""
    clock: Offset | Missing = Missing("the extender does not answer")
    try:
        request, clock = await _request(url, tls, host)
    except aiohttp.ClientConnectorDNSError as error:
        reason = failed_request(error)
    else:
        if not isinstance(request, Request) or request.reach is not Reach.FAILED:
            return request, clock
        reason = request.reason
    what = f"the Service {name} is {host}, which cannot be reached from here: {reason}"
    return Missing(what, *from_elsewhere(name, url)), clock


async def _request(url: Url, tls: Tls | None, host: str) -> tuple[Request | Missing, Offset | Missing]:
    """Sends the request to `host`, which is another name or address of the host of `url`.

    Raises aiohttp.ClientConnectorDNSError if this machine does not know the name.
    """
    request = Request(url=str(url), reach=Reach.FAILED)
    if url.scheme != "https":
        return await _answered(request, url, tls, host, None)
    context = await asyncio.to_thread(_context, tls)
    if isinstance(context, Missing):
        return context, context
    # At the same time: each waits for an extender that hangs.
    seen = asyncio.create_task(_with_certificates(request, url, tls, host))
    try:
        answered, clock = await _answered(request, url, tls, host, context)
    finally:
        certified = await seen
    return msgspec.structs.replace(
        answered,
        verifies=certified.verifies,
        presented=certified.presented,
        expires=certified.expires,
        client_expires=certified.client_expires,
    ), clock


async def _answered(
    request: Request, url: Url, tls: Tls | None, host: str, context: ssl.SSLContext | None
) -> tuple[Request, Offset | Missing]:
    """`request` with how it ended, and the clock of who answers. Raises aiohttp.ClientConnectorDNSError."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    clock: Offset | Missing = Missing("the extender does not answer")
    asked = time.time()
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(
                f"{url._replace(host=host)}/version",
                ssl=True if context is None else context,
                server_hostname=(None if tls is None else tls.server_name) or (url.host if host != url.host else None),
                headers={"Host": str(url).partition("://")[2]},
                allow_redirects=False,
            ) as response,
        ):
            clock = offset_of(response.headers.get("Date", ""), asked, time.time())
            ours = _is_ours(await body_start(response))
            names = (*PROXY_HEADERS, SERVER) if ours else PROXY_HEADERS
            via = next((f"{name}: {value}" for name in names if (value := response.headers.get(name))), "")
            if via or not ours:
                clock = Missing(
                    f"the time is perhaps that of a proxy ({via})" if via else "the extender did not answer"
                )
            server = response.headers.get(SERVER)
            answer = f"code {response.status}" + (f", {SERVER}: {server}" if server else "")
            # The extender forbids without the header; whoever else forbids has not asked it.
            refused = context is not None and response.status == 403 and not server
            return msgspec.structs.replace(
                request,
                reach=Reach.REFUSED if refused else Reach.ANSWERED,
                reason="code 403" if refused else "",
                ours=ours,
                answer=answer,
                via=via,
            ), clock
    except aiohttp.ClientConnectorDNSError:
        raise
    except aiohttp.ClientConnectorCertificateError as error:
        reason, distrust = _distrust(error.certificate_error)
        return msgspec.structs.replace(request, reach=Reach.UNTRUSTED, reason=reason, distrust=distrust), clock
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # ValueError: no possible host name
        return msgspec.structs.replace(request, reach=_reach(error, context), reason=_reason(error)), clock


async def _with_certificates(request: Request, url: Url, tls: Tls | None, host: str) -> Request:
    """`request` with what is known of the certificates of both sides."""
    cert = None if tls is None else tls.cert
    return msgspec.structs.replace(
        request,
        verifies=tls is not None and tls.authority is not None,
        presented=cert is not None and tls is not None and tls.key is not None,
        expires=await _expires(url, tls, host),
        client_expires=None if cert is None else await asyncio.to_thread(_end_of, cert),
    )


def _distrust(error: Exception) -> tuple[str, Distrust]:
    code = getattr(error, "verify_code", 0)
    distrust = Distrust.DATES if code in _DATES else Distrust.NAME if code in _NAMES else Distrust.ISSUER
    return getattr(error, "verify_message", "") or str(error), distrust


def _reach(error: BaseException, context: object) -> Reach:
    after_connect = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    if context is not None and (
        isinstance(error, aiohttp.ClientConnectorSSLError)
        or (after_connect and not isinstance(error, aiohttp.ClientConnectorError))
    ):
        return Reach.REFUSED
    return Reach.FAILED


def _reason(error: BaseException) -> str:
    return f"no answer within {REQUEST_SECONDS:g} s" if isinstance(error, TimeoutError) else failed_request(error)


def _is_ours(body: bytes) -> bool:
    with suppress(*UNREADABLE):
        answer = msgspec.json.decode(body)
        return isinstance(answer, dict) and {"version", "python"} <= answer.keys()
    return False


def _context(tls: Tls | None, *, verifies: bool = True) -> ssl.SSLContext | Missing:
    """As the scheduler verifies: without a CA not at all. Blocks."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    try:
        if tls is None or tls.authority is None or not verifies:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=tls.authority)
        if tls is not None and tls.cert is not None and tls.key is not None:
            context.load_cert_chain(tls.cert, tls.key, password=lambda: "")  # else OpenSSL asks on the terminal
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        return Missing(f"the certificates of the scheduler cannot be used: {reason}", "tas configure, with valid files")
    return context


async def _expires(url: Url, tls: Tls | None, host: str) -> float | None:
    """When the certificate of a server expires, whoever signed it; None if it is not seen.

    The client's certificate is presented, and the connection is closed in order: else the extender logs a refusal.
    """
    context = await asyncio.to_thread(_context, tls, verifies=False)
    if isinstance(context, Missing):
        return None
    name = (None if tls is None else tls.server_name) or url.host
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            _, writer = await asyncio.open_connection(host, url.port, ssl=context, server_hostname=name)
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            with suppress(OSError):  # refused after the handshake
                await writer.wait_closed()
        return _end(certificate, is_pem=False)
    except (OSError, TimeoutError, ValueError):  # ValueError: no possible host name, no valid certificate
        return None


def _end_of(path: Path) -> float | None:
    """When the first certificate in a file expires; None if that cannot be read. Blocks."""
    try:
        return _end(path.read_bytes(), is_pem=True)
    except (OSError, ValueError):
        return None


def _end(certificate: bytes, *, is_pem: bool) -> float:
    """When a certificate expires in DER, or the first one in PEM. Raises ValueError."""
    from cryptography import x509  # here: most extenders have no certificate

    read = x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate
    return read(certificate).not_valid_after_utc.timestamp()


async def _unready(health: str) -> Mapping[str, str]:
    readiness: dict[str, Any] = await read_json(
        f"{health}/readyz", dict[str, Any], seconds=REQUEST_SECONDS, any_status=True
    )
    workers = readiness.get("workers")
    if not isinstance(workers, dict) or "extender" not in workers:
        return {"extender": f"no extender reports its health at {health}"}
    return {str(worker): str(reason) for worker, reason in workers.items() if reason is not None}


async def _answers(health: str) -> list[Asked]:
    answers: list[Answer] = await read_json(f"{health}/answers", list[Answer], seconds=REQUEST_SECONDS, any_status=True)
    return [
        Asked(time=each.time, status=each.status, error=each.error, namespace=each.namespace, pod=each.pod)
        for each in answers
        if each.verb == "filter"
    ]
