"""`tas publish`: publishes one message of samples on the subject that every source uses, and reports its outcome."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from bus.buckets import NODES, SAMPLES, SYNCED
from bus.subjects import samples_subject
from cli.as_json import JSON_OPTION, print_json
from cli.options import settings_command
from cli.output import echo
from tas.errors import shortened
from tas.samples.capacity import refusal_of
from tas.samples.sample import Scrape, kept_metrics
from tas.samples.unknown_node import is_unknown_node
from tas.values.duration import parse_duration
from tas.values.names import is_source_name, is_subdomain
from tas.values.quantity import Quantity, exact_text, format_quantity, parse_quantity
from workers.settings import Settings

if TYPE_CHECKING:
    from bus.connection import Bus

SOURCE = "cli"

OUTCOME_SECONDS = 3.0
"""How long the command waits until the samples are stored. `materialize` takes milliseconds."""

MESSAGE_SECONDS = 0.3
"""After so long the message is read: if the clock of this machine is wrong, its time was refused at its arrival."""

T = TypeVar("T")


class Outcome(StrEnum):
    """What became of the samples.

    `pending` is neither: a worker may store them later, or fail to write them. `refused`: at least one metric.
    """

    STORED = "stored"
    REFUSED = "refused"
    PENDING = "pending"


@settings_command(
    "publish",
    params=[
        click.Argument(["node"]),
        click.Argument(["metrics"], nargs=-1, required=True, metavar="METRIC=VALUE..."),
        click.Option(
            ["--source"],
            default=SOURCE,
            metavar="NAME",
            show_default=True,
            help="The name of the source: a-z, 0-9 and -.",
        ),
        click.Option(
            ["--measured"],
            metavar="TIME",
            help="When the values were measured: RFC 3339 with a zone, seconds since 1970, or a duration ago as in "
            "-90s.  [default: now]",
        ),
        click.Option(["--window"], metavar="DURATION", help="The time span that each value covers."),
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

    The command waits until the samples are stored or refused, for 3 s at most. The exit code is 1 if one is refused.
    """
    from bus.errors import BusError
    from bus.scrapes import publish_scrape, refusals
    from cli.queries.query import ask

    now = time.time()
    mistakes: list[str] = []
    scrape = Scrape(
        source=source,
        measured=_parse(mistakes, "--measured", measured, lambda text: _time(text, now), otherwise=now),
        window=_parse(mistakes, "--window", window, _span, otherwise=None),
        arrived=now,
        sequence=0,
        metrics=_metrics(mistakes, metrics),
    )
    if not is_subdomain(node):
        mistakes.append(f"NODE = {shortened(node)}: must be a lowercase DNS subdomain (RFC 1123)")
    if not is_source_name(source):
        mistakes.append(f"--source = {shortened(source)}: must be 1 to 63 characters of a-z, 0-9 and -")
    if not mistakes:
        # The same rules as in the worker that reads the message.
        options = {"measured": ("--measured", shortened(measured)), "window": ("--window", shortened(window))}
        for error in refusals(node, scrape):
            name, value = options.get(error.field, (error.field, error.value))
            mistakes.append(f"{name} = {value}: {error.reason}")
    if mistakes:
        raise click.ClickException("\n       ".join(mistakes))

    async def send(bus: "Bus", url: str) -> int:
        sequence = await publish_scrape(bus, node, scrape)
        try:
            outcome, reason = await _outcome(bus, node, msgspec.structs.replace(scrape, sequence=sequence))
        except BusError as error:  # an account that may publish need not have the permission to read
            outcome, reason = Outcome.PENDING, str(error)
        subject = samples_subject(node, source)
        _print(scrape, outcome, reason, node=node, subject=subject, url=url, sequence=sequence, as_json=as_json)
        return int(outcome is Outcome.REFUSED)

    return ask(settings, send)


