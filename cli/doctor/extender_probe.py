"""Requests to the extender, as the scheduler would send them, and what the extender says about itself."""

import asyncio
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp
import msgspec
from cryptography import x509

from bus.records.codec import UNREADABLE
from cli.doctor.probes import REQUEST_SECONDS, offset_of, probed
from cli.doctor.scheduler_files import ELSEWHERE, Tls
from tas.diagnosis.clocks import Offset
from tas.diagnosis.extender import Asked, Reach, Request
from tas.diagnosis.finding import Missing
from tas.diagnosis.url import Url
from tas.extender.verbs import Answer
from workers.process.address import Address
from workers.process.http_body import MAX_OWN_BYTES, body_start, failed_request, whole_body

HEALTH_MEND = "give --extender-health HOST:PORT, the --health-listen of the extender"
PROXY_HEADERS = ("Via", "X-Cache", "X-Forwarded-For")


class ExtenderRead(NamedTuple):
    """All facts from the extender."""

    request: Request | Missing
    clock: Offset | Missing
    unready: Mapping[str, str] | Missing
    asked: list[Asked] | Missing


async def read_extender(url: Url, tls: Tls | None, health: Address, *, is_guess: bool) -> ExtenderRead:
    """Sends one request to `url`, with the certificates of the scheduler, and reads the health port.

    `is_guess`: the scheduler may ask elsewhere, so that it means nothing if nobody answers.
    """
    (request, clock), unready, asked = await asyncio.gather(
        _request(url, tls), probed(_unready(health), mend=HEALTH_MEND), probed(_answers(health), mend=HEALTH_MEND)
    )
    if is_guess and isinstance(request, Request) and request.reach is Reach.FAILED:
        what = f"where the scheduler asks is not known, and nobody answers at {url}: {request.reason}"
        request = Missing(what, f"{ELSEWHERE}, or with --listen HOST:PORT")
    return ExtenderRead(request, clock, unready, asked)


async def _request(url: Url, tls: Tls | None) -> tuple[Request | Missing, Offset | Missing]:
    context: ssl.SSLContext | None = None
    if url.scheme == "https":
        made = await asyncio.to_thread(_context, tls)
        if isinstance(made, Missing):
            return made, made
        context = made
    request = Request(
        url=str(url),
        reach=Reach.FAILED,
        verifies=tls is not None and tls.authority is not None,
        presented=tls is not None and tls.cert is not None and tls.key is not None,
        expires=None if context is None else await _expires(url, context, None if tls is None else tls.server_name),
    )
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    clock: Offset | Missing = Missing("the extender does not answer")
    asked = time.time()
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(
                f"{url}/version",
                ssl=True if context is None else context,
                server_hostname=None if tls is None else tls.server_name,
                allow_redirects=False,
            ) as response,
        ):
            clock = offset_of(response.headers.get("Date", ""), asked, time.time())
            via = next((f"{name}: {value}" for name in PROXY_HEADERS if (value := response.headers.get(name))), "")
            body = await body_start(response)
            answered = msgspec.structs.replace(request, reach=Reach.ANSWERED, via=via)
            if response.status == 403 and context is not None:
                answered = msgspec.structs.replace(answered, reach=Reach.REFUSED, reason="code 403")
            return msgspec.structs.replace(answered, ours=response.status == 403 or _is_ours(body)), clock
    except aiohttp.ClientConnectorDNSError as error:
        what = (
            f"the name {url.host} is not known here ({failed_request(error)}); a Service is known in the cluster only"
        )
        return Missing(what, ELSEWHERE), clock
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return msgspec.structs.replace(request, reach=_reach(error, context), reason=_reason(error)), clock


def _reach(error: BaseException, context: object) -> Reach:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return Reach.UNTRUSTED
    after_connect = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    if context is not None and (
        isinstance(error, aiohttp.ClientConnectorSSLError)
        or (after_connect and not isinstance(error, aiohttp.ClientConnectorError))
    ):
        return Reach.REFUSED
    return Reach.FAILED


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        inner = error.certificate_error
        return getattr(inner, "verify_message", "") or str(inner)
    if isinstance(error, TimeoutError):
        return f"no answer within {REQUEST_SECONDS:g} s"
    return failed_request(error)


def _is_ours(body: bytes) -> bool:
    with suppress(*UNREADABLE):
        answer = msgspec.json.decode(body)
        return isinstance(answer, dict) and {"version", "python"} <= answer.keys()
    return False


def _context(tls: Tls | None) -> ssl.SSLContext | Missing:
    """As the scheduler verifies: without a CA not at all. Blocks."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    try:
        if tls is None or tls.authority is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=tls.authority)
        if tls is not None and tls.cert is not None and tls.key is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        return Missing(f"the certificates of the scheduler cannot be used: {reason}", "tas configure, with valid files")
    return context


async def _expires(url: Url, context: ssl.SSLContext, server_name: str | None) -> float | None:
    """When the certificate of a server expires; None if there is no connection."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            name = server_name or url.host
            _, writer = await asyncio.open_connection(url.host, url.port, ssl=context, server_hostname=name)
    except (OSError, TimeoutError):
        return None
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return x509.load_der_x509_certificate(certificate).not_valid_after_utc.timestamp()


async def _unready(health: Address) -> Mapping[str, str]:
    readiness = await _json(f"http://{health}/readyz", dict[str, Any])
    workers = readiness.get("workers")
    if not isinstance(workers, dict) or "extender" not in workers:
        return {"extender": f"no extender reports its health at {health}"}
    return {str(worker): str(reason) for worker, reason in workers.items() if reason is not None}


async def _answers(health: Address) -> list[Asked]:
    return [
        Asked(time=each.time, status=each.status, error=each.error, namespace=each.namespace, pod=each.pod)
        for each in await _json(f"http://{health}/answers", list[Answer])
        if each.verb == "filter"
    ]


async def _json(url: str, kind: Any) -> Any:
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
        return msgspec.json.decode(await whole_body(response, max_bytes=MAX_OWN_BYTES), type=kind)
