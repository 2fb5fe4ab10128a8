"""`tas get`: what stands on the bus now."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import click
import msgspec
from rich.text import Text

from bus.buckets import LEASES, NODES, POLICIES, SOURCES, SYNCED, VERDICTS
from bus.connection import Bus
from bus.messages import (
    PolicyRecord,
    decode_node_facts,
    decode_node_samples,
    decode_policy,
    decode_source_state,
    decode_verdict,
)
from bus.subjects import parse_node_key, parse_policy_key, parse_verdict_key
from tas.errors import InvalidInputError
from tas.manifest import policy_spec
from tas.policy import StrategyType
from tas.quantity import format_quantity
from tas.sample import NodeSamples
from tas.sources.state import SourceState
from tas.verdict import Wish, WishKind
from workers.cli.asking import JSON_OPTION, age_text, ask, new_table, print_json, print_table
from workers.cli.options import settings_command
from workers.cli.settings import Settings


@click.group("get", no_args_is_help=True)
def get() -> None:
    """Show what stands on the bus: nodes, policies, what policies mean for nodes, or how sources are."""


@settings_command("nodes", settings_as="get", params=[JSON_OPTION])
def nodes(settings: Settings, *, as_json: bool) -> int:
    """Each node's newest samples, by source."""
    return ask(settings, lambda bus, _: _nodes(bus, as_json=as_json))


@settings_command("policies", settings_as="get", params=[JSON_OPTION])
def policies(settings: Settings, *, as_json: bool) -> int:
    """Each policy, and what is wrong with it."""
    return ask(settings, lambda bus, _: _policies(bus, as_json=as_json))


@settings_command("verdicts", settings_as="get", params=[JSON_OPTION])
def verdicts(settings: Settings, *, as_json: bool) -> int:
    """What each policy means for each node, and for its labels."""
    return ask(settings, lambda bus, _: _verdicts(bus, as_json=as_json))


@settings_command("sources", settings_as="get", params=[JSON_OPTION])
def sources(settings: Settings, *, as_json: bool) -> int:
    """Each source that `collect` asks or listens for: who has it, how it is, and what comes of it."""
    return ask(settings, lambda bus, _: _sources(bus, as_json=as_json))


for _command in (nodes, policies, verdicts, sources):
    get.add_command(_command)


async def _nodes(bus: Bus, *, as_json: bool) -> int:
    now = time.time()
    samples: defaultdict[str, NodeSamples] = defaultdict(tuple)
    labels: dict[str, dict[str, str]] = {}
    for entry in await bus.entries(NODES):
        if entry.key == SYNCED or entry.value is None:
            continue
        try:
            node, kind = parse_node_key(entry.key)
            if kind == "metrics":
                samples[node] = decode_node_samples(entry.value)
            else:
                labels[node] = decode_node_facts(entry.value).labels
        except InvalidInputError as error:
            click.echo(f"left out: {error}", err=True)
    names = sorted(samples.keys() | labels.keys())
    if as_json:
        print_json([{"node": name, "labels": labels.get(name), "samples": _told(samples[name], now)} for name in names])
        return 0
    table = new_table("NODE", "METRIC", "VALUE", "AGE", "SOURCE")
    for name in names:
        told = _told(samples[name], now)
        for sample in told:
            table.add_row(name, sample["metric"], sample["value"], age_text(sample["age_seconds"]), sample["source"])
        if not told:
            table.add_row(name, "-", "-", "-", "-")
    print_table(table, empty="no nodes: nobody has published a sample (tas publish), and no cluster is watched")
    return 0


async def _verdicts(bus: Bus, *, as_json: bool) -> int:
    now = time.time()
    found: dict[str, bytes] = {}
    for entry in await bus.entries(VERDICTS):
        if entry.value is not None:
            found[entry.key] = entry.value
    table = new_table("NODE", "POLICY", "STRATEGY", "STATE", "SINCE", "VALUE THEN", "WISHES")
    told: list[dict[str, Any]] = []
    for key, value in sorted(found.items()):
        try:
            node, verdict = parse_verdict_key(key), decode_verdict(value)
        except InvalidInputError as error:
            click.echo(f"left out: {error}", err=True)
            continue
        told.append({"node": node} | msgspec.json.decode(value))
        for policy, each in sorted(verdict.policies.items()):
            for kind, strategy in sorted(each.strategies.items()):
                wishes = Text("\n".join(f"{label}: {_wish(one.wish)}" for label, one in strategy.labels.items()) or "-")
                since = age_text(now - strategy.changed)
                table.add_row(node, str(policy), kind.value, strategy.state.value, since, strategy.value or "-", wishes)
    if as_json:
        print_json(told)
    else:
        print_table(table, empty="no verdicts: there is no node or no policy, or evaluate does not run")
    return 0


def _wish(wish: Wish) -> str:
    """As a person reads it."""
    if wish.kind is WishKind.SET:
        return f"set {wish.value}"
    return f"set {wish.value} unless any" if wish.kind is WishKind.SET_UNLESS_ANY else wish.kind.value


