"""A fork of the process that has imported the product is a process of its own, as a new interpreter is."""

import asyncio
import json
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.processes import clean_environment
from tests.forks import FREE_MEMORY, Fork, ForkedCommand, ForkedProcess
from tests.integration.bursts import BURST_BYTES
from tests.integration.servers import eventually

WAITING = ("-m", "cli", "run", "evaluate", "--bus", "nats://127.0.0.1:1", "--health-listen", "127.0.0.1:0")
"""A worker that waits for its bus."""


@contextmanager
def fork(folder: Path, *words: str, **environment: str) -> Iterator[ForkedProcess]:
    log = folder / "log"
    process = ForkedProcess("fork", words, log=log, env=environment, cwd=folder, death_signal=signal.SIGKILL)
    try:
        yield process
    finally:
        process.kill()


def waiting(folder: Path, **environment: str) -> AbstractContextManager[ForkedProcess]:
    return fork(folder, *WAITING, **environment)


async def has_logged(process: ForkedProcess, event: str) -> None:
    def is_logged() -> bool:
        process.must_run()
        return any(json.loads(line)["event"] == event for line in process.log.read_text().splitlines())

    await eventually(is_logged)


def test_its_exit_code_and_output_are_those_of_the_command(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as its_out, err.open("wb") as its_err:
        output = (its_out.fileno(), its_err.fileno())
        fork = Fork(("-m", "cli", "run", "evaluate", "--period"), output=output, env={}, cwd=tmp_path)
    assert fork.wait(120) == fork.poll() == 2
    assert out.read_text() == ""
    assert "No such option" in err.read_text()
    fork.send_signal(signal.SIGTERM)  # to nobody


async def test_its_output_can_be_read_while_it_runs_and_ends_with_it() -> None:
    command = await ForkedCommand.start(WAITING, {"TAS_LOG_FORMAT": "json"})
    async with asyncio.timeout(120):
        while json.loads(await command.stderr.readline())["event"] != "workers_started":
            pass
        is_running = command.returncode is None
        os.kill(command.pid, signal.SIGTERM)
        out, err = await command.communicate()
    assert is_running
    assert (await command.wait(), command.returncode, out) == (0, 0, b"")
    assert "workers_stopped" in [json.loads(line)["event"] for line in err.splitlines()]


async def test_a_kill_is_the_exit_code_and_ends_its_output() -> None:
    command = await ForkedCommand.start(WAITING, {})
    async with asyncio.timeout(120):
        await command.stderr.readline()
        command.kill()
        await command.communicate()
        assert await command.wait() == -signal.SIGKILL


async def test_it_has_its_own_session_environment_files_and_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"event": "of an earlier process"}\n')
    with waiting(tmp_path, TAS_LOG_FORMAT="json") as process:
        await has_logged(process, "health_listening")
        await has_logged(process, "of an earlier process")
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        seen = psutil.Process(process.pid)
        assert [each.status for each in seen.net_connections("inet") if each.status == psutil.CONN_LISTEN] == ["LISTEN"]
        files = {each.path for each in seen.open_files()}
        assert files <= {str(process.log)}
        process.send(signal.SIGSTOP)
        await eventually(lambda: seen.status() == psutil.STATUS_STOPPED)
        assert process.is_running
        process.kill()
        with pytest.raises(RuntimeError, match="fork ended with -9"):
            process.must_run()


async def test_a_signal_ends_it_in_order_and_another_one_starts(tmp_path: Path) -> None:
    with waiting(tmp_path, TAS_LOG_FORMAT="json") as process:
        await has_logged(process, "workers_started")
        first = process.pid
        assert process.stop(patience=120) == 0
        process.restart()
        assert process.pid != first
        await eventually(lambda: process.log.read_text().count('"workers_started"') == 2)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can return memory on demand")
async def test_it_returns_memory_that_a_burst_has_left_free(tmp_path: Path) -> None:
    with fork(tmp_path, "-m", "tests.integration.bursts") as process:
        await eventually(lambda: process.log.read_text() != "")
        used = psutil.Process(process.pid).memory_info
        before = used().rss
        process.send(FREE_MEMORY)
        await eventually(lambda: used().rss < before - BURST_BYTES / 2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
async def test_it_ends_with_the_server_that_ends_with_the_test(tmp_path: Path) -> None:
    with waiting(tmp_path, **clean_environment(TAS_LOG_FORMAT="json")) as process:
        await has_logged(process, "workers_started")
        server = psutil.Process(process.pid).parent()
        assert server is not None
        assert server.ppid() == os.getpid()
        server.kill()
        await eventually(lambda: not process.is_running)
