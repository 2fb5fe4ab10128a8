"""The configuration in docs/how-to/notify.md is valid; with cloudevents.md it has every field and every alert."""

import base64
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.deliveries import FIRST_SECONDS
from tas.events.cloudevents import structured
from tas.notifying.alerts import CONFIRM_SECONDS, PREFIX, RESOLVED_SECONDS
from tas.notifying.chat import MAX_TEXT
from tas.notifying.config import (
    DEFAULT_KINDS,
    AlertmanagerConfig,
    ChatConfig,
    CloudEventsConfig,
    KubernetesEventsConfig,
    parse_sinks,
)
from tas.notifying.digest import SHOWN
from tas.notifying.notices import KINDS, notice_of
from tas.notifying.outbox import MAX_ATTEMPTS
from tas.notifying.signature import parse_secrets, signature_headers, webhook_id
from tests.unit.tas.events.examples import EXAMPLES
from tests.unit.tas.notifying.making import event, started
from workers.process.manifests import read_yaml

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "notify.md").read_text() + (DOCS / "how-to" / "cloudevents.md").read_text()
TYPES = (KubernetesEventsConfig, AlertmanagerConfig, CloudEventsConfig, ChatConfig)


def test_the_example_has_each_type_of_sink() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (document,) = read_yaml(text.encode())
    assert {type(sink) for sink in parse_sinks("docs/how-to/notify.md", document).values()} == set(TYPES)


def test_every_field_and_every_kind_of_event_is_on_the_page() -> None:
    fields = {field.encode_name for kind in TYPES for field in msgspec.structs.fields(kind)}
    assert {name for name in fields | KINDS if f"`{name}`" not in PAGE} == set()


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    chat = ChatConfig(url="http://x")
    assert f"| `{chat.wait}`, `{chat.interval}` |" in text
    (left_out,) = re.findall(r"\| all but ([^;|]+); `cloudevents`: all \|", text)
    assert set(re.findall(r"`(\w+)`", left_out)) == KINDS - DEFAULT_KINDS
    assert f"An ended alert is sent again for {RESOLVED_SECONDS / 60:g} minutes" in text
    assert f"not announced again within {CONFIRM_SECONDS / 60:g} minutes" in text
    assert f"An event that failed {MAX_ATTEMPTS} times" in text
    assert f"begins with the events of the last {FIRST_SECONDS / 60:g} minutes" in text
    assert f"names {SHOWN} nodes of each line" in text
    assert MAX_TEXT <= 2000  # of Discord (facts.md V6)


def test_every_alert_is_on_the_page_with_its_labels() -> None:
    rows = dict(re.findall(rf"^\| `{PREFIX}(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    found = {}
    for data in EXAMPLES:
        notice = notice_of(event(data))
        if notice is not None and notice.begins:
            found[notice.condition] = set(notice.labels)
    assert found == {
        name: set(re.findall(r"\w+", labels.partition(";")[0].partition(" (")[0])) for name, labels in rows.items()
    }


SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + base64.b64encode(bytes(32)).decode()
EVENT = event(started("node-1"))


@pytest.fixture(scope="module")
def receiver() -> Callable[[str, dict[str, str], bytes], Any]:
    """The receiver of the page."""
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(text, names)
    found: Callable[[str, dict[str, str], bytes], Any] = names["event_of"]
    return found


def signed(body: bytes, *, now: float, secrets: str = SECRET) -> dict[str, str]:
    return signature_headers(parse_secrets(secrets), identity=webhook_id(EVENT), now=now, body=body)


def test_the_receiver_of_the_page_accepts_what_is_sent(receiver: Callable[..., Any]) -> None:
    body = structured(EVENT)
    for secrets in (SECRET, f"{OTHER} {SECRET}"):
        found = receiver(SECRET, signed(body, now=time.time(), secrets=secrets), body)
        assert (found["type"], found["id"], found["data"]["node"]) == (EVENT.type, EVENT.id, "node-1")


@pytest.mark.parametrize(
    "forged",
    [
        {"type": EVENT.type.replace("started", "ended")},
        {"subject": "nodes/node-2"},
        {"time": 2000.0},
        {"id": "1/2/violation.started.v1/node-1"},
        {"source": "/other"},
        {"data": started("node-2")},
    ],
    ids=lambda forged: next(iter(forged)),
)
def test_the_receiver_of_the_page_refuses_another_event_under_a_signature(
    receiver: Callable[..., Any], forged: dict[str, Any]
) -> None:
    body = structured(msgspec.structs.replace(EVENT, **forged))
    assert body != structured(EVENT)
    with pytest.raises(ValueError, match="signature"):
        receiver(SECRET, signed(structured(EVENT), now=time.time()), body)


def test_the_receiver_of_the_page_refuses_a_replay_and_another_secret(receiver: Callable[..., Any]) -> None:
    body, now = structured(EVENT), time.time()
    recorded = signed(body, now=now - 600)
    with pytest.raises(ValueError, match="not of now"):
        receiver(SECRET, recorded, body)
    for changed in ({"webhook-timestamp": str(int(now))}, {"webhook-id": "evt_other"}):
        with pytest.raises(ValueError, match="signature"):
            receiver(SECRET, recorded | changed, body)
    with pytest.raises(ValueError, match="signature"):
        receiver(SECRET, signed(body, now=now, secrets=OTHER), body)
