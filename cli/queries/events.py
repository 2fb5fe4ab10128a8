"""`tas events`: prints the public events, stored ones and new ones."""

import sys
import time
from contextlib import aclosing
from datetime import UTC, datetime

import click
import msgspec

from bus.buckets import EVENTS
from bus.connection import Bus
from bus.events import EventReader, Events
from bus.stream_reader import Start
from bus.subjects import selection_filters
from cli.as_json import JSON_OPTION
from cli.options import settings_command
from cli.output import echo, json_lines_of
from cli.queries.query import ask
from tas.errors import InvalidInputError, shortened
from tas.events import cloudevents
from tas.events.data import Unknown
from tas.events.event import TYPE_PREFIX, Event, lost_event
from tas.events.selection import Selection, parse_policy_name
from tas.values.duration import DurationError, parse_duration
from workers.settings import Settings

SINCE_SECONDS = 3600.0
"""The default of `--since`, without `--follow`."""

MAX_DATA = 300
"""The most characters of a value of the data, and of the data of an event of an unknown type; JSON has all of it."""


@settings_command(
    "events",
    params=[
        click.Option(["-f", "--follow"], is_flag=True, help="Print new events as they happen, until Ctrl-C."),
        click.Option(
            ["--since"],
            metavar="DURATION",
            help="How far back to begin, such as 10m or 24h.  [default: 1h; new events with --follow]",
        ),
        click.Option(["--policy"], metavar="[NAMESPACE/]NAME", help="Only events about this policy."),
        click.Option(["--node"], metavar="NODE", help="Only events about this node."),
        JSON_OPTION,
    ],
)
def events(
    settings: Settings, *, follow: bool, since: str | None, policy: str | None, node: str | None, as_json: bool
) -> int:
    """Show what happened: violations, labels, sources and more.

    With --json each event is one line: a CloudEvent in JSON format.
    """
    seconds = None if follow else SINCE_SECONDS
    try:
        namespace, name = parse_policy_name(policy) if policy else ("", "")
        selection = Selection(node=node or "", namespace=namespace, policy=name)
        if since is not None:
            seconds = parse_duration(since)
    except InvalidInputError as error:
        raise click.ClickException(f"--{error.field} = {error.value}: {error.reason}") from error
    except DurationError as error:
        raise click.ClickException(f"--since = {shortened(since)}: {error}") from error
    if seconds is not None and seconds < 0:
        raise click.ClickException(f"--since = {shortened(since)}: must not be negative")
    return ask(settings, lambda bus, _: _print_events(bus, selection, seconds, follow=follow, as_json=as_json))


async def _print_events(bus: Bus, selection: Selection, since: float | None, *, follow: bool, as_json: bool) -> int:
    epoch = await bus.epoch(EVENTS)  # without the stream, following would wait for it
    # By the clock of the server, which has stored them: by one that is ahead there would be none.
    start = Start() if since is None else Start(time=epoch.now - since)
    reader = EventReader(bus, start, filters=selection_filters(selection))
    shown = False
    async with aclosing(reader.batches() if follow else reader.stored()) as batches:
        async for batch in batches:
            for event in _selected(batch, selection):
                echo(event_json(event) if as_json else event_line(event))
                shown = True
            for error in batch.invalid:
                echo(f"left out: {error}", err=True)
            sys.stdout.flush()
    if not shown:
        echo("no events", err=True)
    return 0


def _selected(batch: Events, selection: Selection) -> list[Event]:
    """The selected events of a batch, after an event for what was lost before them."""
    lost = batch.lost
    found = [] if lost is None else [lost_event(lost.stream, lost.first, lost.last, now=time.time())]
    for message in batch.messages:
        data = message.event.data
        # It is not known what an event of an unknown type is about.
        if selection.selects(data) or (isinstance(data, Unknown) and selection == Selection()):
            found.append(message.event)
    return found


def event_line(event: Event) -> str:
    """One line: time, type, object, and the data that the object does not say, without uids: `event_json` has all."""
    at = datetime.fromtimestamp(event.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    words = [at, _text(event.type.removeprefix(TYPE_PREFIX)), _text(event.subject) if event.subject else "-"]
    if isinstance(event.data, Unknown):
        words.append(shortened(event.data.document, MAX_DATA))
    else:
        fields: dict[str, object] = msgspec.to_builtins(event.data)
        about = event.data.ABOUT  # the subject has these fields already
        words += (
            f"{name}={_text(value)}"
            for name, value in fields.items()
            if f"{{{name}}}" not in about and not name.endswith("Uid")
        )
    return "  ".join([*words, *(["resync"] if event.resync else [])])


def _text(value: object) -> str:
    """A value as one word: quoted if it is none, and cut if it is long."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    is_word = text and len(text) <= MAX_DATA and text.isprintable() and " " not in text
    return text if is_word else shortened(text, MAX_DATA)


def event_json(event: Event) -> str:
    """The event in the JSON format of CloudEvents, as one line."""
    return json_lines_of(cloudevents.structured(event).decode())
