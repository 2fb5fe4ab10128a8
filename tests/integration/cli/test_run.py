"""`tas run`: processes that start, report their health, and end."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.records.samples import encode_samples
from bus.subjects import samples_subject
from tas.samples.sample import Scrape
from tas.values.quantity import NANO, Quantity
from tests.e2e.processes import free_ports
from tests.integration.cli.tas import (
    FREE,
    HEALTH,
    Running,
    Tas,
    demo_policy,
    filter_request,
    policy_folder,
    replace_file,
)
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.running import samples_on

POLICY = demo_policy("""\
    dontschedule:
      rules:
        - {metricname: health_metric, operator: Equals, target: 2}
""")
PROCFILE = Path("Procfile").read_text()
HONCHO = """
import sys
from honcho import manager
from honcho.command import main
manager.KILL_WAIT = 100  # seconds: after 5, honcho would kill the processes of a busy machine
sys.exit(main())
"""


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    return policy_folder(tmp_path, POLICY)


@pytest.fixture
def as_a_user(tas: Tas) -> None:
    """A long-running command is a new process: a fork would not notice an import that the command itself lacks."""
    tas.forks = False


@pytest.fixture
async def everything(tas: Tas, policies: Path) -> AsyncIterator[Running]:
    """`tas run all`, ready."""
    async with tas.running("run", "all", "--policies", str(policies), *FREE) as running:
        await running.ready()
        yield running


def _is_gone(process: psutil.Process) -> bool:
    """Whether the process has ended; its entry may remain if no other process waits for it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_slowness(line: dict[str, Any]) -> bool:
    """Whether this log line of a warning or error only says that the machine is busy."""
    return line["event"] in ("event_loop_stalled", "bus_disconnected") or "no answer within" in line.get("error", "")


async def passing_nodes(running: Running) -> list[str]:
    url = (await running.logged("extender_listening"))["url"]
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/filter", json=filter_request("node-1", "node-2")) as response,
    ):
        assert response.status == 200
        answer = await response.json()
        names: list[str] = answer["NodeNames"]
        return names


@pytest.mark.usefixtures("as_a_user")
async def test_run_all_goes_from_a_published_sample_to_an_answer_and_ends_without_files(
    tas: Tas, everything: Running, policies: Path, tmp_path: Path
) -> None:
    assert await passing_nodes(everything) == ["node-1", "node-2"]

    async with Bus.connect((await tas("bus", "url")).out.strip(), name="program", streams=()) as program:
        await program.wait_connected()
    stranger = await tas("get", "nodes", "--bus", program.address, XDG_RUNTIME_DIR=str(tmp_path))
    assert "the server demands credentials, and none are given" in stranger.err
    done = await tas("publish", "node-1", "health_metric=2", "load1=1.5")
    assert done.code == 0, done.err
    url = (await everything.logged("bus_started"))["bus"]
    assert re.fullmatch(
        r"health_metric=2 load1=1\.5 of node-1 published and stored "
        rf"\(tas\.samples\.node-1\.cli at {url}, SAMPLES sequence \d+\)\n",
        done.out,
    )

    async def rejected() -> bool:
        return await passing_nodes(everything) == ["node-2"]

    await eventually(rejected)

    done = await tas("get", "nodes", "--json")
    (node,) = done.json
    assert node["node"] == "node-1"
    assert [(sample["metric"], sample["value"], sample["source"]) for sample in node["samples"]] == [
        ("health_metric", "2", "cli"),
        ("load1", "1.5", "cli"),
    ]
    done = await tas("get", "policies", "--json")
    (policy,) = done.json
    assert (policy["namespace"], policy["name"], policy["origin"]) == ("default", "demo-policy", "demo.yaml")

    done = await tas("explain", "node", "node-1", "--json")
    (rule,) = done.json["policies"][0]["strategies"][0]["rules"]
    assert (rule["rule"], rule["value"], rule["state"], rule["source"]) == (
        "health_metric Equals 2",
        "2",
        "violated",
        "cli",
    )
    for command, words in (
        (("get", "nodes"), r"node-1 +health_metric +2 +\S+ +cli"),
        (("get", "policies"), r"default/demo-policy +dontschedule +health_metric Equals 2 +- +demo\.yaml"),
        (("explain", "node", "node-1"), r"health_metric Equals 2 +2 +\S+ +cli +violated +violated"),
    ):
        done = await tas(*command)
        assert done.code == 0
        assert re.search(words, done.out), done.out

    replace_file(policies / "demo.yaml", POLICY.replace("target: 2", "target: 3"))

    async def passes_again() -> bool:
        return await passing_nodes(everything) == ["node-1", "node-2"]

    await eventually(passes_again)

    children = everything.descendants()
    assert [child.name() for child in children] == ["nats-server"]
    assert tas.left_behind()
    assert await everything.end() == 0
    assert tas.left_behind() == []
    assert all(_is_gone(child) for child in children)
    assert everything.noise == []
    problems = [line for line in everything.log if line["level"] in ("warning", "error")]
    assert [line for line in problems if not is_slowness(line)] == []


