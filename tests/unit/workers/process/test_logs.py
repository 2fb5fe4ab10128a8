"""Logs: the two formats, log lines of libraries, and the suppression of repeated lines."""

import io
import logging

import orjson
import pytest
import structlog
from structlog.testing import capture_logs

from tests.integration.servers import eventually
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import GroupedLog, ThrottledLog, configure_logging, logging_to

pytestmark = pytest.mark.usefixtures("logging_restored")


def logged(form: LogFormat, level: LogLevel = LogLevel.INFO) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(form, level, stream=stream)
    return stream


def test_json_lines_hold_event_level_logger_time_and_fields() -> None:
    stream = logged(LogFormat.JSON)
    structlog.get_logger("materialize").warning("samples_refused", node="n1", value=b"\xff")
    line = orjson.loads(stream.getvalue())
    assert line["event"] == "samples_refused"
    assert line["level"] == "warning"
    assert line["logger"] == "materialize"
    assert line["node"] == "n1"
    assert line["value"] == "b'\\xff'"
    assert line["time"].endswith("Z")


def test_a_traceback_is_one_field_of_one_line() -> None:
    stream = logged(LogFormat.JSON)
    structlog.get_logger("runtime").error("worker_crashed", exc_info=ValueError("for the log"))
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: for the log" in orjson.loads(line)["exception"]


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.CONSOLE])
def test_texts_are_escaped_and_cut(form: LogFormat) -> None:
    stream = logged(form)
    hostile = "\x1b[31m\x9b\u202e\ud800\nforged" + "x" * 2_000_000
    structlog.get_logger("x").error("source_failed", error=hostile, problems=[hostile] * 1000, count=10**5000)
    logging.getLogger("aiohttp.server").error(hostile)
    text = stream.getvalue()
    assert len(text.splitlines()) == 2
    assert len(text) < 250_000
    assert text.isascii() or set(filter(lambda each: not each.isascii(), text)) == {"…"}
    assert not {"\x1b", "\x9b", "\u202e"} & set(text)
    assert "forged" in text


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.CONSOLE])
def test_a_traceback_is_escaped_and_cut(form: LogFormat) -> None:
    stream = logged(form)

    def fail() -> None:
        raise ValueError("\x1b[31m" + "line\n" * 500_000 + "x" * 2_000_000)

    try:
        fail()
    except ValueError:
        structlog.get_logger("x").exception("source_internal_error")
    text = stream.getvalue()
    assert len(text) < 250_000
    assert "\x1b" not in text
    assert "in test_a_traceback_is_escaped_and_cut" in text


def test_logging_to_redirects_log_lines_within_its_body() -> None:
    stream, terminal = logged(LogFormat.JSON), io.StringIO()
    log = structlog.get_logger("tas")
    with logging_to(terminal):
        log.info("pod_bound", node="n1")
    log.error("worker_failed", error="the port is in use")
    (redirected,) = map(orjson.loads, terminal.getvalue().splitlines())
    assert (redirected["event"], redirected["node"]) == ("pod_bound", "n1")
    (line,) = map(orjson.loads, stream.getvalue().splitlines())
    assert (line["event"], line["error"]) == ("worker_failed", "the port is in use")


def test_log_lines_of_libraries_have_the_event_name_library_log() -> None:
    stream = logged(LogFormat.JSON)
    logging.getLogger("aiohttp.server").error("Unhandled %s", "thing")
    line = orjson.loads(stream.getvalue())
    assert (line["event"], line["message"], line["logger"]) == ("library_log", "Unhandled thing", "aiohttp.server")


def test_info_lines_of_libraries_are_not_written() -> None:
    stream = logged(LogFormat.JSON, LogLevel.DEBUG)
    logging.getLogger("nats.aio.client").info("connecting")
    assert stream.getvalue() == ""


def test_events_below_the_level_are_not_written() -> None:
    stream = logged(LogFormat.JSON, LogLevel.WARNING)
    structlog.get_logger("x").info("quiet")
    structlog.get_logger("x").warning("loud")
    assert [orjson.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_auto_without_a_terminal_is_json() -> None:
    stream = logged(LogFormat.AUTO)
    structlog.get_logger("x").info("event")
    assert orjson.loads(stream.getvalue())["event"] == "event"


def test_console_lines_are_not_json() -> None:
    stream = logged(LogFormat.CONSOLE)
    structlog.get_logger("x").info("policy_stored", policy="default/demo")
    assert "policy_stored" in stream.getvalue()
    assert "policy=default/demo" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_a_throttled_log_writes_one_line_for_each_event_and_key() -> None:
    with capture_logs() as lines:
        throttled = ThrottledLog(structlog.get_logger("x"), source="mine")
        for _ in range(3):
            throttled.warning("failed", "node-1", node="node-1")
            throttled.warning("failed", "node-2", node="node-2")
            throttled.error("ended")

    assert lines == [
        {"event": "failed", "log_level": "warning", "source": "mine", "node": "node-1", "suppressed": 0},
        {"event": "failed", "log_level": "warning", "source": "mine", "node": "node-2", "suppressed": 0},
        {"event": "ended", "log_level": "error", "source": "mine", "suppressed": 0},
    ]


def test_a_throttled_log_says_that_it_left_out_lines_of_too_many_keys() -> None:
    """An author's pods name 300 policies that do not exist, and then comes an honest mistake."""
    with capture_logs() as lines:
        throttled = ThrottledLog(structlog.get_logger("x"))
        for number in range(300):
            throttled.warning("policy_not_found", number, policy=f"forged-{number}")
        throttled.warning("policy_not_found", "honest", policy="honest")
    assert [line["event"] for line in lines].count("policy_not_found") == 257
    assert [line for line in lines if line["event"] == "log_lines_left_out"] == [
        {"event": "log_lines_left_out", "log_level": "warning", "about": "policy_not_found", "count": 1}
    ]


async def test_objects_that_fail_for_one_cause_are_two_lines() -> None:
    with capture_logs() as logs:
        grouped = GroupedLog(structlog.get_logger("x"), kind="node", seconds=0.01)
        for number in range(5000):
            grouped.warning("failed", "cause", f"n{number:04}", error=f"the same of {number}")
        grouped.warning("failed", "another cause", "n0000", error="other")
        assert len(logs) == 2  # the first of each cause, at once
        await eventually(lambda: len(logs) == 3)
    first, other, rest = ({name: each for name, each in line.items() if name != "log_level"} for line in logs)
    assert first == {"event": "failed", "node": "n0000", "error": "the same of 0", "count": 1}
    assert other == {"event": "failed", "node": "n0000", "error": "other", "count": 1}
    assert (rest["count"], rest["names"]) == (4999, [f"n{number:04}" for number in range(1, 11)])
    assert rest["error"] == "the same of 4999"


async def test_many_causes_share_a_line() -> None:
    with capture_logs() as logs:
        grouped = GroupedLog(structlog.get_logger("x"), kind="node", causes=2)
        for number in range(100):
            grouped.warning("failed", number, f"n{number}")
    assert [line["node"] for line in logs] == ["n0", "n1", "n2"]
