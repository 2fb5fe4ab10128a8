"""Does the scheduler reach the extender, do the certificates match, and is a proxy in between?"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from tas.diagnosis.finding import Finding, Missing, Severity, command, finding, ok, unknown
from tas.diagnosis.url import url_of
from tas.values.nouns import counted

SOON_SECONDS = 30 * 24 * 3600.0
RECENT_SECONDS = 24 * 3600.0
TLS_CHECKS = ("extender.ca", "extender.client", "extender.expires")
CONFIGURE = command("tas", "configure", "-cert", "client.crt", "-key", "client.key", "--cacert", "ca.crt")
"""On a control plane node; the scheduler starts anew."""

STATUS = command("tas", "configure", "status", "--kubeconfig", "FILE")
RENEW = command("tas", "certs", "renew", "DIR")
RENEW_CLIENT = "renew the certificate, then run tas configure: the scheduler reads it at its start"
ON_CONTROL_PLANE = "run tas doctor on a control plane node"


class Reach(StrEnum):
    """How a request to the extender ended."""

    ANSWERED = "answered"
    UNTRUSTED = "untrusted"
    """The CA of the scheduler does not verify the extender's certificate."""
    REFUSED = "refused"
    """The extender refused the client's certificate."""
    FAILED = "failed"
    """There was no connection, or no answer in time."""


class Distrust(StrEnum):
    """What is wrong with the extender's certificate."""

    ISSUER = "issuer"
    NAME = "name"
    DATES = "dates"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the extender, with what the scheduler uses: URL, CA and certificate.

    Attributes:
        url: Without a path.
        reason: Why there was no answer.
        distrust: What is wrong with the extender's certificate, if that is the reason.
        ours: Whether the answer is one of this product.
        answer: The code of the answer, and how the server calls itself.
        via: The header `Via`, or another trace of a proxy; empty without one.
        verifies: Whether the CA of the scheduler is known, so that the extender's certificate is verified.
        presented: Whether the certificate of the scheduler was presented.
        expires: When the extender's certificate expires, in seconds since 1970.
        client_expires: When the certificate of the scheduler expires; None: it cannot be read, or there is none.
    """

    url: str
    reach: Reach
    reason: str = ""
    distrust: Distrust = Distrust.ISSUER
    ours: bool = False
    answer: str = ""
    via: str = ""
    verifies: bool = False
    presented: bool = False
    expires: float | None = None
    client_expires: float | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A filter request of a scheduler, from the extender's last answers. `time` is in seconds since 1970."""

    time: float
    status: int
    error: str
    namespace: str
    pod: str


class ExtenderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The extender.

    Attributes:
        url: Where the scheduler asks; empty if that is not known.
        health: The URL of the extender's health port.
        unready: Why each worker in its process is not ready, by worker; only those that are not.
        asked: The last requests.
        pods: The pods of the cluster as (namespace, name); Missing without a cluster.
        environment: The environment of the scheduler.
        own_environment: That of this process.
        api_server: The URL of the API server; empty without a cluster.
        now: In seconds since 1970.
    """

    url: str
    request: Request | Missing
    health: str
    unready: Mapping[str, str] | Missing
    asked: Sequence[Asked] | Missing
    pods: frozenset[tuple[str, str]] | Missing
    environment: Mapping[str, str] | Missing
    own_environment: Mapping[str, str]
    api_server: str
    now: float


def check_extender(facts: ExtenderFacts) -> Iterator[Finding]:
    """The findings about the extender and proxies."""
    yield from _request(facts)
    yield _ready(facts)
    yield _asked(facts)
    yield from _proxies(facts)


def _request(facts: ExtenderFacts) -> Iterator[Finding]:
    request = facts.request
    if isinstance(request, Missing):
        for check in ("extender.reached", *TLS_CHECKS, "proxy.extender"):
            yield unknown(check, request)
        return
    yield _reached(request)
    if request.url.startswith("https:"):
        yield _ca(request)
        yield _client(request, facts.now)
        yield from _expires(request, facts.now)
    if request.via:
        what = f"{request.url} answers through a proxy: {request.via}"
        mend = "let the scheduler reach the extender directly: NO_PROXY in its manifest, or another urlPrefix by this"
        run = f"{CONFIGURE} --telemetry-url https://HOST:9001"
        yield finding("proxy.extender", Severity.WARNING, what, mend, run=run)
    elif request.reach is Reach.ANSWERED and request.ours:
        yield ok("proxy.extender", "the answer has no trace of a proxy")
    else:
        yield unknown("proxy.extender", Missing(request.reason or "the extender did not answer"))


def _reached(request: Request) -> Finding:
    if request.reach is Reach.FAILED:
        mend = "start the extender, or correct urlPrefix by tas configure --telemetry-url"
        run = command("tas", "run", "extender", "--bus", "nats://HOST:4222", "--listen", "HOST:9001")
        return finding("extender.reached", Severity.ERROR, f"{request.url}: {request.reason}", mend, run=run)
    if request.reach is Reach.ANSWERED and not request.ours:
        what = f"{request.url} answers{f' ({request.answer})' if request.answer else ''}, but not as this product does"
        mend = "correct urlPrefix by tas configure --telemetry-url, or the proxy in between; this shows who answers"
        run = command("curl", "-s", "-i", "-k", f"{request.url}/version")
        return finding("extender.reached", Severity.ERROR, what, mend, run=run)
    return ok("extender.reached", f"{request.url} can be reached from here")


def _ca(request: Request) -> Finding:
    if request.reach is Reach.UNTRUSTED:
        mend, run = _trusted(request)
        return finding("extender.ca", Severity.ERROR, f"{request.url}: {request.reason}", mend, run=run)
    if request.reach is Reach.FAILED or not request.verifies:
        reason = request.reason or "the CA of the scheduler cannot be read here"
        return unknown("extender.ca", Missing(reason, ON_CONTROL_PLANE))
    return ok("extender.ca", "the CA of the scheduler verifies the extender")


def _trusted(request: Request) -> tuple[str, str]:
    """What makes the scheduler trust the extender's certificate, and a command."""
    match request.distrust:
        case Distrust.NAME:
            mend = (
                "create a certificate for this host, with a flag for each name of the extender, and give it the files"
            )
            return mend, f"{RENEW} {command('--server-name', _host(request.url))} --server-name NAME"
        case Distrust.DATES:
            return "renew the certificate, and give the extender the files", RENEW
        case Distrust.ISSUER:
            return "give the scheduler the CA that signed the extender's certificate, as ca.crt", CONFIGURE


def _client(request: Request, now: float) -> Finding:
    if request.reach is Reach.REFUSED:
        what = f"{request.url} refuses the client: {request.reason}"
        if request.client_expires is not None and request.client_expires <= now:
            # To give the scheduler the same certificate again would mend nothing.
            what = f"{request.url} refuses the client, whose certificate has expired: {request.reason}"
            return finding("extender.client", Severity.ERROR, what, RENEW_CLIENT, run=RENEW)
        if not request.presented:
            return unknown("extender.client", Missing(what, ON_CONTROL_PLANE))
        mend = (
            "client_refused in the log of the extender has the reason: give the extender the CA of this certificate "
            "(--cacert) and its name (--client-names), or give the scheduler another certificate"
        )
        return finding("extender.client", Severity.ERROR, what, mend, run=CONFIGURE)
    if request.reach is not Reach.ANSWERED or not request.ours:
        return unknown("extender.client", Missing(request.reason or "the extender did not answer"))
    return ok("extender.client", "the extender accepts the certificate of the scheduler")


def _expires(request: Request, now: float) -> Iterator[Finding]:
    if request.expires is None:
        yield unknown("extender.expires", Missing("the certificate of the extender was not seen"))
    else:
        mend = "renew the certificate, and give the extender the files, which it reads again"
        yield valid("extender.expires", "the certificate of the extender", request.expires - now, mend)
    if request.client_expires is not None:
        left = request.client_expires - now
        yield valid("extender.expires", "the certificate of the scheduler", left, RENEW_CLIENT)


def valid(check: str, whose: str, seconds: float, mend: str, run: str = RENEW) -> Finding:
    """Whether a certificate that expires in so many seconds is valid long enough; `mend` and `run` renew it."""
    days = seconds / 86400
    if seconds <= 0:
        return finding(check, Severity.ERROR, f"{whose} expired {counted(round(-days), 'day')} ago", mend, run=run)
    if seconds < SOON_SECONDS:
        return finding(check, Severity.WARNING, f"{whose} expires in {counted(round(days), 'day')}", mend, run=run)
    return ok(check, f"{whose} is valid for {counted(round(days), 'day')}")


