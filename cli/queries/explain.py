"""`tas explain`: prints why a node, a policy or a pod has its result."""

from collections.abc import Mapping, Sequence

import click
import msgspec

from bus.buckets import NODES, SYNCED
from bus.connection import Bus
from bus.kinds import NODE_ALLOCATION, NODE_RELEASES, NODE_VERDICTS, POD_RECORDS, POLICY_RECORDS, synced_of
from cli.as_json import JSON_OPTION, print_json
from cli.groups import LazyCommand, LazyGroup
from cli.options import settings_command
from cli.output import echo, echo_line
from cli.queries.allocation_tables import print_allocation
from cli.queries.card_tables import print_cards
from cli.queries.cards import devices_of_node
from cli.queries.explain_tables import print_node, print_policy
from cli.queries.query import ask, readable, stored_nodes, stored_sources, time_of_bus
from tas.enforcing.breaker import names_on
from tas.errors import shortened
from tas.explain.allocation import explain_allocation
from tas.explain.explain import explain_node, explain_policy
from tas.explain.trace import refused_on
from tas.explain.unknown import why_unknown
from tas.gpu.explanation import explain_cards
from tas.policy.policy import PolicyKey
from tas.processes.process import waiting_labels
from tas.values.names import is_dns_label, is_subdomain
from tas.verdict.status import labels_to_set, waiting_problem
from tas.view.view import View
from workers.following.node_samples import NodeSamplesReads
from workers.following.placed_pods import place
from workers.following.processes import running_processes
from workers.settings import Settings

COMMANDS = {
    "node": LazyCommand("cli.queries.explain", "Each rule for the node NAME."),
    "pod": LazyCommand("cli.queries.explain_pod", "The extender's answer for the pod NAME now."),
    "policy": LazyCommand("cli.queries.explain", "The state of every node for the policy NAME."),
}
"""Only that of a pod asks the extender over HTTP, and reads manifests."""


