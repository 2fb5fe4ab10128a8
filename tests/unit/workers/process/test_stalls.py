"""The thread that logs when the event loop stalls and resumes."""

import asyncio
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.integration.servers import eventually
from workers.process.stalls import _is_library, stalls_logged

PATIENCE = 120.0
SPINNING = "extension gpu: filter"
LONGEST = 2.0
"""Seconds of a stall of these tests, if it is not noticed before: on a busy machine another one may be noticed."""


async def spin(until: threading.Event) -> None:
    """Runs without awaiting."""
    deadline = time.monotonic() + LONGEST
    while not until.is_set() and time.monotonic() < deadline:
        pass


async def test_a_stall_is_logged_once_with_its_task_and_line_and_its_end_is_logged() -> None:
    stalled = threading.Event()
    with capture_logs() as logs:
        async with stalls_logged(stalled.set, check_seconds=0.02):

            async def is_logged() -> bool:
                stalled.clear()
                await asyncio.create_task(spin(stalled), name=SPINNING)
                return any(line.get("task") == SPINNING for line in logs)

            async def is_resumed() -> bool:
                return bool(logs) and logs[-1]["event"] == "event_loop_resumed"

            await eventually(is_logged, within=PATIENCE)
            await eventually(is_resumed, within=PATIENCE)

    error = next(line for line in logs if line.get("task") == SPINNING)
    assert (error["event"], error["log_level"]) == ("event_loop_stalled", "error")
    assert error["at"].startswith("test_stalls.py:")
    assert error["at"].endswith(" in spin")
    assert "in spin" in error["stack"]
    assert error["seconds"] > 0


async def test_a_stall_in_the_standard_library_is_logged_with_the_calling_line() -> None:
    stalled = threading.Event()
    with capture_logs() as logs:
        async with stalls_logged(stalled.set, check_seconds=0.02):

            async def is_logged() -> bool:
                stalled.clear()
                stalled.wait(LONGEST)  # in threading.py
                return any("in wait" in line.get("stack", "") for line in logs)

            await eventually(is_logged, within=PATIENCE)

    line = next(line for line in logs if "in wait" in line.get("stack", ""))
    assert line["event"] == "event_loop_stalled"
    assert line["at"].startswith("test_stalls.py:")


async def test_each_stall_is_counted_once_however_long_it_is() -> None:
    check_seconds, stalls = 0.02, 0
    stalled = threading.Event()

    def count() -> None:
        nonlocal stalls
        stalls += 1
        stalled.set()

    with capture_logs() as logs:

        def events(event: str) -> int:
            return sum(line["event"] == event for line in logs)

        async with stalls_logged(count, check_seconds=check_seconds):
            for _ in range(2):
                stalled.clear()
                stalled.wait(PATIENCE)
                time.sleep(5 * check_seconds)  # noqa: ASYNC251 - the stall goes on
                await eventually(lambda: events("event_loop_resumed") == stalls, within=PATIENCE)

    found = [line["event"] for line in logs]
    pairs = ["event_loop_stalled", "event_loop_resumed"] * stalls
    assert found in (pairs, pairs[:-1])  # on a busy machine one more may have begun at the end
    assert stalls >= 2


@pytest.mark.parametrize(("path", "is_library"), [("threading.py", True), ("site-packages/extension.py", False)])
def test_an_extension_that_is_installed_in_the_standard_library_s_folder_is_not_taken_for_it(
    path: str, is_library: bool
) -> None:
    assert _is_library(Path(threading.__file__).parent / path) is is_library


async def test_the_thread_ends_when_the_body_fails() -> None:
    names: list[str] = []

    async def fail() -> None:
        async with stalls_logged(lambda: None):
            names.extend(thread.name for thread in threading.enumerate())
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await fail()

    assert "stalls" in names
    assert "stalls" not in {thread.name for thread in threading.enumerate()}
