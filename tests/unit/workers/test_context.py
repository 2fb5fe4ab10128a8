"""What a process has once, and says of itself."""

import base64
import json
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from cli.loading import load_settings
from tests.certificates import Authority
from workers.context import Context


@pytest.mark.parametrize("in_file", [True, False], ids=["data", "path"])
async def test_a_process_says_when_the_certificate_of_its_kubeconfig_expires(tmp_path: Path, in_file: bool) -> None:
    pair = Authority("cluster").client("tas", lives=timedelta(hours=9))
    user = {"client-certificate": pair.certificate, "client-key": pair.key}
    for name, content in user.items():
        (tmp_path / name).write_bytes(content)
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": _in_file(user) if in_file else {name: str(tmp_path / name) for name in user}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        context = Context(load_settings("run labels", {"kubeconfig": str(file)}), stack, registry)
        await context.connect_kubernetes("labels")
    end = x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc.timestamp()
    assert context.expires == {"kubeconfig": end}
    remaining = registry.get_sample_value("tas_tls_remaining_seconds", {"file": "kubeconfig"})
    assert remaining is not None
    assert 0 < end - time.time() <= remaining < 9 * 3600


def _in_file(user: dict[str, bytes]) -> dict[str, str]:
    return {f"{name}-data": base64.b64encode(content).decode() for name, content in user.items()}


async def test_a_process_says_when_the_first_of_its_credentials_and_certificates_for_the_bus_expire() -> None:
    context = Context(load_settings("run labels", {}), AsyncExitStack(), CollectorRegistry())
    assert context.expires == {}
    for dates in ({"bus": 9.0, "bus-cert": 5.0}, {"bus": 7.0, "bus-cert": 8.0}, {}):
        bus = Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1)  # it never connects
        bus._expires = dates
        context._buses.append(bus)
    assert [each.credentials_expire for each in context._buses] == [5.0, 7.0, float("inf")]
    assert context.expires == {"bus": 7.0, "bus-cert": 5.0}
