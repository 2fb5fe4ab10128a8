"""`tas publish`: one message of samples, on the subject that every source uses."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

import click

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.messages import decode_samples, encode_samples
from bus.subjects import samples_subject
from tas.duration import parse_duration
from tas.errors import shortened
from tas.names import is_source_name, is_subdomain
from tas.quantity import Quantity, format_quantity, parse_quantity
from tas.sample import Scrape
from workers.cli.asking import JSON_OPTION, ask, print_json
from workers.cli.options import settings_command
from workers.cli.settings import Settings

SOURCE = "cli"

T = TypeVar("T")


@settings_command(
    "publish",
    params=[
        click.Argument(["node"]),
        click.Argument(["metrics"], nargs=-1, required=True, metavar="METRIC=VALUE..."),
        click.Option(
            ["--source"], default=SOURCE, metavar="NAME", show_default=True, help="Who says so: a-z, 0-9 and -."
        ),
        click.Option(
            ["--measured"],
            metavar="TIME",
            help="When it was measured: RFC 3339 with a zone, seconds since 1970, or how long ago as in -90s.  "
            "[default: now]",
        ),
        click.Option(["--window"], metavar="DURATION", help="The span that each value stands for."),
        JSON_OPTION,
    ],
)
def publish(
    settings: Settings,
    *,
    node: str,
    metrics: tuple[str, ...],
    source: str,
    measured: str | None,
    window: str | None,
    as_json: bool,
) -> int:
    """Publish samples of NODE.

    Values are Kubernetes quantities: tas publish node-1 health_metric=2 memory_available_bytes=1.5Gi
    """
    now = time.time()
    mistakes: list[str] = []
    scrape = Scrape(
        source=source,
        measured=_read(mistakes, "--measured", measured, lambda text: _time(text, now), otherwise=now),
        window=_read(mistakes, "--window", window, _span, otherwise=None),
        arrived=now,
        sequence=0,
        metrics=_metrics(mistakes, metrics),
    )
    if not is_subdomain(node):
        mistakes.append(f"NODE = {shortened(node)}: must be a lowercase DNS subdomain (RFC 1123)")
    if not is_source_name(source):
        mistakes.append(f"--source = {shortened(source)}: must be of a-z, 0-9 and -, at most 63")
    subject = samples_subject(node, source)
    body = encode_samples(scrape) if not mistakes else b""
    if not mistakes:
        # By the same rules as the worker that will read it.
        _, _, refused = decode_samples(subject, body, arrived=now, sequence=0)
        told = {"measured": ("--measured", shortened(measured)), "window": ("--window", shortened(window))}
        for error in refused:
            name, value = told.get(error.field, (error.field, error.value))
            mistakes.append(f"{name} = {value}: {error.reason}")
    if mistakes:
        raise click.ClickException("\n       ".join(mistakes))

    async def send(bus: Bus, url: str) -> int:
        sequence = await bus.publish(SAMPLES, subject, body)
        _tell(scrape, node=node, subject=subject, url=url, sequence=sequence, as_json=as_json)
        return 0

    return ask(settings, send)


def _tell(scrape: Scrape, *, node: str, subject: str, url: str, sequence: int, as_json: bool) -> None:
    values = {metric: format_quantity(value) for metric, value in scrape.metrics.items()}
    if as_json:
        print_json({"subject": subject, "stream": SAMPLES.name, "sequence": sequence, "node": node, "metrics": values})
        return
    told = " ".join(f"{metric}={value}" for metric, value in values.items())
    click.echo(f"{told} of {node} published on {subject} at {url} ({SAMPLES.name} sequence {sequence})")


def _read(mistakes: list[str], option: str, text: str | None, parse: Callable[[str], T], *, otherwise: T) -> T:
    """What an option says, or `otherwise` if it says nothing or cannot be read, which is a mistake more."""
    if text is None:
        return otherwise
    try:
        return parse(text)
    except ValueError as error:
        mistakes.append(f"{option} = {shortened(text)}: {error}")
        return otherwise


def _metrics(mistakes: list[str], pairs: Sequence[str]) -> dict[str, Quantity]:
    values: dict[str, Quantity] = {}
    for pair in pairs:
        metric, equals, text = pair.partition("=")
        if not equals:
            mistakes.append(f"{shortened(pair)}: expected METRIC=VALUE")
        elif metric in values:
            mistakes.append(f"{metric} = {shortened(text)}: the metric is given twice")
        else:
            values[metric] = _read(mistakes, metric or "METRIC", text, parse_quantity, otherwise=Quantity(0))
    return values


def _span(text: str) -> float:
    """Seconds. Raises ValueError."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError("must be more than nothing")
    return seconds


def _time(text: str, now: float) -> float:
    """Seconds since 1970. Raises ValueError."""
    if text.startswith("-"):
        return now + parse_duration(text)
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        if not 0 <= seconds < 2**33:  # NaN as well
            raise ValueError("must be seconds since 1970")
        return seconds
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be as 2026-11-21T12:00:00Z, as seconds since 1970, or as -90s") from None
    if moment.tzinfo is None:
        raise ValueError("must have a zone: Z, or an offset such as +02:00")
    return moment.timestamp()