@click.group("explain", cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def explain() -> None:
    """Show why: each rule with its value, age, source and state."""


@settings_command("node", settings_as="explain", params=[click.Argument(["name"]), JSON_OPTION])
def node(settings: Settings, *, name: str, as_json: bool) -> int:
    """Each rule for the node NAME.

    Shows value, age, source and state of each rule, and the verdict of each strategy. For an unknown value it shows
    what the sources say. Also shows the GPU cards of the node, labels of it that cannot be read, and what its pods
    request.
    """
    if not is_subdomain(name):
        raise click.ClickException(f"NAME = {shortened(name)}: must be a lowercase DNS subdomain (RFC 1123)")
    return ask(settings, lambda bus, _: _explain_node(bus, name, settings.stale_after, as_json=as_json))


@settings_command("policy", settings_as="explain", params=[click.Argument(["name"]), JSON_OPTION])
def policy(settings: Settings, *, name: str, as_json: bool) -> int:
    """The state of every node for the policy NAME.

    NAME may be NAMESPACE/NAME. Nodes that violate the policy come first.
    """
    key = PolicyKey(*pair(name))
    return ask(settings, lambda bus, _: _explain_policy(bus, key, settings.stale_after, as_json=as_json))


def pair(name: str) -> tuple[str, str]:
    """Namespace and name of `NAME` or `NAMESPACE/NAME`. Raises ClickException."""
    namespace, slash, rest = name.rpartition("/")
    namespace = namespace if slash else "default"
    if not is_dns_label(namespace) or not is_subdomain(rest):
        raise click.ClickException(
            f"NAME = {shortened(name)}: must be NAME or NAMESPACE/NAME, lowercase as in DNS (RFC 1123)"
        )
    return namespace, rest


async def _explain_node(bus: Bus, name: str, default_stale_after: float, *, as_json: bool) -> int:
    now = await time_of_bus(bus)
    view = await _without_nodes(bus, default_stale_after, now)
    read = await NodeSamplesReads(bus).read(name)
    facts = read.facts.readable()
    if read.readable:
        view.add_samples(name, read.readable, now)
    if facts is not None:
        view.set_labels(name, facts.complete_labels, created=facts.created_at)
    view.advance(now)
    explanation = explain_node(view, name, now)
    devices = await devices_of_node(bus, name)
    cards = None if devices is None else explain_cards(name, devices)
    stored = await NODE_ALLOCATION.get(bus, name)
    record = stored.readable()
    allocation = None if record is None else explain_allocation(record, stored.created, now)
    sources = await stored_sources(bus)
    states = sources.states
    refused = refused_on(name, states)
    unknown = why_unknown(view, name, states, sources.held, now) if explanation.known else {}
    labels = None if facts is None else facts.complete_labels
    waiting = {} if labels is None else await _waiting(bus, name, labels)
    if as_json:
        others = {"cards": cards, "allocation": allocation, "refused": refused, "unknown": unknown, "waiting": waiting}
        print_json(msgspec.to_builtins(explanation) | msgspec.to_builtins(others))
    else:
        if explanation.known:
            print_node(explanation)
        _print_reasons({f"{metric} is unknown": reasons for metric, reasons in unknown.items()})
        _print_reasons(waiting)
        if cards is not None:
            print_cards([cards], now)
        if allocation is not None:
            print_allocation(name, allocation)
        _print_reasons(refused)
    is_known = explanation.known or cards is not None or allocation is not None
    if not is_known:
        echo(f"node {name}: the bus has neither samples nor labels of this node (tas get nodes)", err=True)
    return 0 if is_known else 1


async def _waiting(bus: Bus, node: str, labels: Mapping[str, str]) -> dict[str, list[str]]:
    """Why the node does not have a label that its verdict sets, if nodes wait for their first label of the policy."""
    waiting = waiting_labels(await running_processes(bus))
    verdict = (await NODE_VERDICTS.get(bus, node)).readable() if waiting else None
    policies = {} if verdict is None else verdict.policies
    return {
        f"policy {key} has not labelled this node yet": [f"{problem.value} {problem.reason}"]
        for key, each in sorted(policies.items())
        if key.name in waiting and key.name not in names_on(labels)
        if labels_to_set(each)
        for problem in [waiting_problem(waiting[key.name])]
    }


def _print_reasons(reasons: Mapping[str, Sequence[str]]) -> None:
    for what, each in reasons.items():
        for reason in each:
            echo_line(f"{what}: {reason}")


async def _explain_policy(bus: Bus, key: PolicyKey, default_stale_after: float, *, as_json: bool) -> int:
    now = await time_of_bus(bus)
    explanation = explain_policy(await view_of(bus, default_stale_after, now), key, now)
    if not explanation.known:
        raise click.ClickException(f"policy {key}: does not exist (tas get policies lists all policies)")
    waiting = waiting_labels(await running_processes(bus)).get(key.name, 0)
    if as_json:
        print_json(msgspec.to_builtins(explanation) | {"waiting": waiting})
    else:
        print_policy(explanation)
        if waiting:
            problem = waiting_problem(waiting)
            echo(f"{problem.value} {problem.reason}")
    return 0


async def _without_nodes(bus: Bus, default_stale_after: float, now: float) -> View:
    """A view of the policies, of the pods that they count, and of what is known of all nodes together."""
    view = View(default_stale_after=default_stale_after)
    synced = (await synced_of(NODES).get(bus, SYNCED)).readable()
    view.set_cluster(cluster=synced is not None and synced.cluster)
    for node, release in (await readable(bus, NODE_RELEASES)).items():
        view.release(node, min(release.time.timestamp(), now))
    for record in (await readable(bus, POLICY_RECORDS)).values():
        view.set_policy(record.policy, now)
    if view.counts_pods:
        for key, pod in (await readable(bus, POD_RECORDS)).items():
            place(view, key, pod, now)
    return view


async def view_of(bus: Bus, default_stale_after: float, now: float) -> View:
    """A view of all that the bus has of policies, nodes and pods. Raises UnavailableError."""
    view = await _without_nodes(bus, default_stale_after, now)
    nodes = await stored_nodes(bus)
    for name, samples in nodes.samples.items():
        view.add_samples(name, samples, now)
    for name, facts in nodes.facts.items():
        view.set_labels(name, facts.complete_labels, created=facts.created_at)
    view.advance(now)
    return view
