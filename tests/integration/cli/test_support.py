"""`tas support`: what a bug report needs, and nothing that a stranger must not have."""

import errno
import json
import os
import resource
import stat
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from bus.connection import Bus
from bus.kinds import POLICY_RECORDS, PROCESSES, SOURCE_STATES
from bus.records.policies import PolicyRecord
from bus.subjects import ProcessKey
from cli.doctor.bus_facts import no_bus
from cli.loading import load_settings
from cli.support_archive import MAX_FILE_BYTES, Collected, _write, write_archive
from cli.support_logs import MAX_PODS
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
    tas.long_limits = False
    output = tmp_path / "report.tar.gz"
    done = await tas("support", "--output", str(output))
    assert done.code == 0, done.err
    files = unpacked(output)
    assert "without sources.json" in done.out
    assert "without logs" in done.out
    assert b"no bus answers" in files["status.json"]
    assert all(SECRETS["url"].encode() not in data for data in files.values())


@asynccontextmanager
async def pods(folder: Path, logs: Mapping[str, str]) -> AsyncIterator[tuple[Path, list[str]]]:
    """The part of an API server that has pods with logs: a kubeconfig for it, and the requested paths of logs."""
    asked: list[str] = []

    async def listed(request: web.Request) -> web.Response:
        items = [
            {"metadata": {"name": name, "namespace": "tas", "uid": name}}
            for name in logs
            if request.query.get("labelSelector") == "app.kubernetes.io/name=tas-on-nats"
        ]
        kind = {"kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "1"}}
        return web.json_response(kind | {"items": items})

    async def log(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        name, query = request.match_info["name"], request.query
        if query.get("previous") == "true" and not name.startswith("crashed"):
            return web.json_response({"kind": "Status", "code": 400, "message": "previous terminated"}, status=400)
        lines = logs[name].splitlines()[-int(query["tailLines"]) :]
        return web.Response(text="\n".join(lines)[: int(query["limitBytes"])])

    app = web.Application()
    app.add_routes([web.get("/api/v1/pods", listed), web.get("/api/v1/namespaces/tas/pods/{name}/log", log)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        kubeconfig = folder / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}
        named = {"clusters": [{"name": "t", "cluster": cluster}], "users": [{"name": "t", "user": {}}]}
        context = [{"name": "t", "context": {"cluster": "t", "user": "t"}}]
        kubeconfig.write_text(json.dumps(named | {"current-context": "t", "contexts": context}))
        yield kubeconfig, asked
    finally:
        await runner.cleanup()


async def test_with_a_cluster_it_has_the_end_of_the_logs_of_our_pods(tas: Tas, tmp_path: Path) -> None:
    tas.environment["TAS_BUS"] = "nats://127.0.0.1:1"
    tas.long_limits = False
    secret = f"nats://me:{SECRETS['log']}@{ADDRESS}:4222 password={SECRETS['log']}"
    lines = "\n".join(["first line", *["x" * 900] * 3000])
    output = tmp_path / "report.tar.gz"
    logs = {"watch": f"{secret}\nlast line", "crashed": lines} | {f"z-{number:02}": "z" for number in range(30)}
    async with pods(tmp_path, logs) as (kubeconfig, asked):
        done = await tas("support", "--output", str(output), "--kubeconfig", str(kubeconfig))
    assert done.code == 0, done.err
    files = unpacked(output)
    assert b"REDACTED" in files["logs/tas-watch.log"]
    assert files["logs/tas-watch.log"].endswith(b"last line")
    assert "logs/tas-watch.previous.log" not in files
    for name in ("logs/tas-crashed.log", "logs/tas-crashed.previous.log"):
        assert len(files[name]) <= MAX_FILE_BYTES
        assert b"first line" not in files[name]
    for data in files.values():
        assert SECRETS["log"].encode() not in data
        assert ADDRESS.encode() not in data
    assert len(asked) == 2 * MAX_PODS
    assert "without logs: those of 8 more pods" in done.out


async def test_a_cluster_that_gives_no_logs_is_named(tas: Tas, tmp_path: Path) -> None:
    tas.environment["TAS_BUS"] = "nats://127.0.0.1:1"
    tas.long_limits = False
    async with pods(tmp_path, {}) as (kubeconfig, _):
        done = await tas("support", "--output", str(tmp_path / "one.tar.gz"), "--kubeconfig", str(kubeconfig))
    assert "without logs: no pod of the cluster has the label app.kubernetes.io/name=tas-on-nats" in done.out
    done = await tas("support", "--output", str(tmp_path / "two.tar.gz"), "--kubeconfig", str(kubeconfig))
    assert done.code == 0
    assert "without logs: " in done.out


async def test_that_a_large_file_is_cut_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def collected(*_: object, **__: object) -> Collected:
        return Collected({"a.json": b"x" * MAX_FILE_BYTES, "b.json": b"x" * (MAX_FILE_BYTES + 1)}, {})

    monkeypatch.setattr("cli.support_archive._collected", collected)
    output = tmp_path / "report.tar.gz"
    assert await write_archive(load_settings("support", {}), no_bus("none"), None, output, ()) == 0
    text = "all but the first 2,097,152 of its 2,097,153 bytes"
    assert f"  without b.json: {text}\n" in capsys.readouterr().out
    files = unpacked(output)
    assert len(files["b.json"]) == MAX_FILE_BYTES
    assert msgspec.json.decode(files["lacking.json"]) == {"b.json": text}


def test_on_a_full_disk_no_part_of_an_archive_remains(tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk: it ends a write as a full disk does, after some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(OSError) as raised:  # noqa: PT011 - the number is compared below
            _write(tmp_path / "report.tar.gz", {"x": os.urandom(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_somebody_makes_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands of one second have the same name for their archives."""
    output = tmp_path / "report.tar.gz"
    made = tempfile.mkstemp

    def made_late(*args: Any, **options: Any) -> tuple[int, str]:
        monkeypatch.setattr("tempfile.mkstemp", made)
        with pytest.raises(FileExistsError):
            _write(output, {"other": b"x"})
        return made(*args, **options)

    monkeypatch.setattr("tempfile.mkstemp", made_late)
    _write(output, {"own": b"x"})
    assert list(tmp_path.iterdir()) == [output]
    assert list(unpacked(output)) == ["own"]
    with pytest.raises(FileExistsError):
        _write(output, {"other": b"x"})
    assert list(unpacked(output)) == ["own"]
