"""`tas explain`: why a node, a policy or a pod is as it is."""

import time
from collections.abc import Sequence

import aiohttp
import click
import msgspec

from bus.buckets import NODES, PODS, POLICIES, SYNCED
from bus.connection import Bus
from bus.messages import decode_node_facts, decode_node_samples, decode_pod, decode_policy
from bus.subjects import node_facts_key, node_metrics_key, parse_node_key, parse_policy_key, pod_key
from tas.errors import InvalidInputError, shortened
from tas.explain import explain_node, explain_pod, explain_policy
from tas.extender.decision import Pod
from tas.extender.telemetry import TelemetryDecider
from tas.extender.verbs import Answer
from tas.names import is_dns_label, is_label_value, is_subdomain
from tas.pod import PodKey
from tas.policy import POD_LABEL, PolicyKey
from tas.view import View
from workers.cli.asking import JSON_OPTION, ask, print_json
from workers.cli.explain_tables import print_node, print_pod, print_policy
from workers.cli.options import settings_command
from workers.cli.settings import Settings, flag, variable
from workers.runtime import Address

ANSWERS_SECONDS = 3.0
"""How long the extender is asked for its last answers."""


@click.group("explain", no_args_is_help=True)
def explain() -> None:
    """Show why: each rule with the value it saw, and what follows."""


@settings_command("node", settings_as="explain", params=[click.Argument(["name"]), JSON_OPTION])
def node(settings: Settings, *, name: str, as_json: bool) -> int:
    """Each policy, strategy and rule for the node NAME: value, age, source, state, verdict."""
    if not is_subdomain(name):
        raise click.ClickException(f"NAME = {shortened(name)}: must be a lowercase DNS subdomain (RFC 1123)")
    return ask(settings, lambda bus, _: _explain_node(bus, name, settings.stale_after, as_json=as_json))


@settings_command("policy", settings_as="explain", params=[click.Argument(["name"]), JSON_OPTION])
def policy(settings: Settings, *, name: str, as_json: bool) -> int:
    """What the policy NAME (or NAMESPACE/NAME) says of every node, those that it rejects first."""
    key = PolicyKey(*_pair(name))
    return ask(settings, lambda bus, _: _explain_policy(bus, key, settings.stale_after, as_json=as_json))


@settings_command(
    "pod",
    settings_as="explain",
    params=[
        click.Argument(["name"]),
        click.Option(["--policy"], help=f"The pod's label {POD_LABEL}, if neither cluster nor extender know the pod."),
        JSON_OPTION,
    ],
)
def pod(settings: Settings, *, name: str, policy: str | None, as_json: bool) -> int:
    """What the pod NAME (or NAMESPACE/NAME) would be answered now, by which samples, and what it was answered."""
    key = PodKey(*_pair(name))
    if policy is not None and not is_label_value(policy):
        raise click.ClickException(f"--policy = {shortened(policy)}: must be a label's value")
    return ask(settings, lambda bus, _: _explain_pod(bus, key, policy, settings, as_json=as_json))


for _command in (node, policy, pod):
    explain.add_command(_command)


def _pair(name: str) -> tuple[str, str]:
    """Namespace and name."""
    namespace, slash, rest = name.rpartition("/")
    namespace = namespace if slash else "default"
    if not is_dns_label(namespace) or not is_subdomain(rest):
        raise click.ClickException(
            f"NAME = {shortened(name)}: must be NAME or NAMESPACE/NAME, lowercase as in DNS (RFC 1123)"
        )
    return namespace, rest


async def _explain_node(bus: Bus, name: str, stale_after: float, *, as_json: bool) -> int:
    now = time.time()
    view = await _policies(bus, stale_after, now)
    for key in (node_metrics_key(name), node_facts_key(name)):
        entry = await bus.get(NODES, key)
        if entry is not None and entry.value is not None:
            _add(view, key, entry.value, now)
    view.advance(now)
    explanation = explain_node(view, name, now)
    if as_json:
        print_json(msgspec.to_builtins(explanation))
    else:
        print_node(explanation)
    if not explanation.known:
        click.echo(f"node {name}: nobody has said anything of it", err=True)
    return 0 if explanation.known else 1


