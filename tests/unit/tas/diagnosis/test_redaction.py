"""No secret and no address of another machine leaves: planted in each form and place."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.diagnosis.redaction import SECRET, Redactor
from tests.unit.growth import grows_linearly
from tests.unit.tas.generators import characters

JWT = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5In0.eyJqdGkiOiJYWFgiLCJpYXQiOjF9.c2lnbmF0dXJlLW9mLW5vYm9keQ"
SEED = "SUAM" + "A2B3C4D5E6F7" * 4 + "XYZWVU"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQ\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        pytest.param(f"jwt {JWT}", [JWT.split(".")[1]], id="JWT"),
        pytest.param(f"seed={SEED}", [SEED], id="seed of NATS"),
        pytest.param(f"key:\n{PEM}\nend", ["MIIEvQ", "kqhkiG9"], id="PEM"),
        pytest.param(f"key:\n{PEM[:40]}", ["MIIEvQ"], id="PEM that was cut"),
        pytest.param("Authorization: Bearer hunter2hunter2", ["hunter2"], id="header"),
        pytest.param('{"password": "hunter2"}', ["hunter2"], id="JSON"),
        pytest.param("TAS_SINK_TOKEN=hunter2 x", ["hunter2"], id="variable"),
        pytest.param("api_key: hunter2", ["hunter2"], id="YAML"),
        pytest.param("nats://me:hunter2@nats.example:4222", ["hunter2", "me:", "nats.example"], id="user of a URL"),
        pytest.param("nats://hunter2@10.1.2.3:4222,b.example:4222", ["hunter2", "10.1.2", "b.ex"], id="token of a URL"),
        pytest.param("http://me:hun@ter2@h.example/", ["hun", "ter2", "h.ex"], id="an @ in a password"),
        pytest.param("https://hooks.example/services/T0/B0/hunter2", ["hunter2", "hooks"], id="path of a webhook"),
        pytest.param("http://a.example:1/x?token=hunter2&y=1", ["hunter2"], id="query"),
        pytest.param("the file has s3cr3t-of-a-file in it", ["s3cr3t"], id="known from a file"),
        pytest.param("kubelet 172.20.3.4:10250 and [2001:db8::7]:443", ["172.20", "2001:db8"], id="addresses"),
        pytest.param("node ip-10-0-0-1.ec2.internal", ["10-0-0-1"], id="an address in a name"),
        pytest.param("no answer at prometheus.monitoring.svc:9090", ["monitoring"], id="a host with a port"),
    ],
)
def test_what_is_planted_is_gone(text: str, secrets: list[str]) -> None:
    redactor = Redactor(["s3cr3t-of-a-file"])
    for form in (text, json.dumps({"a": text}), f"x{text!r}y", f"prefix {text}\nnext line"):
        found = redactor.redacted(form)
        assert [secret for secret in secrets if secret in found] == []


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-28T23:10:56.123456Z",
        "nats-server is 2.15.1, and TAS 0.1.0",
        "http://127.0.0.1:9002/metrics"[:21],
        "listens at 0.0.0.0:9001 and [::1]:9001",
        "cpu:p95:5m of default/demo-policy: 0.73",
        'tas_bus_connected{connection="tas-all"} 1.0',
        "tas_tls_remaining_seconds 1.7e+09",
    ],
)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert Redactor().redacted(text) == text


def test_equal_addresses_have_equal_numbers() -> None:
    redactor = Redactor()
    assert redactor.redacted("10.0.0.1 http://10.0.0.1:80/x 10.0.0.2") == "address-1 http://address-1:80 address-2"
    assert redactor.redacted("from 10.0.0.2") == "from address-2"


@given(st.text(characters), st.text(characters, min_size=6, max_size=40), st.text(characters))
def test_a_known_secret_is_in_no_text(before: str, secret: str, after: str) -> None:
    if secret in SECRET or secret in "address-12://localhost":
        return
    found = Redactor([secret]).redacted(before + secret + after)
    assert secret not in found.replace(SECRET, "")


@pytest.mark.parametrize("piece", ["x", "a.", "1.", ":", "token", "eyJ", "-----BEGIN ", "a://", "bearer ", "S"])
def test_the_time_grows_with_the_length(piece: str) -> None:
    """A log of a mebibyte took minutes."""

    def prepare(size: int) -> Callable[[], object]:
        text = piece * (size // len(piece))
        return lambda: Redactor(["hunter2"]).redacted(text)

    assert grows_linearly(prepare, 64_000)