async def test_a_policy_uses_a_percentile_that_no_source_has(tas: Tas, tmp_path: Path) -> None:
    """Also from samples that were measured before: their median is above the target, the newest one is not."""
    # An hour: on a busy machine the test takes longer than a minute.
    rule = '{metricname: "load1:p50:1h", operator: GreaterThan, target: 5}'
    strategies = f"    dontschedule:\n      rules:\n        - {rule}\n"
    policies = policy_folder(tmp_path, demo_policy(f"{strategies}  staleAfter: 1h\n"))
    # Beside `windows` in one process: `collect`, with a source that nobody answers.
    source = ("--source", f"prometheus=http://127.0.0.1:{free_ports(1)[0]}")
    async with tas.running("run", "all", "--policies", str(policies), *source, *FREE) as running:
        await running.ready()
        for measured, value in (("-50m", 9), ("-20m", 7), ("-1s", 1)):
            assert (await tas("publish", "node-1", f"load1={value}", "--measured", measured)).code == 0

        async def rejected() -> bool:
            return await passing_nodes(running) == ["node-2"]

        await eventually(rejected)

        async def is_the_median() -> bool:
            done = await tas("explain", "node", "node-1", "--json")
            (rule_of_node,) = done.json["policies"][0]["strategies"][0]["rules"]
            return [rule_of_node[field] for field in ("value", "state", "source")] == ["7", "violated", "windows"]

        await eventually(is_the_median)  # of all three: two of them are enough for the rejection

        async def is_healthy() -> bool:
            done = await tas("get", "sources", "--json")
            return ("windows", "healthy") in [(source["source"], source["state"]) for source in done.json]

        await eventually(is_healthy)


async def test_the_health_port_reports_every_worker(everything: Running) -> None:
    status, text = await everything.health("/readyz")
    assert status == 200
    assert json.loads(text) == {
        "ready": True,
        "workers": {
            "bus": None,
            "materialize": None,
            "windows": None,
            "policies": None,
            "evaluate": None,
            "extender": None,
            "events": None,
        },
        "bus": None,
        "behind": {},
    }
    assert (await everything.health("/healthz"))[0] == 200
    assert (await everything.health("/answers"))[0] == 200
    assert (await everything.health("/api/v1/query?query=load1"))[0] == 404  # without --prometheus-query
    assert (await everything.health("/problems"))[1] == '{"problems":[]}\n'
    status, text = await everything.health("/metrics")
    assert status == 200
    for line in (
        'tas_worker_ready{worker="materialize"} 1.0',
        "tas_policies 1.0",
        "tas_nodes 0.0",
        'tas_samples_refused_total{reason="value"} 0.0',
    ):
        assert line in text.splitlines()
    connections = {line for line in text.splitlines() if line.startswith("tas_bus_connected{")}
    names = ("tas-all", "tas-all-watches")
    assert connections == {f'tas_bus_connected{{connection="{name}"}} 1.0' for name in names}, "one for each worker"


