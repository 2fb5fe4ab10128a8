"""Answers of a real Prometheus, kept as files, and a server that gives them.

`tests/e2e/test_prometheus.py` records them, and holds a real one against them.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

GOLDEN = Path(__file__).parent.parent / "contract" / "golden" / "prometheus"

EVALUATED = 1767225600.123
"""The evaluation time in the recorded files."""

EXPOSITION = """\
# TYPE node_health_metric gauge
node_health_metric 2
# TYPE load gauge
load 0.7
# TYPE node_load gauge
node_load 99
# TYPE node_cpu gauge
node_cpu{cpu="0"} 0.25
node_cpu{cpu="1"} 0.5
# TYPE broken gauge
broken NaN
# TYPE endless gauge
endless +Inf
# TYPE tiny gauge
tiny 1e-08
# TYPE huge gauge
huge 1.5e+300
"""
"""The metrics of the exporter behind the recorded files."""

QUERIES = {
    "vector": '{__name__=~"health_metric|node_health_metric"}',
    "two-names": '{__name__=~"load|node_load"}',
    "several-series": '{__name__=~"cpu|node_cpu"}',
    "aggregated": "max by (instance) (node_cpu)",
    "no-labels": "max(node_cpu)",
    "nan": "broken",
    "infinity": "endless",
    "exponent": "tiny",
    "huge": "huge",
    "empty": '{__name__=~"nothing|node_nothing"}',
    "scalar": "scalar(max(load))",
    "string": '"text"',
    "matrix": "load[1m]",
    "no-query": "max(",
    "not-executed": 'label_replace(node_cpu, "cpu", "", "", "")',
}
"""The query of each recorded file, by file name."""


class Answer(NamedTuple):
    """The response to a query. `status` 0: no response until the client gives up."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = {"Content-Type": "application/json"}


def golden(name: str, *, evaluated: float = EVALUATED) -> Answer:
    """An answer of a real Prometheus, as evaluated at some time."""
    kept = json.loads((GOLDEN / f"{name}.json").read_text())
    body = json.dumps(kept["body"]).replace(str(EVALUATED), str(evaluated))
    return Answer(body=body.encode(), status=kept["status"])


def with_fixed_times(value: Any) -> Any:
    """A body with one time in place of each that it holds, and its series in a fixed order."""
    if isinstance(value, dict):
        return {key: with_fixed_times(inner) for key, inner in value.items()}
    if isinstance(value, list):
        if len(value) == 2 and isinstance(value[0], int | float) and isinstance(value[1], str):
            return [EVALUATED, value[1]]
        if value and isinstance(value[0], list):  # of a matrix the first sample will do
            value = value[:1]
        return sorted(map(with_fixed_times, value), key=json.dumps)
    return value


class SimulatedPrometheus:
    """A server with a response for each query; without one, an empty vector.

    Attributes:
        url: Where it is asked.
        asked: What was asked: the parameters of each request, and its headers under `headers`.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Answer | Callable[[], Awaitable[web.StreamResponse]]] = {}
        self.most_at_once = 0
        self._at_once = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append({**request.query, "headers": dict(request.headers), "path": request.path})
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            answer = self.answers.get(request.query.get("query", ""), golden("empty"))
            if not isinstance(answer, Answer):
                return await answer()
            if answer.status == 0:
                await asyncio.Event().wait()
            return web.Response(body=answer.body, status=answer.status, headers=answer.headers)
        finally:
            self._at_once -= 1


@asynccontextmanager
async def simulated_prometheus(*, ssl_context: Any = None, port: int = 0) -> AsyncIterator[SimulatedPrometheus]:
    """A simulated Prometheus on loopback."""
    simulated = SimulatedPrometheus()
    app = web.Application()
    app.router.add_get("/{path:.*}", simulated.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=ssl_context).start()
        host, chosen, *_ = runner.addresses[0]
        simulated.url = f"{'http' if ssl_context is None else 'https'}://{host}:{chosen}"
        yield simulated
    finally:
        await runner.cleanup()