def _ready(facts: ExtenderFacts) -> Finding:
    if isinstance(facts.unready, Missing):
        return unknown("extender.ready", facts.unready)
    if facts.unready:
        what = "; ".join(f"{worker}: {reason}" for worker, reason in sorted(facts.unready.items()))
        mend = "docs/reference/health.md says what to do: why something is not ready"
        run = command("curl", "-s", f"{facts.health}/readyz")
        return finding("extender.ready", Severity.ERROR, what, mend, run=run)
    return ok("extender.ready", "all workers in the process of the extender are ready")


def _asked(facts: ExtenderFacts) -> Finding:
    if isinstance(facts.asked, Missing):
        return unknown("extender.asked", facts.asked)
    mend = "create a pod with the label telemetry-policy and run tas doctor again; is the scheduler configured?"
    known = facts.asked
    if not isinstance(facts.pods, Missing):
        pods = facts.pods
        known = [each for each in facts.asked if (each.namespace, each.pod) in pods or each.status != 200]
    if not known:
        what = "none of the last answers is about a pod that exists" if facts.asked else "no scheduler has asked"
        return finding("extender.asked", Severity.WARNING, f"{what}, since the extender started", mend, run=STATUS)
    last = max(known, key=lambda each: each.time)
    age = max(0.0, facts.now - last.time)
    if last.status != 200 or last.error:
        what = f"the last request was answered with code {last.status}: {last.error}"
        mend = "docs/how-to/troubleshooting.md has each code; this shows the last answers"
        return finding(
            "extender.asked", Severity.ERROR, what, mend, run=command("curl", "-s", f"{facts.health}/answers")
        )
    if age > RECENT_SECONDS:
        what = f"the last request came {counted(round(age / 3600), 'hour')} ago"
        return finding("extender.asked", Severity.HINT, what, mend, run=STATUS)
    return ok("extender.asked", f"a scheduler asked {age:.0f} s ago, about {last.namespace}/{last.pod}")


def proxy_for(url: str, environment: Mapping[str, str]) -> str | None:
    """The proxy that a program in Go with this environment uses for a URL; None: it connects directly.

    https://pkg.go.dev/golang.org/x/net/http/httpproxy
    """
    parts = url_of(url)
    if parts is None or parts.is_loopback:
        return None
    name = f"{parts.scheme}_proxy"
    proxy = environment.get(name.upper()) or environment.get(name)
    without = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    entries = [each.strip().lower() for each in without.split(",") if each.strip()]
    return proxy if proxy and not any(_is_excepted(parts.host, parts.port, each) for each in entries) else None


def _is_excepted(host: str, port: int, entry: str) -> bool:
    if entry == "*":
        return True
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        pass
    else:
        try:
            return ipaddress.ip_address(host) in network
        except ValueError:
            return False
    name, colon, given = entry.rpartition(":")
    if colon and given.isdigit():
        if int(given) != port:
            return False
        entry = name
    if entry.startswith("*."):
        entry = entry[1:]
    if entry.startswith("."):
        return host.endswith(entry)
    return host == entry or host.endswith(f".{entry}")


def _proxies(facts: ExtenderFacts) -> Iterator[Finding]:
    url, parts = facts.url, url_of(facts.url)
    if parts is None:
        yield unknown("proxy.scheduler", Missing("where the scheduler asks is not known"))
    elif parts.is_loopback:
        yield ok("proxy.scheduler", "the scheduler uses no proxy for its own machine")
    elif isinstance(facts.environment, Missing):
        yield unknown("proxy.scheduler", facts.environment)
    elif proxy := proxy_for(url, facts.environment):
        what = f"the scheduler uses the proxy {_without_user(proxy)} for {url}"
        mend = f"add {_host(url)} to the value of NO_PROXY in the manifest of kube-scheduler"
        yield finding("proxy.scheduler", Severity.ERROR, what, mend)
    else:
        yield ok("proxy.scheduler", "the scheduler connects to the extender directly")
    if not facts.api_server:
        return
    if proxy := proxy_for(facts.api_server, facts.own_environment):
        what = f"this machine uses the proxy {_without_user(proxy)} for {facts.api_server}"
        # Programs read NO_PROXY first, and then no_proxy no more.
        others = facts.own_environment.get("NO_PROXY") or facts.own_environment.get("no_proxy") or ""
        without = ",".join(filter(None, [others, _host(facts.api_server)]))
        yield finding("proxy.here", Severity.WARNING, what, run=command("export", f"NO_PROXY={without}"))
    else:
        yield ok("proxy.here", "this machine connects to the API server directly")


def _host(url: str) -> str:
    parts = url_of(url)
    return "HOST" if parts is None else parts.host


def _without_user(proxy: str) -> str:
    scheme, separator, rest = proxy.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
