"""Signatures in the form of Standard Webhooks."""

import base64

import msgspec
import pytest

from tas.notifying.signature import SecretError, parse_secrets, signature_headers, webhook_id
from tests.unit.tas.notifying.making import event, started

EXAMPLE = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_example_of_the_specification_gives_its_signature_facts_V1() -> None:
    headers = signature_headers(
        parse_secrets(EXAMPLE), identity="msg_p5jXN8AQM9LWM0D4loKWxJek", now=1614265330.9, body=b'{"test": 2432232314}'
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_while_a_secret_changes_a_request_has_both_signatures() -> None:
    new = "whsec_" + base64.b64encode(bytes(24)).decode()
    both = signature_headers(parse_secrets(f"{new}\n{EXAMPLE}\n"), identity="evt_1", now=1, body=b"x")
    each = [signature_headers(parse_secrets(one), identity="evt_1", now=1, body=b"x") for one in (new, EXAMPLE)]
    assert both["webhook-signature"].split() == [one["webhook-signature"] for one in each]
    assert each[0] != each[1]


def test_the_id_has_no_full_stop_at_which_a_receiver_could_be_misled() -> None:
    ids = {webhook_id(event(started("node-1.example", policy="demo.policy"), revision=n)) for n in range(100)}
    assert len(ids) == 100
    of_other_cluster = msgspec.structs.replace(event(started("node-1.example")), source="/other")
    assert webhook_id(of_other_cluster) != webhook_id(event(started("node-1.example")))
    assert not any("." in each for each in ids)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_%%%",
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
        f"{EXAMPLE} whsec_x",
    ],
)
def test_an_invalid_secret_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(SecretError) as caught:
        parse_secrets(text)
    assert "MfKQ" not in str(caught.value)
