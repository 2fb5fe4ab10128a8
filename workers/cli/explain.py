"""`tas explain`: why a node is as it is."""

import time

import click
import msgspec
from rich.text import Text

from bus.buckets import NODES, POLICIES, SYNCED
from bus.connection import Bus
from bus.messages import decode_node_facts, decode_node_samples, decode_policy
from bus.subjects import node_facts_key, node_metrics_key, parse_policy_key
from tas.duration import format_duration
from tas.errors import InvalidInputError, shortened
from tas.explain import NodeExplanation, StrategyExplanation, explain_node
from tas.names import is_subdomain
from tas.rules import State
from tas.view import View
from workers.cli.asking import JSON_OPTION, age_text, ask, new_table, print_json, print_table
from workers.cli.options import settings_command
from workers.cli.settings import Settings

_STYLE = {State.VIOLATED: "bold red", State.MET: "green", State.UNKNOWN: "yellow"}


@click.group("explain", no_args_is_help=True)
def explain() -> None:
    """Show why: each rule with the value it saw, and what follows."""


@settings_command("node", settings_as="explain", params=[click.Argument(["name"]), JSON_OPTION])
def node(settings: Settings, *, name: str, as_json: bool) -> int:
    """Each policy, strategy and rule for the node NAME: value, age, source, state, verdict."""
    if not is_subdomain(name):
        raise click.ClickException(f"NAME = {shortened(name)}: must be a lowercase DNS subdomain (RFC 1123)")
    return ask(settings, lambda bus, _: _explain(bus, name, settings.stale_after, as_json=as_json))


explain.add_command(node)


async def _explain(bus: Bus, name: str, stale_after: float, *, as_json: bool) -> int:
    view = await _view(bus, name, stale_after)
    now = time.time()
    view.advance(now)
    explanation = explain_node(view, name, now)
    if as_json:
        print_json(msgspec.to_builtins(explanation))
    else:
        _print(explanation)
    if not explanation.known:
        click.echo(f"node {name}: nobody has said anything of it", err=True)
    return 0 if explanation.known else 1


async def _view(bus: Bus, name: str, stale_after: float) -> View:
    """All policies and the one node, as they stand now."""
    view = View(default_stale_after=stale_after)
    now = time.time()
    for entry in await bus.entries(POLICIES):
        if entry.key == SYNCED or entry.value is None:
            continue
        try:
            view.set_policy(decode_policy(parse_policy_key(entry.key), entry.value).policy, now)
        except InvalidInputError as error:
            click.echo(f"left out: {error}", err=True)
    metrics = await bus.get(NODES, node_metrics_key(name))
    if metrics is not None and metrics.value is not None:
        view.add_samples(name, decode_node_samples(metrics.value), now)
    facts = await bus.get(NODES, node_facts_key(name))
    if facts is not None and facts.value is not None:
        view.set_labels(name, decode_node_facts(facts.value).labels)
    return view


def _print(explanation: NodeExplanation) -> None:
    table = new_table("POLICY", "STRATEGY", "RULE", "VALUE", "AGE", "SOURCE", "STATE", "VERDICT")
    for policy in explanation.policies:
        notes = [note for note, holds in (("suspended", policy.suspended), ("dry run", policy.dry_run)) if holds]
        if policy.selected is not True:
            notes.append("not selected" if policy.selected is False else "selector: labels unknown")
        name = policy.policy + (f" ({', '.join(notes)})" if notes else "")
        for strategy in policy.strategies:
            verdict = _verdict(strategy)
            if not strategy.rules:
                table.add_row(name, strategy.type.value, "-", "-", "-", "-", "-", verdict)
            for number, rule in enumerate(strategy.rules):
                age = "-" if rule.age_seconds is None else age_text(rule.age_seconds)
                table.add_row(
                    name,
                    strategy.type.value,
                    rule.rule,
                    rule.value or "-",
                    age if rule.fresh or rule.age_seconds is None else f"{age} (stale)",
                    rule.source or "-",
                    Text("-") if rule.state is None else Text(rule.state.value, style=_STYLE[rule.state]),
                    verdict if number == 0 else "",
                )
    if explanation.policies:
        print_table(table)
        limits = {policy.policy: format_duration(policy.stale_after_seconds) for policy in explanation.policies}
        told = ", ".join(f"{limit} ({name})" for name, limit in limits.items())
        click.echo(
            f"samples are stale after: {told}; where a policy does not say, --stale-after as the extender has it"
        )
    else:
        click.echo("no policies")


def _verdict(strategy: StrategyExplanation) -> Text:
    """What follows of a strategy's rules."""
    if strategy.state is None:
        return Text("compared with other nodes")
    text = strategy.state.value
    if strategy.state is State.UNKNOWN:
        text += f" (onStale: {strategy.on_stale})"
    return Text(text, style=_STYLE[strategy.state])
