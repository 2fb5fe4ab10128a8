"""What filter answers while a polled source and the receiver of a sink attack the one process of `tas run all`.

`python -m tests.bench.attacked PORT FILE` is the attacker: it answers each connection as the case in FILE says. It only
uses processor time that nobody else wants, as an attacker on another machine takes none of this one.
"""

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import orjson
import yaml

from tas.policy.policy import API_VERSION
from tests.bench import cluster
from tests.bench.client import Client
from tests.bench.rows import Budget, Results, quantile_rows, row
from tests.bench.stand import FILTER, Stand, cpu_seconds, module
from tests.e2e.processes import free_ports, until

NAME = "attacked"
NODES = 500
PAUSE_SECONDS = 0.01
PERIOD = "1s"
LEAST_ATTACKS = 3
"""A round lasts until so many answers of the attacker have ended in it: else nothing was attacked."""

LONGEST_ROUND = 60.0
"""Seconds after which a round without them is an error."""

BUDGETS = {"p99": Budget(50.0)}
QUIET = "quiet"


async def _continue() -> AsyncIterator[bytes]:
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n"


async def _chunks() -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"1\r\n \r\n"


async def _headers() -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X-A: b\r\n"


async def _honest() -> AsyncIterator[bytes]:
    """A few nodes that violate the policy every other second: so the sink always has an event to post."""
    now = time.time()
    value = [now, str(cluster.VIOLATING + 1 if int(now) % 2 else 0)]
    found = [{"metric": {"node": name}, "value": value} for name in cluster.node_names(20)]
    body = orjson.dumps({"status": "success", "data": {"resultType": "vector", "result": found}})
    yield b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


CASES: dict[str, Callable[[], AsyncIterator[bytes]]] = {
    "100 Continue without end": _continue,
    "chunks of one byte without end": _chunks,
    "header lines without end": _headers,
}


class Round(NamedTuple):
    """What was measured in a round: seconds of each request, cores of the product, bytes of each answer that ended."""

    times: list[float]
    cores: float
    sent: list[int]


async def measure(stand: Stand) -> Results:
    """Milliseconds of filter in each case; the floor is the same process just before, with an honest answer."""
    results = Results()
    (attacker,) = free_ports(1)
    folder = stand.subfolder("attacked")
    case = folder / "case"
    case.write_text(QUIET)
    sinks = folder / "sinks.yaml"
    policies = folder / "policies"
    policies.mkdir()
    metadata = {"name": cluster.policy_name(0), "namespace": cluster.NAMESPACE}
    policy = {"apiVersion": API_VERSION, "kind": "TASPolicy", "metadata": metadata, "spec": cluster.policy_spec(0)}
    (policies / "policy.yaml").write_text(yaml.safe_dump(policy))
    url = f"http://127.0.0.1:{attacker}"
    sinks.write_text(yaml.safe_dump({"sinks": {"hostile": {"type": "cloudevents", "url": url}}}))
    command = [
        *(*module("cli"), "run", "all", "--bus", "embedded", "--health-listen", "127.0.0.1:0", "--log-format", "json"),
        *("--policies", str(policies)),
        *("--source", f"prometheus={url}", "--period", PERIOD, "--sinks", str(sinks)),
    ]
    request = cluster.names_only(0, cluster.node_names(NODES))
    with (
        stand.process("attacker", [*module("tests.bench.attacked"), str(attacker), str(case)]) as process,
        stand.serving("all", command, FILTER) as served,
    ):
        served.wait_ready()
        with Client(served.port) as client:

            def asked(name: str) -> Round:
                before = process.log.stat().st_size
                case.write_text(name)
                until(lambda: served_as(name, since=before), f"the source and the sink were served: {name}")
                begun, used = time.monotonic(), cpu_seconds(served.process.pid)
                before, times = process.log.stat().st_size, []
                length, sent = stand.some(8, 2), list[int]()
                while (seconds := time.monotonic() - begun) < length or len(sent) < LEAST_ATTACKS:
                    if seconds > LONGEST_ROUND:
                        raise RuntimeError(f"{name}: fewer than {LEAST_ATTACKS} answers in {LONGEST_ROUND:.0f} s")
                    times.append(client.seconds(served.request(request)))
                    time.sleep(PAUSE_SECONDS)
                    if seconds >= length:
                        sent = [int(each) for each in re.findall(rf"sent {name} (\d+)", log(since=before))]
                process.must_run()
                return Round(times, (cpu_seconds(served.process.pid) - used) / seconds, sent)

            def served_as(name: str, *, since: int) -> bool:
                return all(f"{path} {name}" in log(since=since) for path in ("/api/v1/query", "/"))

            def log(*, since: int) -> str:
                return process.log.read_bytes()[since:].decode()

            for name in CASES:
                rounds = [(asked(QUIET), asked(name)) for _ in range(stand.some(3, 1))]
                quiet, attacked = zip(*rounds, strict=True)
                series = f"filter of {NODES} names, a source and a sink send {name}"
                results.rows += quantile_rows(
                    series,
                    [each.times for each in attacked],
                    [each.times for each in quiet],
                    floor_name="honest answers",
                    budgets=BUDGETS,
                )
                results.rows += [
                    row(
                        series,
                        "processor time",
                        [each.cores * 1000 for each in attacked],
                        [each.cores * 1000 for each in quiet],
                        unit="millicores",
                        floor_name="honest answers",
                    ),
                    row(series, "answers", [float(len(each.sent)) for each in attacked], unit="attacks"),
                    row(series, "sent", [sum(each.sent) / 1000 for each in attacked], unit="KB"),
                ]
    return results


async def _attack(port: int, file: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, sent = "", 0
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            name = file.read_text()  # noqa: ASYNC240 - a few bytes
            print(head.split(b" ")[1].partition(b"?")[0].decode(), name, flush=True)
            async for piece in CASES.get(name, _honest)():
                writer.write(piece)
                sent += len(piece)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            return  # the product has closed the connection
        finally:
            print("sent", name, sent, flush=True)
            writer.close()

    os.nice(19)
    async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_attack(int(sys.argv[1]), Path(sys.argv[2])))
