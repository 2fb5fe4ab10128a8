"""`tas support`: what a bug report needs, and nothing that a stranger must not have."""

import stat
import tarfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
import pytest

from bus.connection import Bus
from bus.kinds import POLICY_RECORDS, PROCESSES, SOURCE_STATES
from bus.records.policies import PolicyRecord
from bus.subjects import ProcessKey
from cli.support_archive import MAX_FILE_BYTES
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.processes.process import Process
from tas.sources.state import SourceMetric, SourceState
from tests.integration.cli.tas import HEALTH, Tas
from tests.integration.servers import Server, answered

SECRETS = {
    "url": "hunter2-of-a-url",
    "log": "hunter2-of-a-log",
    "file": "hunter2-of-a-file",
    "variable": "hunter2-of-a-variable",
    "source": "hunter2-of-a-source",
    "process": "hunter2-of-a-process",
    "policy": "hunter2-of-a-policy",
}
ADDRESS = "10.77.66.55"


async def plant(bus: Bus) -> None:
    """A secret and an address in each kind of record that is shown."""
    now = time.time()
    state = SourceState(
        kind="prometheus",
        holder="h",
        since=now,
        time=now,
        period=5.0,
        problem=f"https://me:{SECRETS['source']}@{ADDRESS}:9090/api: refused",
        metrics={"load1": SourceMetric(missing=f"token={SECRETS['source']}")},
    )
    rule = {"metricname": "load1", "operator": "Equals", "target": 1}
    policy, problems = parse_policy(
        PolicyKey("default", "demo"),
        {"strategies": {"dontschedule": {"rules": [rule]}}, "password": SECRETS["policy"]},
    )
    process = Process(
        version=f"1 {SECRETS['file']}",
        name="h-1",
        started=now,
        workers={"extender": f"Bearer {SECRETS['process']} at {ADDRESS}"},
    )
    put = {"revision": 0, "read_at": time.monotonic()}
    await answered(partial(SOURCE_STATES.put, bus, "prometheus", state, **put))  # type: ignore[arg-type]
    record = PolicyRecord(policy=policy, uid="u", generation=1, problems=problems)
    await answered(partial(POLICY_RECORDS.put, bus, policy.key, record, **put))  # type: ignore[arg-type]
    await answered(partial(PROCESSES.put, bus, ProcessKey("extender", "a"), process, **put))  # type: ignore[arg-type]


def unpacked(path: Path) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.removeprefix("tas-support/")] = file.read()
    return found


@pytest.mark.usefixtures("long_limits")
async def test_the_archive_has_everything_but_secrets(tas: Tas, server: Server, bus: Bus, tmp_path: Path) -> None:
    await plant(bus)
    (tmp_path / "policies").mkdir()
    token, log = tmp_path / "token", tmp_path / "watch.log"
    token.write_text(SECRETS["file"] + "\n")
    lines = f"\nnats://me:{SECRETS['url']}@{ADDRESS}:4222 password={SECRETS['log']} {SECRETS['variable']}\nlast line"
    log.write_bytes(b"x" * (3 * MAX_FILE_BYTES) + lines.encode())
    tas.environment |= {"TAS_BUS": server.url, "TAS_SINK_TOKEN": SECRETS["variable"], "MY_PASSWORD": SECRETS["url"]}
    output = tmp_path / "report.tar.gz"
    async with tas.running("run", "policies", "--policies", str(tmp_path / "policies"), *HEALTH) as running:
        health = (await running.logged("health_listening"))["url"].removeprefix("http://")
        done = await tas(
            *("support", "--output", str(output), "--log", str(log), "--bus-token", str(token)),
            *("--extender-health", health),
        )
    assert done.code == 0, done.err
    files = unpacked(output)
    needed = {
        "about.json",
        "settings.json",
        "status.json",
        "doctor.json",
        "sources.json",
        "policies.json",
        "lacking.json",
    }
    assert needed | {"logs/1-watch.log", "extender-health/metrics.txt", "extender-health/readyz.json"} <= files.keys()
    for name, data in files.items():
        assert name in done.out, "each file is listed"
        for planted in (*SECRETS.values(), ADDRESS):
            assert planted.encode() not in data, (name, planted)
        assert len(data) <= MAX_FILE_BYTES
    assert files["logs/1-watch.log"].endswith(b"last line")
    assert b"tas_build_info" in files["extender-health/metrics.txt"]
    assert msgspec.json.decode(files["policies.json"])[0]["policy"] == "default/demo"
    assert any(each["check"] == "metrics.present" for each in msgspec.json.decode(files["doctor.json"]))
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    again = await tas("support", "--output", str(output))
    assert again.code == 1, "nothing is overwritten"
    assert "exists" in again.err


async def test_without_a_bus_it_says_what_is_lacking(tas: Tas, tmp_path: Path) -> None:
    tas.environment["TAS_BUS"] = f"nats://me:{SECRETS['url']}@127.0.0.1:1"
    output = tmp_path / "report.tar.gz"
    done = await tas("support", "--output", str(output))
    assert done.code == 0, done.err
    files = unpacked(output)
    assert "without sources.json" in done.out
    assert "without logs" in done.out
    assert b"no bus answers" in files["status.json"]
    assert all(SECRETS["url"].encode() not in data for data in files.values())
