"""`tas trace`: follows one value through all stages, and prints where it stopped."""

import asyncio
from collections.abc import Iterable

import click
import msgspec
from rich.text import Text

from bus.buckets import NODES, SAMPLES, SYNCED
from bus.connection import Bus
from bus.kinds import (
    NODE_FACTS,
    NODE_VERDICTS,
    POLICY_RECORDS,
    REFUSED_LABELS,
    synced_of,
)
from bus.scrapes import received
from bus.subjects import samples_subject
from bus.tables import last_tables, received_row
from cli.as_json import JSON_OPTION, print_json
from cli.options import settings_command
from cli.output import echo, echo_line
from cli.queries.query import age_text, ask, readable, stored_sources, time_of_bus
from cli.queries.tables import cell_of, new_table, print_table
from tas.errors import InvalidInputError, shortened
from tas.explain.trace import PolicyVersion, StageResult, Trace, TraceEvidence
from tas.explain.trace import trace as follow
from tas.samples.sample import NodeSamples, Scrape
from tas.samples.table import combined_samples
from tas.values.names import is_metric_name, is_subdomain
from workers.following.node_samples import NodeSamplesReads
from workers.settings import Settings

LOOKS = 6
"""How often is looked at most, where a value stops."""

LOOK_SECONDS = 0.5


@settings_command(
    "trace",
    params=[click.Argument(["metric"]), click.Argument(["node"]), JSON_OPTION],
)
def trace(settings: Settings, *, metric: str, node: str, as_json: bool) -> int:
    """Follow METRIC of NODE: source, sample, view, verdict, label.

    Shows at which stage the newest value stopped, and since when. The exit code is 0 if the value passed
    all stages, else 1.
    """
    if not is_metric_name(metric):
        raise click.ClickException(
            f"METRIC = {shortened(metric)}: must be a metric's name of letters, digits, _, - and :"
        )
    if not is_subdomain(node):
        raise click.ClickException(f"NODE = {shortened(node)}: must be a lowercase DNS subdomain (RFC 1123)")
    return ask(settings, lambda bus, _: _trace(bus, metric, node, settings.stale_after, as_json=as_json))


async def _trace(bus: Bus, metric: str, node: str, default_stale_after: float, *, as_json: bool) -> int:
    shown: set[str] = set()
    earlier: StageResult | None = None
    for _ in range(LOOKS):
        evidence, now = await _evidence(bus, node, default_stale_after, shown)
        found = follow(metric, node, evidence, now)
        # Values move on between the reads of two stages. So where a value stops counts if it is there a moment later.
        last = found.stages[-1]
        if found.stopped_at is None or (earlier is not None and _is_same(earlier, last)):
            break
        earlier = last
        await asyncio.sleep(LOOK_SECONDS)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(found, now)
    return 0 if found.stopped_at is None else 1


def _is_same(earlier: StageResult, now: StageResult) -> bool:
    return (earlier.stage, earlier.details) == (now.stage, now.details)


async def _evidence(bus: Bus, node: str, default_stale_after: float, shown: set[str]) -> tuple[TraceEvidence, float]:
    """What the bus has, and when the samples were read. `shown` has what was printed of messages that are refused."""
    # In the direction of the flow: a value that moves on meanwhile is found at a later stage and never seems lost.
    sources = await stored_sources(bus)
    now = await time_of_bus(bus)
    published = await _published(bus, node, shown)
    tables = await _tables(bus, node, shown)
    known = (await NodeSamplesReads(bus).read(node)).readable
    synced = (await synced_of(NODES).get(bus, SYNCED)).readable()
    policies = await readable(bus, POLICY_RECORDS)
    verdict = (await NODE_VERDICTS.get(bus, node)).readable()
    refused = await readable(bus, REFUSED_LABELS)
    facts = (await NODE_FACTS.get(bus, node)).readable()
    evidence = TraceEvidence(
        held_sources=sources.held,
        sources=sources.states,
        published=published,
        tables=tables,
        known=known,
        created=None if facts is None else facts.created_at,
        labels=None if facts is None else facts.labels,
        are_labels_complete=facts is None or facts.complete_labels is not None,
        cluster=None if synced is None else synced.cluster,
        policies=[PolicyVersion(record.policy, record.uid, record.generation) for record in policies.values()],
        verdict=verdict,
        refused=refused,
        default_stale_after=default_stale_after,
    )
    return evidence, now


async def _published(bus: Bus, node: str, shown: set[str]) -> dict[str, Scrape]:
    published: dict[str, Scrape] = {}
    problems: list[str] = []
    for message in await bus.last_messages(SAMPLES, samples_subject(node, "*")):
        try:
            _, scrape, refused = received(message)
        except InvalidInputError as error:
            problems.append(str(error))
            continue
        problems += map(str, refused)
        if scrape is not None:
            published[scrape.source] = scrape
    _show_refused(problems, shown)
    return published


async def _tables(bus: Bus, node: str, shown: set[str]) -> dict[str, NodeSamples]:
    """What the last tables of each source have of the node: nothing, if the node is not among its rows."""
    tables: dict[str, NodeSamples] = {}
    problems: list[str] = []
    for message in await last_tables(bus, node):
        try:
            source, samples, refused = received_row(message, node)
        except InvalidInputError as error:
            problems.append(str(error))
            continue
        problems += map(str, refused)
        tables[source] = combined_samples((), [tables.get(source, ()), samples])
    _show_refused(problems, shown)
    return tables


def _show_refused(problems: Iterable[str], shown: set[str]) -> None:
    for problem in problems:
        if problem not in shown:
            shown.add(problem)
            echo_line(f"refused: {problem}", err=True)


def _print(found: Trace, now: float) -> None:
    table = new_table("STAGE", "", "SINCE", "DETAIL")
    for result in found.stages:
        mark = Text("passed", style="green") if result.passed else Text("stopped", style="bold red")
        table.add_row(result.stage.value, mark, _since(result, now), cell_of(result.details))
    print_table(table)
    last = found.stages[-1]
    if found.stopped_at is None:
        echo(f"{found.metric} of {found.node} passed all stages")
    else:
        since = "" if last.since is None else f", since {_since(last, now)}"
        echo_line(f"{found.metric} of {found.node} stopped at {found.stopped_at.value}{since}: {last.details[-1]}")


def _since(result: StageResult, now: float) -> str:
    return "-" if result.since is None else age_text(now - result.since)
