"""The file of sinks is checked as a whole; a sink gets what its settings admit."""

import msgspec
import pytest

from bus.buckets import SINK_CONSUMERS
from tas.events.data import BreakerReset, BreakerTripped, EventData, LabelApplied, SourceDry, Unknown
from tas.notifying.config import (
    MAX_SINKS,
    AlertmanagerConfig,
    ChatConfig,
    CloudEventsConfig,
    KubernetesEventsConfig,
    SinkConfig,
    admits,
    is_sink_url,
    parse_sinks,
)
from tas.values.document import DocumentError
from tests.unit.tas.notifying.making import event, started

CHAT = ChatConfig(url="https://chat.example/x")
CLOUDEVENTS = CloudEventsConfig(url="https://events.example/")
ALERTS = AlertmanagerConfig(urls=("http://alertmanager:9093",))


def mistakes(document: object) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        parse_sinks("sinks.yaml", document)
    return [str(mistake) for mistake in caught.value.mistakes]


def test_every_kind_of_sink_is_read() -> None:
    sinks = parse_sinks(
        "sinks.yaml",
        {
            "sinks": {
                "objects": {"type": "kubernetes-events", "events": ["violation", "label"]},
                "alerts": {
                    "type": "alertmanager",
                    "urls": ["http://a:9093", "http://b:9093"],
                    "resend": "30s",
                    "labels": {"cluster": "prod"},
                },
                "hook": {
                    "type": "cloudevents",
                    "url": "https://[::1]:8443/in?x=1",
                    "secret_file": "secret",
                    "tls_config": {"ca_file": "ca.crt"},
                    "policies": ["default/demo"],
                },
                "chat": {"type": "chat", "url_file": "url", "field": "content", "wait": "0s", "interval": "5m"},
            }
        },
    )
    assert list(map(type, sinks.values())) == [
        KubernetesEventsConfig,
        AlertmanagerConfig,
        CloudEventsConfig,
        ChatConfig,
    ]
    alerts = sinks["alerts"]
    assert isinstance(alerts, AlertmanagerConfig)
    assert alerts.resend_seconds == 30.0


def test_every_mistake_is_named_and_no_secret_is_quoted() -> None:
    found = mistakes(
        {
            "sinks": {
                "a": {"type": "pager"},
                "b": {"type": "chat"},
                "c": {"type": "chat", "url": "ftp://user:hidden@x"},
                "d": {"type": "alertmanager", "urls": []},
                "e": {"type": "chat", "url": "http://x", "wait": "ten"},
                "f": {"type": "chat", "url": "http://x", "events": ["violations"]},
                "g": {"type": "chat", "url": "http://x", "room": 1},
                "h": {"type": "cloudevents", "url": "http://x", "basic_auth": {"username": "a", "password": 7}},
                "i": {"type": "alertmanager", "urls": ["http://a"], "resend": "2h"},
                "j": {"type": "alertmanager", "urls": ["http://a"], "labels": {"my-label": "x"}},
                "k": {"type": "chat", "url": "http://x", "policies": ["demo"]},
                "l": {"type": "chat", "url": "http://x", "policies": ["Default/ demo"]},
                "m": {"type": "chat", "url": "http://x", "policies": []},
                "n": {"type": "cloudevents", "url": "http://x", "events": []},
                "K": {"type": "chat", "url": "http://x"},
            }
        }
    )
    assert len(found) == 15
    assert all(each.startswith("sinks.yaml: sinks") for each in found)
    assert not any("hidden" in each for each in found)
    assert any(
        "sinks.a.type" in each and "alertmanager, chat, cloudevents, kubernetes-events" in each for each in found
    )
    assert any("sinks.f" in each and "not 'violations'" in each for each in found)


def test_there_are_no_more_sinks_than_durable_consumers_for_them() -> None:
    assert len(SINK_CONSUMERS) == MAX_SINKS
    many = {f"s{number}": {"type": "chat", "url": "http://x"} for number in range(MAX_SINKS + 1)}
    assert mistakes({"sinks": many}) == [f"sinks.yaml: sinks = '{MAX_SINKS + 1} sinks': must have at most {MAX_SINKS}"]
    many.popitem()
    assert len(parse_sinks("sinks.yaml", {"sinks": many})) == MAX_SINKS


@pytest.mark.parametrize("document", [None, {}, {"sinks": {}}, {"sinks": None}, [], {"sink": {}}])
def test_a_file_without_a_sink_is_a_mistake(document: object) -> None:
    assert mistakes(document)


@pytest.mark.parametrize(
    ("url", "valid"),
    [
        ("http://host", True),
        ("https://host:8443/path?key=1&b=%20", True),
        ("http://[::1]:80/", True),
        ("http://user@host/", False),
        ("http://host/#part", False),
        ("http://host /", False),
        ("http://host\n/", False),
        ("http://host:0/", False),
        ("http://", False),
        ("host:80", False),
        ("file:///etc/passwd", False),
    ],
)
def test_the_url_of_a_sink(url: str, valid: bool) -> None:
    assert is_sink_url(url) is valid


LABEL = LabelApplied(node="node-1", label="demo", value="violating", policy="demo")
UNKNOWN = Unknown(document={"a": 1})
OF_DEMO = CloudEventsConfig(url="http://x", policies=("default/demo", "default/third"))


@pytest.mark.parametrize(
    ("config", "data", "resync", "admitted"),
    [
        (CHAT, started("node-1"), False, True),
        (CHAT, started("node-1"), True, False),
        (KubernetesEventsConfig(), started("node-1"), True, False),
        (CLOUDEVENTS, started("node-1"), True, True),
        (ALERTS, started("node-1"), True, True),
        (CHAT, LABEL, False, False),
        (CLOUDEVENTS, LABEL, False, True),
        (CLOUDEVENTS, UNKNOWN, False, True),
        (CHAT, UNKNOWN, False, False),
        (ChatConfig(url="http://x", events=("label",)), LABEL, False, True),
        (ChatConfig(url="http://x", events=("label",)), started("node-1"), False, False),
        (ChatConfig(url="http://x", policies=("default/demo",)), started("node-1"), False, True),
        (ChatConfig(url="http://x", policies=("default/other",)), started("node-1"), False, False),
        (OF_DEMO, started("node-1", policy="other"), False, False),
        (OF_DEMO, LABEL, False, True),
        (OF_DEMO, msgspec.structs.replace(LABEL, policy="other"), False, False),
        (OF_DEMO, BreakerTripped(policy="demo", limit=1, wanted=2), False, True),
        (OF_DEMO, BreakerReset(policy="other"), False, False),
        (OF_DEMO, BreakerTripped(limit=1, wanted=2), False, True),
        (OF_DEMO, SourceDry(source="prometheus"), False, True),
    ],
)
def test_what_a_sink_gets(config: SinkConfig, data: EventData, resync: bool, admitted: bool) -> None:
    assert admits(config, event(data, resync=resync)) is admitted
