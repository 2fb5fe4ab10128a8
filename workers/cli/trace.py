"""`tas trace`: one value on its way, and where it stops."""

import time
from collections.abc import Callable
from typing import TypeVar

import click
import msgspec
from rich.text import Text

from bus.buckets import LEASES, NODES, POLICIES, SAMPLES, SOURCES, SYNCED, VERDICTS
from bus.connection import Bus, Entry
from bus.messages import (
    decode_node_facts,
    decode_node_samples,
    decode_policy,
    decode_samples,
    decode_source_state,
    decode_synced,
    decode_verdict,
)
from bus.subjects import node_facts_key, node_metrics_key, parse_policy_key, samples_subject, verdict_key
from tas.errors import InvalidInputError, shortened
from tas.names import is_metric_name, is_subdomain
from tas.sample import Scrape
from tas.sources.state import SourceState
from tas.trace import Evidence, Hop, NamedPolicy, Trace
from tas.trace import trace as follow
from workers.cli.asking import JSON_OPTION, age_text, ask, new_table, print_json, print_table
from workers.cli.options import settings_command
from workers.cli.settings import Settings

_Read = TypeVar("_Read")


@settings_command(
    "trace",
    params=[click.Argument(["metric"]), click.Argument(["node"]), JSON_OPTION],
)
def trace(settings: Settings, *, metric: str, node: str, as_json: bool) -> int:
    """Follow the newest value of METRIC of NODE: source, sample, view, verdict, label.

    Says where it stops and since when; the exit code is 0 if it passed all stations, else 1.
    """
    if not is_metric_name(metric):
        raise click.ClickException(
            f"METRIC = {shortened(metric)}: must be a metric's name of letters, digits, _, - and :"
        )
    if not is_subdomain(node):
        raise click.ClickException(f"NODE = {shortened(node)}: must be a lowercase DNS subdomain (RFC 1123)")
    return ask(settings, lambda bus, _: _trace(bus, metric, node, settings.stale_after, as_json=as_json))


async def _trace(bus: Bus, metric: str, node: str, stale_after: float, *, as_json: bool) -> int:
    # In the direction of the flow, so that what moves on meanwhile is seen further on, and never seems lost.
    evidence = Evidence(
        attended=await _attended(bus),
        sources=await _sources(bus),
        published=await _published(bus, node),
        known=_read(await bus.get(NODES, node_metrics_key(node)), decode_node_samples) or (),
        labels=None
        if (facts := _read(await bus.get(NODES, node_facts_key(node)), decode_node_facts)) is None
        else facts.labels,
        cluster=None if (synced := _read(await bus.get(NODES, SYNCED), decode_synced)) is None else synced.cluster,
        policies=await _policies(bus),
        verdict=_read(await bus.get(VERDICTS, verdict_key(node)), decode_verdict),
        stale_after=stale_after,
    )
    now = time.time()
    found = follow(metric, node, evidence, now)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(found, now)
    return 0 if found.stops_at is None else 1


def _read(entry: Entry | None, decode: Callable[[bytes], _Read]) -> _Read | None:
    """What stands there; what nobody can read is told, and counts as nothing."""
    if entry is None or entry.value is None:
        return None
    try:
        return decode(entry.value)
    except InvalidInputError as error:
        click.echo(f"left out: {entry.key}: {error}", err=True)
        return None


async def _attended(bus: Bus) -> frozenset[str]:
    """The sources whose lease somebody holds."""
    return frozenset(entry.key.removeprefix("collect.") for entry in await bus.entries(LEASES))


async def _published(bus: Bus, node: str) -> dict[str, Scrape]:
    published: dict[str, Scrape] = {}
    for message in await bus.last_messages(SAMPLES, samples_subject(node, "*")):
        try:
            _, scrape, refused = decode_samples(
                message.subject, message.data, arrived=message.arrived, sequence=message.sequence
            )
        except InvalidInputError as error:
            click.echo(f"refused: {error}", err=True)
            continue
        for problem in refused:
            click.echo(f"refused: {problem}", err=True)
        if scrape is not None:
            published[scrape.source] = scrape
    return published


async def _sources(bus: Bus) -> dict[str, SourceState]:
    read = {entry.key: _read(entry, decode_source_state) for entry in await bus.entries(SOURCES)}
    return {name: state for name, state in read.items() if state is not None}


async def _policies(bus: Bus) -> list[NamedPolicy]:
    found = []
    for entry in await bus.entries(POLICIES):
        if entry.key == SYNCED or entry.value is None:
            continue
        try:
            record = decode_policy(parse_policy_key(entry.key), entry.value)
        except InvalidInputError as error:
            click.echo(f"left out: {error}", err=True)
            continue
        found.append(NamedPolicy(record.policy, record.uid, record.generation))
    return found


def _print(found: Trace, now: float) -> None:
    table = new_table("STATION", "", "SINCE", "FOUND")
    for hop in found.hops:
        mark = Text("passed", style="green") if hop.passed else Text("stops", style="bold red")
        table.add_row(hop.stage.value, mark, _since(hop, now), "\n".join(hop.told))
    print_table(table)
    last = found.hops[-1]
    if found.stops_at is None:
        click.echo(f"{found.metric} of {found.node} passes all the way")
    else:
        since = "" if last.since is None else f", since {_since(last, now)}"
        click.echo(f"{found.metric} of {found.node} stops at {found.stops_at.value}{since}: {last.told[-1]}")


def _since(hop: Hop, now: float) -> str:
    return "-" if hop.since is None else age_text(now - hop.since)