async def _explain_policy(bus: Bus, key: PolicyKey, stale_after: float, *, as_json: bool) -> int:
    now = time.time()
    explanation = explain_policy(await _view(bus, stale_after, now), key, now)
    if not explanation.known:
        raise click.ClickException(f"policy {key}: there is none (tas get policies shows which there are)")
    if as_json:
        print_json(msgspec.to_builtins(explanation))
    else:
        print_policy(explanation)
    return 0


async def _explain_pod(bus: Bus, key: PodKey, policy: str | None, settings: Settings, *, as_json: bool) -> int:
    answered = await _answered(key, settings.extender_health)
    now = time.time()
    if policy is None:
        policy = await _policy_of(bus, key, answered or [])
    view = await _view(bus, settings.stale_after, now)
    asked = Pod(namespace=key.namespace, name=key.name, uid="", labels={POD_LABEL: policy})
    explanation = explain_pod(view, TelemetryDecider(view), asked, sorted(view.nodes), now)
    if as_json:
        print_json({"now": msgspec.to_builtins(explanation), "answered": msgspec.to_builtins(answered)})
    else:
        print_pod(explanation, answered, now)
    return 0


async def _policy_of(bus: Bus, key: PodKey, answered: Sequence[Answer]) -> str:
    """The name of the pod's policy: as the bus has it, else as the extender last knew it, for a pod that has gone."""
    entry = await bus.get(PODS, pod_key(key))
    if entry is None or entry.value is None:
        last = next((each.policy for each in answered if each.policy), None)
        if last is not None:
            return last.removeprefix(f"{key.namespace}/")
        raise click.ClickException(
            f"pod {key}: not known. Only pods of a cluster that carry the label {POD_LABEL} are, and those that the "
            "extender answered lately; say --policy NAME"
        )
    try:
        return decode_pod(entry.value).policy
    except InvalidInputError as error:
        raise click.ClickException(str(error)) from error


async def _answered(key: PodKey, health: Address) -> list[Answer] | None:
    """What the extender answered this pod, newest first; None if it cannot be asked, which is told."""
    try:
        timeout = aiohttp.ClientTimeout(total=ANSWERS_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://{health}/answers", raise_for_status=True) as response,
        ):
            answers = msgspec.json.decode(await response.read(), type=list[Answer])
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
        told = f"{flag('extender_health')}, {variable('extender_health')}"
        click.echo(f"no last answers: {health} ({told}): {error or type(error).__name__}", err=True)
        return None
    return [each for each in reversed(answers) if (each.namespace, each.pod) == (key.namespace, key.name)]


async def _policies(bus: Bus, stale_after: float, now: float) -> View:
    """A view of all policies, and no node."""
    view = View(default_stale_after=stale_after)
    for entry in await bus.entries(POLICIES):
        if entry.key == SYNCED or entry.value is None:
            continue
        try:
            view.set_policy(decode_policy(parse_policy_key(entry.key), entry.value).policy, now)
        except InvalidInputError as error:
            click.echo(f"left out: {error}", err=True)
    return view


async def _view(bus: Bus, stale_after: float, now: float) -> View:
    """Everything as it stands at `now`."""
    view = await _policies(bus, stale_after, now)
    for entry in await bus.entries(NODES):
        if entry.key != SYNCED and entry.value is not None:
            _add(view, entry.key, entry.value, now)
    view.advance(now)
    return view


def _add(view: View, key: str, value: bytes, now: float) -> None:
    try:
        name, kind = parse_node_key(key)
        if kind == "metrics":
            view.add_samples(name, decode_node_samples(value), now)
        else:
            view.set_labels(name, decode_node_facts(value).labels)
    except InvalidInputError as error:
        click.echo(f"left out: {error}", err=True)
