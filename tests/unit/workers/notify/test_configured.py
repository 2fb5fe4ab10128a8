"""The sinks of the settings are built, or the start ends with every mistake of their file."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.connection import Bus
from cli.loading import load_settings
from tests.integration.servers import eventually
from workers.kubernetes.client import KubernetesClient
from workers.notify.configured import SinksFile, sinks_file
from workers.notify.sinks.base import SinkMetrics
from workers.process.errors import StartError


def file_of(folder: Path, text: str, registry: CollectorRegistry | None = None) -> SinksFile:
    """A file of sinks with this text, without a cluster."""
    replace(folder, text)
    settings = load_settings("run notify", {"sinks": str(folder / "sinks.yaml")})
    bus = Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1)  # sends nothing

    async def connect() -> KubernetesClient:
        raise AssertionError

    return sinks_file(settings, bus, connect, SinkMetrics(registry or CollectorRegistry()))


async def test_each_sink_is_built_by_its_type(tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        """
        sinks:
          alerts: {type: alertmanager, urls: ["http://127.0.0.1:9093"]}
          hook: {type: cloudevents, url: "http://127.0.0.1:1"}
          team: {type: chat, url: "http://127.0.0.1:1"}
        """,
    )
    assert [(sink.name, type(sink).__name__, sink.shared) for sink in await file.load()] == [
        ("alerts", "AlertmanagerSink", False),
        ("hook", "CloudEventsSink", True),
        ("team", "ChatSink", True),
    ]


async def test_a_change_starts_only_the_sinks_with_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.process.followed_file.CHECK_SECONDS", 0.01)
    registry = CollectorRegistry()

    async def is_readable(expected: bool) -> None:
        await eventually(lambda: registry.get_sample_value("tas_notify_sinks_readable") == expected)

    same, first = (
        'same: {type: chat, url: "http://127.0.0.1:1"}',
        'hook: {type: cloudevents, url: "http://127.0.0.1:1"}',
    )
    file = file_of(tmp_path, f"sinks: {{{same}, {first}}}", registry)
    before = {sink.name: sink for sink in await file.load()}
    changing = asyncio.create_task(file.changed())
    for text in ("sinks: [", "sinks: {same: {type: kubernetes-events}}", None, f"sinks: {{{same}, hook: {{}}}}"):
        with capture_logs() as logs:
            replace(tmp_path, text)
            await is_readable(False)
            replace(tmp_path, f"sinks: {{{same}, {first}}}")
            await is_readable(True)
        assert [line["event"] for line in logs] == ["sinks_unreadable", "sinks_read"]
    replace(tmp_path, "sinks: {}")
    await is_readable(False)
    assert not changing.done()
    replace(tmp_path, f"sinks: {{{same}, {first.replace(':1', ':2')}, new: {first[6:]}}}")
    after = {sink.name: sink for sink in await changing}
    assert after.keys() == {"same", "hook", "new"}
    assert after["same"] is before["same"]
    assert after["hook"] is not before["hook"]
    await is_readable(True)


async def test_only_a_sink_that_runs_takes_the_metrics_of_its_name(tmp_path: Path) -> None:
    """Of a file that is refused for another sink, a sink is built and never runs, while the one before goes on."""
    registry = CollectorRegistry()
    file = file_of(tmp_path, 'sinks: {alerts: {type: alertmanager, urls: ["http://127.0.0.1:1"]}}', registry)
    (sink,) = await file.load()

    def firing() -> float | None:
        return registry.get_sample_value("tas_notify_alerts", {"sink": "alerts"})

    assert firing() is None
    running = asyncio.create_task(sink.run())
    await eventually(lambda: firing() == 0.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def replace(folder: Path, text: str | None) -> None:
    """Replaces the file by a change of a symbolic link, as kubelet does with a ConfigMap; None: without a file."""
    data = Path(tempfile.mkdtemp(dir=folder))
    if text is not None:
        (data / "sinks.yaml").write_text(text)
    (data / "link").symlink_to(data / "sinks.yaml")
    (data / "link").rename(folder / "sinks.yaml")


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
        await file_of(tmp_path, text).load()