async def test_ctrl_c_is_an_orderly_end(tas: Tas, everything: Running) -> None:
    assert await everything.end(signal.SIGINT) == 0
    assert everything.noise == []
    assert tas.left_behind() == []


async def test_the_server_of_a_killed_process_ends_and_is_not_found_any_more(tas: Tas, everything: Running) -> None:
    (server,) = everything.descendants()
    everything.process.kill()
    await eventually(lambda: _is_gone(server))
    done = await tas("publish", "node-1", "load1=1", "--bus", "embedded")
    assert done.code == 1
    assert "this user runs no embedded bus" in done.err


async def test_a_process_fails_when_its_embedded_server_ends(everything: Running) -> None:
    (server,) = everything.descendants()
    server.kill()
    assert await everything.ended() == 1
    assert (await everything.logged("worker_failed"))["worker"] == "bus"


async def test_a_named_store_is_kept_and_used_by_the_next_process(tas: Tas, policies: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    arguments = ("run", "all", "--policies", str(policies), "--store", str(store), *FREE)
    async with tas.running(*arguments) as running:
        await running.ready()
        assert (await tas("publish", "node-1", "load1=1")).code == 0

        async def stored() -> bool:
            return bool((await tas("get", "nodes", "--json")).json)

        await eventually(stored)
        assert await running.end() == 0
    async with tas.running(*arguments) as running:
        await running.ready()
        assert [node["node"] for node in (await tas("get", "nodes", "--json")).json] == ["node-1"]
        assert await running.end() == 0
        assert running.events("policy_stored") == []


async def test_each_worker_runs_in_a_separate_process(tas: Tas, server: Server, policies: Path) -> None:
    bus = ("--bus", server.url, *HEALTH)
    async with (
        tas.running("run", "extender", *bus, "--listen", "127.0.0.1:0") as extender,
        tas.running("run", "materialize", *bus) as materialize,
        tas.running("run", "policies", *bus, "--policies", str(policies)) as directory,
        tas.running("run", "machine", *bus, "--node", "this-one", "--period", "100ms") as machine,
    ):
        for running in (extender, materialize, directory, machine):
            await running.ready()

        async def stored() -> bool:
            return [node["node"] for node in (await tas("get", "nodes", "--json", *bus[:2])).json] == ["this-one"]

        await eventually(stored)
        assert await passing_nodes(extender) == ["node-1", "node-2"]
        for running in (extender, materialize, directory, machine):
            assert await running.end() == 0
            assert running.noise == []


async def test_other_processes_find_the_embedded_bus_of_tas_run_bus(tas: Tas, policies: Path) -> None:
    async with tas.running("run", "bus", *HEALTH) as bus:
        await bus.ready()
        async with tas.running("run", "policies", "--policies", str(policies), *HEALTH) as directory:
            await directory.ready()
            assert [policy["name"] for policy in (await tas("get", "policies", "--json")).json] == ["demo-policy"]
            assert await directory.end() == 0
        assert await bus.end() == 0
    assert tas.left_behind() == []


async def test_a_worker_waits_for_a_bus_that_starts_later(tas: Tas, server: Server) -> None:
    await server.stop()
    async with tas.running("run", "materialize", "--bus", server.url, *HEALTH) as running:
        status, text = await running.health("/readyz")
        assert status == 503
        assert "not connected" in json.loads(text)["bus"]
        connected = 'tas_bus_connected{connection="tas-materialize"}'
        assert f"{connected} 0.0" in (await running.health("/metrics"))[1].splitlines()
        assert (await running.health("/healthz"))[0] == 200
        await server.start()
        await running.ready()
        assert f"{connected} 1.0" in (await running.health("/metrics"))[1].splitlines()
        assert await running.end() == 0


async def test_a_worker_ends_while_the_bus_hangs(tas: Tas, server: Server) -> None:
    async with tas.running("run", "materialize", "--bus", server.url, *HEALTH) as running:
        await running.ready()
        server.pause()
        assert await running.end() == 0
        server.resume()


async def test_a_fatal_signal_leaves_the_python_stack_on_stderr(tas: Tas) -> None:
    async with tas.running("run", "materialize", "--bus", "nats://127.0.0.1:1", *HEALTH) as running:
        await running.logged("health_listening")
        assert await running.end(signal.SIGABRT) == -signal.SIGABRT
        assert "Fatal Python error: Aborted\n" in running.noise
        assert any('cli/loop.py"' in line and "in run_to_end" in line for line in running.noise)


async def test_settings_come_from_the_environment_and_a_flag_overrides_it(tas: Tas, policies: Path) -> None:
    environment = {
        "TAS_POLICIES": str(policies),
        "TAS_LISTEN": "127.0.0.1:0",
        "TAS_HEALTH_LISTEN": "127.0.0.1:0",
        "TAS_LOG_LEVEL": "error",
        "TAS_STORE": "",
    }
    async with tas.running("run", "all", "--log-level", "info", **environment) as running:
        await running.ready()
        await running.logged("policy_stored")
        assert await running.end() == 0


async def test_console_logs_are_lines_for_people(tas: Tas, policies: Path) -> None:
    arguments = ("run", "all", "--policies", str(policies), "--log-format", "console", *FREE)
    async with tas.running(*arguments) as running:
        await eventually(lambda: any("extender_listening" in line for line in running.noise))
        assert await running.end() == 0
        assert running.log == []


async def test_all_invalid_settings_are_reported_together_and_nothing_starts(tas: Tas) -> None:
    done = await tas("run", "all", "--policies", "/nowhere", "--stale-after", "3h")
    assert done.code == 2
    assert done.err.splitlines() == [
        "tas run all: --stale-after (TAS_STALE_AFTER) = '3h': must be at most 1h",
        "tas run all: --policies (TAS_POLICIES) = '/nowhere': does not exist",
    ]
    assert tas.left_behind() == []


async def test_a_worker_without_the_embedded_bus_of_its_user_fails(tas: Tas) -> None:
    done = await tas("run", "materialize", "--bus", "embedded", *HEALTH)
    assert done.code == 2
    assert "this user runs no embedded bus" in done.err


@pytest.mark.parametrize(("setting", "purpose"), [("--listen", "extender"), ("--health-listen", "health")])
async def test_a_port_in_use_is_one_error_and_code_2(tas: Tas, policies: Path, setting: str, purpose: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ("run", "all", "--policies", str(policies), *FREE, setting, address)
        async with tas.running(*arguments) as running:
            assert await running.ended() == 2
    assert [line["event"] for line in running.log] == ["start_failed"]  # nothing has started before
    errors = [line["error"] for line in running.log]
    variable = "TAS_" + setting.removeprefix("--").replace("-", "_").upper()
    assert errors == [f"{purpose}: cannot listen on {address}: the port is in use ({setting}, {variable})"]
    assert running.noise == []
    assert tas.left_behind() == []


async def test_a_named_embedded_port_in_use_is_an_error(tas: Tas) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = await tas("run", "bus", "--embedded-port", port, *HEALTH)
    assert done.code == 2
    assert f"bus: cannot listen on 127.0.0.1:{port}: the port is in use" in done.err


async def test_a_second_process_on_the_same_store_is_refused(tas: Tas, tmp_path: Path) -> None:
    arguments = ("run", "bus", "--store", str(tmp_path / "store"), *HEALTH)
    async with tas.running(*arguments) as running:
        await running.ready()
        done = await tas(*arguments)
        assert done.code == 2
        assert "another nats-server uses the store" in done.err
        assert await running.end() == 0


def free_base() -> int:
    """A port from which honcho can count: in steps of 100 for each line, and of one for each process of a line."""
    for base in range(20000, 60000, 10):
        with suppress(OSError), ExitStack() as stack:
            for line, number in product(range(5), range(2)):
                probe = stack.enter_context(socket.socket())
                probe.bind(("127.0.0.1", base + 100 * line + number))
            return base
    raise AssertionError("no free ports")


@pytest.mark.ci
async def test_honcho_starts_several_of_a_line_of_the_procfile(tas: Tas, tmp_path: Path) -> None:
    pytest.importorskip("honcho")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, arguments in (("tas", "-m cli"), ("python", "")):
        (binaries / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (binaries / name).chmod(0o755)
    names = ("bus", "cluster", "materialize", "watch", "extender")
    lines = [line for line in PROCFILE.splitlines() if line.partition(":")[0] in names]
    (tmp_path / "Procfile").write_text("\n".join(lines) + "\n")
    base = free_base()
    bus, cluster, extender = map(str, free_ports(3))
    environment = {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "TAS_EMBEDDED_PORT": bus,
        "TAS_CLUSTER_PORT": cluster,
        "TAS_CLUSTER_FOLDER": str(tmp_path / "cluster"),
        "TAS_EXTENDER_PORT": extender,
    }
    ports = [base + 100 * [line.partition(":")[0] for line in lines].index(name) for name in names]
    ports += [port + 1 for name, port in zip(names, ports, strict=True) if name in ("materialize", "extender")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HONCHO, "start", "-f", str(tmp_path / "Procfile"), "-d", ".", "-p", str(base)),
        *("-c", "materialize=2,extender=2"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=tas.environment | environment,
    )
    try:

        async def ready(port: int) -> bool:
            assert process.returncode is None, "honcho has ended"
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"http://127.0.0.1:{port}/readyz") as response,
                ):
                    return response.status == 200
            except aiohttp.ClientConnectionError:
                return False

        for port in ports:
            await eventually(lambda port=port: ready(port))  # type: ignore[misc]
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        async with asyncio.timeout(120):
            await process.wait()
    assert tas.left_behind() == []


async def test_replicas_of_materialize_lose_nothing_when_one_is_killed(tas: Tas, server: Server, bus: Bus) -> None:
    arguments = ("run", "materialize", "--bus", server.url, *HEALTH)
    async with tas.running(*arguments) as first, tas.running(*arguments) as second:
        await first.ready()
        await second.ready()

        async def publish(number: int) -> None:
            now = time.time()
            metrics = {"number": Quantity(number * NANO)}
            scrape = Scrape(source="test", measured=now, arrived=now, sequence=0, metrics=metrics)
            subject, body = samples_subject(f"node-{number % 50}", "test"), encode_samples(scrape)
            await answered(lambda: bus.publish(SAMPLES, subject, body))

        for start in range(0, 4000, 50):
            await asyncio.gather(*(publish(number) for number in range(start, start + 50)))
            if start == 2000:
                first.process.kill()

        async def all_stored() -> bool:
            samples = [await answered(lambda node=node: samples_on(bus, f"node-{node}")) for node in range(50)]  # type: ignore[misc]
            return [None if known is None else known[0].metrics["number"] // NANO for known in samples] == list(
                range(3950, 4000)
            )

        # Messages that the killed replica had not acknowledged are delivered again after their time limit.
        await eventually(all_stored, every=0.1)
        assert await second.end() == 0


async def test_a_metric_that_is_nearly_a_statistic_is_said_at_the_start(tas: Tas, server: Server) -> None:
    names = "cpu:p95:5m,load,job:latency:p99,cpu:p95:5min"
    async with tas.running("run", "windows", "--bus", server.url, "--metrics", names, *HEALTH) as running:
        warned = await running.logged("metric_no_statistic")
        assert (warned["setting"], warned["value"]) == ("--metrics (TAS_METRICS)", "cpu:p95:5min")
        assert warned["reason"].endswith("5min is no duration from 1m to 24h (units: s, m, h, d)")
        await running.logged("workers_started")
        assert len(running.events("metric_no_statistic")) == 1