async def _outcome(bus: "Bus", node: str, scrape: Scrape) -> tuple[Outcome, str]:
    """What became of a published scrape within `OUTCOME_SECONDS`, and why it is refused.

    By the rules of `materialize`, from what is stored.
    """
    import asyncio

    from bus.errors import BusError
    from bus.kinds import NODE_FACTS, NODE_SAMPLES, synced_of
    from bus.records.nodes import StoredSamples
    from bus.scrapes import refused_on_arrival

    start, pause = time.monotonic(), 0.01
    has_read_message = False
    while True:
        # The node's own record alone: in a table a sequence is one of TABLES, and says nothing about this message.
        known = ((await NODE_SAMPLES.get(bus, node)).readable() or StoredSamples()).samples
        if kept_metrics(known, scrape, scrape.sequence) == scrape.metrics.keys():
            return Outcome.STORED, ""
        synced = (await synced_of(NODES).get(bus, SYNCED)).readable()
        listed = (await NODE_FACTS.get(bus, node)).present
        if is_unknown_node(listed=listed, cluster=None if synced is None else synced.cluster):
            return Outcome.REFUSED, f"Kubernetes has no node {node}"
        error = refusal_of(node, known, scrape)
        if error is None and not has_read_message and time.monotonic() >= start + MESSAGE_SECONDS:
            has_read_message = True
            with suppress(BusError):  # an account may have no permission to read messages
                error = next(iter(await refused_on_arrival(bus, node, scrape.source, scrape.sequence)), None)
        if error is not None:
            # Without room, the other metrics are stored.
            about = f"no room for {error.value} " if error.field == "metrics" else f"{error.field} = {error.value}: "
            return Outcome.REFUSED, about + error.reason
        if time.monotonic() >= start + OUTCOME_SECONDS:
            return Outcome.PENDING, ""
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.2)


def _print(
    scrape: Scrape, outcome: Outcome, reason: str, *, node: str, subject: str, url: str, sequence: int, as_json: bool
) -> None:
    """Prints the outcome: a refusal is an error, everything else a result.

    `reason`: why the samples are refused, or why it is not known whether they are stored.
    """
    if as_json:
        values = {metric: format_quantity(value) for metric, value in scrape.metrics.items()}
        message = {"subject": subject, "stream": SAMPLES.name, "sequence": sequence, "node": node, "metrics": values}
        print_json(message | {"outcome": outcome.value} | ({"reason": reason} if reason else {}))
        return
    samples = " ".join(f"{metric}={exact_text(value)}" for metric, value in scrape.metrics.items())
    where = f"{subject} at {url}, {SAMPLES.name} sequence {sequence}"
    match outcome:
        case Outcome.STORED:
            echo(f"{samples} of {node} published and stored ({where})")
        case Outcome.REFUSED:
            echo(f"Error: {samples} of {node} refused: {reason} ({where})", err=True)
        case Outcome.PENDING if reason:
            echo(f"{samples} of {node} published ({where}); whether they are stored is not known: {reason}")
        case Outcome.PENDING:
            metric = next(iter(scrape.metrics))
            echo(
                f"{samples} of {node} published ({where}), but not stored within {OUTCOME_SECONDS:g} s: "
                f"tas trace {metric} {node} shows why"
            )


def _parse(mistakes: list[str], option: str, text: str | None, parse: Callable[[str], T], *, otherwise: T) -> T:
    """The value of an option; `otherwise` if `text` is None or invalid, in which case a mistake is added."""
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
            values[metric] = _parse(mistakes, metric or "METRIC", text, parse_quantity, otherwise=Quantity(0))
    return values


def _span(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError("must be more than 0s")
    return seconds


def _time(text: str, now: float) -> float:
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
        raise ValueError(
            "must be a time such as 2026-11-21T12:00:00Z, seconds since 1970, or a duration such as -90s"
        ) from None
    if moment.tzinfo is None:
        raise ValueError("must have a zone: Z, or an offset such as +02:00")
    return moment.timestamp()
