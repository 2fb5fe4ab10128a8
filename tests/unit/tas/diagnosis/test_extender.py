"""The checks of the extender, its certificates, and proxies."""

from typing import Any

import msgspec
import pytest

from tas.diagnosis.extender import (
    Asked,
    Distrust,
    ExtenderFacts,
    Reach,
    Request,
    check_extender,
    proxy_for,
)
from tas.diagnosis.finding import Missing, Severity
from tas.diagnosis.url import url_of
from tests.unit.tas.diagnosis.found import bad, one, severities

NOW = 1_000_000.0
DAY = 86400.0
REQUEST = Request(
    url="https://tas:9001",
    reach=Reach.ANSWERED,
    ours=True,
    verifies=True,
    presented=True,
    expires=NOW + 90 * DAY,
    client_expires=NOW + 80 * DAY,
)
ASKED = Asked(time=NOW - 5, status=200, error="", namespace="default", pod="web")
GOOD = ExtenderFacts(
    url="https://tas:9001",
    request=REQUEST,
    health="http://127.0.0.1:9002",
    unready={},
    asked=[ASKED],
    pods=frozenset({("default", "web")}),
    environment={},
    own_environment={},
    api_server="https://10.0.0.1:6443",
    now=NOW,
)


def request(**fields: Any) -> dict[str, Any]:
    return {"request": msgspec.structs.replace(REQUEST, **fields)}


def test_an_extender_that_the_scheduler_asks_has_no_finding() -> None:
    assert bad(check_extender(GOOD)) == {}
    assert len(severities(check_extender(GOOD))) == 9


PROXY = {"HTTPS_PROXY": "http://me:secret@proxy:3128"}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (
            request(reach=Reach.FAILED, ours=False, reason="refused", verifies=False, expires=None),
            {
                "extender.reached": Severity.ERROR,
                "extender.ca": Severity.UNKNOWN,
                "extender.client": Severity.UNKNOWN,
                "extender.expires": Severity.UNKNOWN,
                "proxy.extender": Severity.UNKNOWN,
            },
        ),
        (
            request(ours=False),
            {
                "extender.reached": Severity.ERROR,
                "extender.client": Severity.UNKNOWN,
                "proxy.extender": Severity.UNKNOWN,
            },
        ),
        (
            request(reach=Reach.UNTRUSTED, reason="unable to get issuer", verifies=True),
            {
                "extender.ca": Severity.ERROR,
                "extender.client": Severity.UNKNOWN,
                "proxy.extender": Severity.UNKNOWN,
            },
        ),
        (request(verifies=False), {"extender.ca": Severity.UNKNOWN}),
        (
            request(reach=Reach.REFUSED, reason="unknown ca"),
            {"extender.client": Severity.ERROR, "proxy.extender": Severity.UNKNOWN},
        ),
        (
            request(reach=Reach.REFUSED, reason="certificate required", presented=False),
            {"extender.client": Severity.UNKNOWN, "proxy.extender": Severity.UNKNOWN},
        ),
        (request(expires=NOW + 29 * DAY), {"extender.expires": Severity.WARNING}),
        (request(expires=NOW - 1), {"extender.expires": Severity.ERROR}),
        (request(client_expires=NOW + 29 * DAY), {"extender.expires": Severity.WARNING}),
        (request(client_expires=NOW - 1), {"extender.expires": Severity.ERROR}),
        (request(client_expires=None), {}),
        ({"asked": [msgspec.structs.replace(ASKED, time=NOW + 9)]}, {}),
        (request(via="1.1 squid"), {"proxy.extender": Severity.WARNING}),
        ({"unready": {"extender": "no complete list yet"}}, {"extender.ready": Severity.ERROR}),
        ({"unready": Missing("refused")}, {"extender.ready": Severity.UNKNOWN}),
        ({"asked": []}, {"extender.asked": Severity.WARNING}),
        ({"asked": [msgspec.structs.replace(ASKED, pod="gone")]}, {"extender.asked": Severity.WARNING}),
        ({"asked": [msgspec.structs.replace(ASKED, time=NOW - 2 * DAY)]}, {"extender.asked": Severity.HINT}),
        (
            {"asked": [ASKED, msgspec.structs.replace(ASKED, time=NOW, status=503, error="not ready", pod="")]},
            {"extender.asked": Severity.ERROR},
        ),
        ({"asked": Missing("refused")}, {"extender.asked": Severity.UNKNOWN}),
        ({"environment": PROXY}, {"proxy.scheduler": Severity.ERROR}),
        ({"environment": PROXY | {"NO_PROXY": "tas"}}, {}),
        ({"environment": Missing("no manifest")}, {"proxy.scheduler": Severity.UNKNOWN}),
        ({"own_environment": PROXY}, {"proxy.here": Severity.WARNING}),
        ({"own_environment": PROXY | {"no_proxy": "10.0.0.0/8"}}, {}),
    ],
)
def test_each_fault_is_found(fields: dict[str, Any], found: dict[str, Severity]) -> None:
    assert bad(check_extender(msgspec.structs.replace(GOOD, **fields))) == found


