"""A real Prometheus on loopback, and an exporter that Prometheus scrapes."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import MappingProxyType

from aiohttp import web

from .processes import Process, free_ports, running


class Exporter:
    """An exporter. `text` can be changed at any time; while `fails` is true, every scrape fails."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.fails = False
        self.address = ""

    async def answer(self, _request: web.Request) -> web.Response:
        if self.fails:
            raise web.HTTPServiceUnavailable
        return web.Response(text=self.text, headers={"Content-Type": "text/plain; version=0.0.4"})


@asynccontextmanager
async def exporter(text: str) -> AsyncIterator[Exporter]:
    """Runs an exporter of `text`, which is in the exposition format."""
    exporter = Exporter(text)
    app = web.Application()
    app.router.add_get("/metrics", exporter.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        exporter.address = "{}:{}".format(*runner.addresses[0])
        yield exporter
    finally:
        await runner.cleanup()


EVERY_SECOND: Mapping[str, object] = {
    "global": {"scrape_interval": "1s"},
    "scrape_configs": [{"job_name": "node"}],
}


@contextmanager
def prometheus(
    binary: Path,
    folder: Path,
    targets: Mapping[str, Mapping[str, str]],
    *,
    writes_to: str = "",
    writes_with: Mapping[str, object] = MappingProxyType({}),
    based_on: Mapping[str, object] = EVERY_SECOND,
) -> Iterator[tuple[str, Process]]:
    """Runs a Prometheus that scrapes each target with these labels; yields its URL and process.

    Its data is in `folder`. `writes_to` is the URL of a receiver of remote write, `writes_with` are more settings.
    `based_on` is the configuration, to which the targets of the job `node` are added.
    """
    (port,) = free_ports(1)
    jobs = based_on["scrape_configs"]
    assert isinstance(jobs, list)
    static = [{"targets": [target], "labels": labels} for target, labels in targets.items()]
    configuration: dict[str, object] = {
        **based_on,
        "scrape_configs": [{**job, "static_configs": static} if job["job_name"] == "node" else job for job in jobs],
    }
    if writes_to:
        queue = {"batch_send_deadline": "200ms", "min_backoff": "30ms", "max_backoff": "200ms"}
        configuration["remote_write"] = [{"url": writes_to, "queue_config": queue, **writes_with}]
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(configuration))
    command: list[str | Path] = [
        binary,
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with running("prometheus", command, folder=folder) as process:
        yield f"http://127.0.0.1:{port}", process