def _told(samples: NodeSamples, now: float) -> list[dict[str, Any]]:
    """Each source's value of each metric, by metric and source."""
    told = [
        {
            "metric": metric,
            "value": format_quantity(value),
            "source": scrape.source,
            "measured": scrape.measured,
            "arrived": scrape.arrived,
            "age_seconds": round(now - scrape.time, 3),
        }
        for scrape in samples
        for metric, value in scrape.metrics.items()
    ]
    return sorted(told, key=lambda sample: (sample["metric"], sample["source"]))


async def _policies(bus: Bus, *, as_json: bool) -> int:
    records = []
    for entry in await bus.entries(POLICIES):
        if entry.key == SYNCED or entry.value is None:
            continue
        try:
            key = parse_policy_key(entry.key)
            records.append(decode_policy(key, entry.value))
        except InvalidInputError as error:
            click.echo(f"left out: {error}", err=True)
    records.sort(key=lambda record: record.policy.key)
    if as_json:
        print_json(
            [
                {
                    "namespace": record.policy.key.namespace,
                    "name": record.policy.key.name,
                    "uid": record.uid,
                    "generation": record.generation,
                    "origin": record.origin,
                    "problems": [msgspec.to_builtins(problem) for problem in record.problems],
                    "spec": policy_spec(record.policy),
                }
                for record in records
            ]
        )
        return 0
    # Only policies from a directory have a file.
    columns = ["POLICY", "STRATEGY", "RULES", "OPTIONS", "FILE", "PROBLEMS"]
    if not any(record.origin for record in records):
        columns.remove("FILE")
    table = new_table(*columns)
    for record in records:
        for row in _policy_rows(record):
            table.add_row(*(row.get(column, Text("-")) for column in columns))
    print_table(table, empty="no policies: none in --policies DIR, or none in the cluster")
    return 0


def _policy_rows(record: PolicyRecord) -> Iterator[dict[str, Text]]:
    """A row for each strategy of a policy, at least one; what is said of the policy as a whole stands in the first."""
    spec = policy_spec(record.policy)
    strategies = spec.pop("strategies") or {"": {"rules": []}}
    if record.policy.node_selector is not None:
        spec["nodeSelector"] = str(record.policy.node_selector) or "every node"
    whole = _options(spec)
    for number, (kind, written) in enumerate(sorted(strategies.items())):
        options = {name: value for name, value in written.items() if name not in ("rules", "logicalOperator")}
        row = {"POLICY": str(record.policy.key)}
        if kind:
            row |= {"STRATEGY": kind, "RULES": str(record.policy.strategies[StrategyType(kind)])}
        row["OPTIONS"] = "\n".join([*(whole if number == 0 else []), *_options(options)])
        row["FILE"] = record.origin
        row["PROBLEMS"] = "\n".join(map(str, record.problems)) if number == 0 else " "
        yield {column: Text(text) for column, text in row.items() if text}


def _options(fields: Mapping[str, Any]) -> list[str]:
    """Fields in the CRD's words, one a line: `suspend`, `staleAfter 30s`."""
    return [name if value is True else f"{name} {value}" for name, value in fields.items()]


async def _sources(bus: Bus, *, as_json: bool) -> int:
    now = time.time()
    held = {entry.key for entry in await bus.entries(LEASES)}
    table = new_table("SOURCE", "STATE", "HOLDER", "PERIOD", "LAST SUCCESS", "METRICS", "TROUBLE")
    told: list[dict[str, Any]] = []
    for entry in sorted(await bus.entries(SOURCES), key=lambda each: each.key):
        if entry.value is None:
            continue
        try:
            state = decode_source_state(entry.value)
        except InvalidInputError as error:
            click.echo(f"left out: {error}", err=True)
            continue
        is_held = f"collect.{entry.key}" in held
        word = _source_word(state, is_held=is_held)
        told.append({"source": entry.key, "state": word} | msgspec.json.decode(entry.value))
        table.add_row(
            entry.key,
            word,
            state.holder,
            "-" if state.period is None else f"{state.period:g}s",
            "never" if state.last_success is None else f"{age_text(now - state.last_success)} ago",
            Text("\n".join(f"{metric}: {each.nodes} nodes" for metric, each in state.metrics.items()) or "-"),
            Text("\n".join(_source_troubles(state)) or "-"),
        )
    if as_json:
        print_json(told)
    else:
        print_table(
            table,
            empty="no sources: none is asked or written to; programs that publish themselves show in tas get nodes",
        )
    return 0


def _source_word(state: SourceState, *, is_held: bool) -> str:
    """How a source is, in a word."""
    if state.period is not None and not is_held:
        return "unattended"  # every replica is gone, or stands still
    if not state.metrics:
        return "idle"
    if state.problem:
        return "failing"
    if any(each.missing for each in state.metrics.values()):
        return "partial"
    return "waiting" if state.last_success is None else "well"


def _source_troubles(state: SourceState) -> list[str]:
    """All that is wrong, as a person reads it."""
    troubles = [state.problem] if state.problem else []
    troubles += [f"{metric}: {each.missing}" for metric, each in state.metrics.items() if each.missing]
    return troubles + [f"{each.count} refused, as {each.example}" for each in state.refused.values()]