def test_a_client_that_is_refused_since_its_certificate_has_expired_gets_a_new_one() -> None:
    refused = msgspec.structs.replace(GOOD, **request(reach=Reach.REFUSED, reason="expired", client_expires=NOW))
    found = one(check_extender(refused), "extender.client")
    assert (found.severity, found.run) == (Severity.ERROR, "tas certs renew DIR")
    assert "has expired" in found.what
    valid = msgspec.structs.replace(GOOD, **request(reach=Reach.REFUSED, reason="no", client_expires=NOW + 1))
    assert one(check_extender(valid), "extender.client").run.startswith("tas configure ")


def test_who_answers_in_place_of_the_extender_is_named() -> None:
    facts = msgspec.structs.replace(GOOD, **request(ours=False, answer="code 502, Server: nginx"))
    what = one(check_extender(facts), "extender.reached").what
    assert what == "https://tas:9001 answers (code 502, Server: nginx), but not as this product does"


@pytest.mark.parametrize(
    ("distrust", "run"),
    [
        (Distrust.ISSUER, "tas configure -cert client.crt -key client.key --cacert ca.crt"),
        (Distrust.NAME, "tas certs renew DIR --server-name tas --server-name NAME"),
        (Distrust.DATES, "tas certs renew DIR"),
    ],
)
def test_what_is_wrong_with_a_certificate_decides_what_mends_it(distrust: Distrust, run: str) -> None:
    facts = msgspec.structs.replace(GOOD, **request(reach=Reach.UNTRUSTED, reason="bad", distrust=distrust))
    assert one(check_extender(facts), "extender.ca").run == run


@pytest.mark.parametrize(
    ("own", "run"),
    [
        (PROXY, "export NO_PROXY=10.0.0.1"),
        (PROXY | {"NO_PROXY": "a,b"}, "export NO_PROXY=a,b,10.0.0.1"),
        (PROXY | {"no_proxy": "c"}, "export NO_PROXY=c,10.0.0.1"),
    ],
)
def test_what_is_excepted_from_the_proxy_stays_excepted(own: dict[str, str], run: str) -> None:
    assert one(check_extender(msgspec.structs.replace(GOOD, own_environment=own)), "proxy.here").run == run


def test_the_password_of_a_proxy_is_not_shown() -> None:
    found = one(check_extender(msgspec.structs.replace(GOOD, environment=PROXY)), "proxy.scheduler")
    assert "http://proxy:3128" in found.what
    assert "secret" not in found.what


def test_plain_http_has_no_certificates_to_check() -> None:
    plain = msgspec.structs.replace(GOOD, **request(url="http://tas:9001", verifies=False, expires=None))
    assert bad(check_extender(plain)) == {}
    assert "extender.ca" not in severities(check_extender(plain))


def test_without_a_request_nothing_about_it_is_ok() -> None:
    found = bad(check_extender(msgspec.structs.replace(GOOD, request=Missing("no URL"))))
    assert set(found.values()) == {Severity.UNKNOWN}
    assert len(found) == 5
    # The scheduler may know the name of a Service that this machine does not know.
    proxied = msgspec.structs.replace(GOOD, request=Missing("no such name"), environment=PROXY)
    assert bad(check_extender(proxied))["proxy.scheduler"] is Severity.ERROR
    unknown = msgspec.structs.replace(GOOD, url="")
    assert bad(check_extender(unknown)) == {"proxy.scheduler": Severity.UNKNOWN}


@pytest.mark.parametrize(
    ("url", "without", "is_used"),
    [
        ("https://tas.svc:9001", "", True),
        ("https://tas.svc:9001", "tas.svc", False),
        ("https://a.tas.svc:9001", "svc", False),
        ("https://a.tas.svc:9001", ".svc", False),
        ("https://svc:9001", ".svc", True),
        ("https://a.tas.svc:9001", "*.svc", False),
        ("https://tas.svc:9001", "tas.svc:9001", False),
        ("https://tas.svc:9001", "tas.svc:9002", True),
        ("https://10.1.2.3:9001", "10.0.0.0/8, x", False),
        ("https://10.1.2.3:9001", "10.1.2.3", False),
        ("https://tas:9001", "10.0.0.0/8", True),
        ("https://tas:9001", "*", False),
        ("https://xtas:9001", "tas", True),
        ("http://tas:9001", "", False),
        ("https://127.0.0.1:9001", "", False),
        ("https://localhost:9001", "", False),
        ("no url", "", False),
    ],
)
def test_a_proxy_is_used_as_by_a_program_in_go(url: str, without: str, is_used: bool) -> None:
    assert (proxy_for(url, PROXY | {"NO_PROXY": without}) is not None) is is_used


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://tas:9001/scheduler", "https://tas:9001"),
        ("http://TAS", "http://tas:80"),
        ("https://me:secret@tas/x", "https://tas:443"),
        ("https://[::1]:9001/", "https://[::1]:9001"),
        ("tas:9001", "None"),
        ("https://tas:99999", "None"),
        ("https://tas:0", "None"),
        ("https://t$(reboot)as:9001", "None"),
        ("https://a b", "None"),
    ],
)
def test_a_url_has_scheme_host_and_port(text: str, shown: str) -> None:
    assert str(url_of(text)) == shown
