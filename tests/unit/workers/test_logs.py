"""Logs: their two forms, what libraries log, and floods of alike lines."""

import io
import logging
from collections.abc import Iterator

import orjson
import pytest
import structlog

from workers.logs import LogFormat, LogLevel, Throttle, configure_logging, logging_to


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


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


def test_who_has_the_terminal_gets_the_lines_meanwhile_and_then_they_go_where_they_went_before() -> None:
    stream, picture = logged(LogFormat.JSON), io.StringIO()
    log = structlog.get_logger("tas")
    with logging_to(picture):
        log.info("pod_bound", node="n1")
    log.error("worker_failed", error="the port is in use")
    assert "[info     ] pod_bound" in picture.getvalue()
    assert "node=n1" in picture.getvalue()
    (line,) = map(orjson.loads, stream.getvalue().splitlines())
    assert (line["event"], line["error"]) == ("worker_failed", "the port is in use")


def test_lines_of_libraries_take_the_same_way_under_one_event_name() -> None:
    stream = logged(LogFormat.JSON)
    logging.getLogger("aiohttp.server").error("Unhandled %s", "thing")
    line = orjson.loads(stream.getvalue())
    assert (line["event"], line["message"], line["logger"]) == ("library_log", "Unhandled thing", "aiohttp.server")


def test_chatter_of_libraries_is_left_out() -> None:
    stream = logged(LogFormat.JSON, LogLevel.DEBUG)
    logging.getLogger("nats.aio.client").info("connecting")
    assert stream.getvalue() == ""


def test_less_severe_events_than_the_level_are_left_out() -> None:
    stream = logged(LogFormat.JSON, LogLevel.WARNING)
    structlog.get_logger("x").info("quiet")
    structlog.get_logger("x").warning("loud")
    assert [orjson.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_without_a_terminal_auto_means_json() -> None:
    stream = logged(LogFormat.AUTO)
    structlog.get_logger("x").info("event")
    assert orjson.loads(stream.getvalue())["event"] == "event"


def test_console_lines_are_for_people() -> None:
    stream = logged(LogFormat.CONSOLE)
    structlog.get_logger("x").info("policy_stored", policy="default/demo")
    assert "policy_stored" in stream.getvalue()
    assert "policy=default/demo" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_a_throttle_lets_one_of_many_alike_through_and_counts_the_rest() -> None:
    throttle = Throttle(seconds=10.0)
    assert throttle.admit("a", 0.0) == 0
    assert [throttle.admit("a", float(second)) for second in range(1, 10)] == [None] * 9
    assert throttle.admit("a", 10.0) == 9
    assert throttle.admit("a", 20.0) == 0


def test_a_throttle_tells_keys_apart() -> None:
    throttle = Throttle()
    assert throttle.admit("a", 0.0) == 0
    assert throttle.admit("b", 0.0) == 0


def test_a_flood_of_different_keys_is_held_back_as_one() -> None:
    throttle = Throttle(seconds=10.0, keys=4)
    admitted = [throttle.admit(key, 0.0) for key in range(1000)]
    assert admitted.count(0) == 5
    assert throttle.admit("another", 9.0) is None
    assert throttle.admit("after the old ones are forgotten", 10.0) == 0


def test_what_a_full_throttle_held_back_of_all_others_is_counted() -> None:
    throttle = Throttle(seconds=10.0, keys=1)
    throttle.admit("a", 0.0)
    assert [throttle.admit(key, 5.0) for key in ("b", "c", "d")] == [0, None, None]
    throttle.admit("a", 10.0)
    assert throttle.admit("e", 15.0) == 2
