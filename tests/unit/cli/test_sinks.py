"""The sinks of the settings are built, or the start ends with every mistake of their file."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from cli.settings import Settings
from cli.sinks import sinks_of
from workers.kubernetes.client import KubernetesClient
from workers.process.errors import StartError
from workers.publishing.sinks.base import Sink, SinkMetrics


async def built(folder: Path, text: str) -> list[Sink]:
    """The sinks of a file with this text, without a cluster."""
    (folder / "sinks.yaml").write_text(text)
    settings = Settings.load("run notify", {"sinks": str(folder / "sinks.yaml")})
    bus = Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1)  # sends nothing

    async def connect() -> KubernetesClient:
        raise AssertionError

    return await sinks_of(settings, bus, connect, SinkMetrics(CollectorRegistry()))


async def test_each_sink_is_built_by_its_type(tmp_path: Path) -> None:
    sinks = await built(
        tmp_path,
        """
        sinks:
          alerts: {type: alertmanager, urls: ["http://127.0.0.1:9093"]}
          hook: {type: cloudevents, url: "http://127.0.0.1:1"}
          team: {type: chat, url: "http://127.0.0.1:1"}
        """,
    )
    assert [(sink.name, type(sink).__name__, sink.shared) for sink in sinks] == [
        ("alerts", "AlertmanagerSink", False),
        ("hook", "CloudEventsSink", True),
        ("team", "ChatSink", True),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sinks: {k: {type: kubernetes-events}}", r"sinks\.k needs --kubeconfig"),
        ("sinks: {a: {type: chat}, b: {type: mail}}", r"sinks\.a.*; .*sinks\.b"),
        ("sinks: [", r"sinks\.yaml: "),
        ("", "must have at least one sink"),
    ],
)
async def test_an_invalid_file_is_an_error_at_the_start(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(StartError, match=problem):
        await built(tmp_path, text)
