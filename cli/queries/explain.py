"""`tas explain`: prints why a node, a policy or a pod has its result."""

import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

import aiohttp
import click
import msgspec

from bus.connection import Bus
from bus.kinds import NODE_ALLOCATION, NODE_FACTS, NODE_SAMPLES, POD_RECORDS, POLICY_RECORDS
from bus.record_kind import Unreadable
from bus.records.codec import UNREADABLE
from cli.as_json import JSON_OPTION, print_json
from cli.options import settings_command
from cli.output import echo
from cli.queries.allocation_tables import print_allocation
from cli.queries.card_tables import print_cards, print_pod_cards
from cli.queries.cards import devices_of_node, devices_of_nodes
from cli.queries.explain_tables import print_answers, print_node, print_pod, print_policy
from cli.queries.pod_manifest import DescribedPod, pod_of_manifest
from cli.queries.query import ask, readable, stored_sources
from cli.settings import Settings, flag, variable
from tas.enforcing.pod import PodKey
from tas.errors import shortened
from tas.explain.allocation import explain_allocation
from tas.explain.cards import explain_cards, explain_claim, explain_held
from tas.explain.explain import PodExplanation, explain_node, explain_pod, explain_policy
from tas.explain.trace import refused_on
from tas.explain.unknown import why_unknown
from tas.extender.decision import Pod
from tas.extender.telemetry import TelemetryDecider
from tas.extender.verbs import Answer
from tas.policy.policy import POD_LABEL, PolicyKey
from tas.values.names import is_dns_label, is_label_value, is_subdomain
from tas.view.view import View
from workers.following.placed_pods import place
from workers.process.address import Address
from workers.process.http_body import MAX_OWN_BYTES, TooLargeError, failed_request, whole_body
from workers.process.manifests import MAX_BYTES

T = TypeVar("T")

ANSWERS_SECONDS = 3.0
"""How long the extender may take to return its last answers."""

EXTENDER_ERRORS = (aiohttp.ClientError, TimeoutError, TooLargeError, *UNREADABLE)
"""The errors of a request to the extender's health port."""


@click.group("explain", no_args_is_help=True)
def explain() -> None:
    """Show why: each rule with its value, age, source and state."""


@settings_command("node", settings_as="explain", params=[click.Argument(["name"]), JSON_OPTION])
def node(settings: Settings, *, name: str, as_json: bool) -> int:
    """Each rule for the node NAME.

    Shows value, age, source and state of each rule, and the verdict of each strategy; of unknown values what sources
    say. Also shows the GPU cards of the node, what of its labels cannot be read, and what its pods request.
    """
    if not is_subdomain(name):
        raise click.ClickException(f"NAME = {shortened(name)}: must be a lowercase DNS subdomain (RFC 1123)")
    return ask(settings, lambda bus, _: _explain_node(bus, name, settings.stale_after, as_json=as_json))


@settings_command("policy", settings_as="explain", params=[click.Argument(["name"]), JSON_OPTION])
def policy(settings: Settings, *, name: str, as_json: bool) -> int:
    """The state of every node for the policy NAME.

    NAME may be NAMESPACE/NAME. Nodes that violate the policy come first.
    """
    key = PolicyKey(*_pair(name))
    return ask(settings, lambda bus, _: _explain_policy(bus, key, settings.stale_after, as_json=as_json))


@settings_command(
    "pod",
    settings_as="explain",
    params=[
        click.Argument(["name"]),
        click.Option(
            ["--policy"], help=f"The pod's label {POD_LABEL}, if neither the cluster nor the extender knows the pod."
        ),
        click.Option(
            ["--manifest"],
            type=click.Path(allow_dash=True),
            metavar="FILE",
            help="The pod, or a workload with its template: also explains which GPU cards of each node it would get. "
            "- is standard input: kubectl get pod NAME -o yaml | tas explain pod NAME --manifest -",
        ),
        JSON_OPTION,
    ],
)
def pod(settings: Settings, *, name: str, policy: str | None, manifest: str | None, as_json: bool) -> int:
    """The extender's answer for the pod NAME now.

    NAME may be NAMESPACE/NAME. Also shows the samples behind the answer, and the extender's last answers for the pod.
    Of a pod with GPU cards it shows the cards; with --manifest, for each node which card lacks what. Give --allowlist,
    --denylist and --balanced-resource as tas run gpu has them; --extender-health of tas run gpu shows its last answers.
    """
    key = PodKey(*_pair(name))
    if policy is not None and not is_label_value(policy):
        raise click.ClickException(f"--policy = {shortened(policy)}: must be a valid value of a label")
    described = None if manifest is None else pod_of_manifest(key, _read(manifest))
    return ask(
        settings,
        lambda bus, _: _explain_pod(bus, key, policy, settings, described=described, as_json=as_json),
        without_bus=lambda problem: _explain_pod_by_extender(problem, key, policy, settings, as_json=as_json),
    )


for _command in (node, policy, pod):
    explain.add_command(_command)


def _read(manifest: str) -> bytes:
    """The file, or standard input for `-`; of a larger one so much that it is refused for its size."""
    try:
        with click.open_file(manifest, "rb") as file:
            data: bytes = file.read(MAX_BYTES + 1)
            return data
    except OSError as error:
        raise click.ClickException(f"--manifest: {manifest}: {error.strerror}") from error


def _pair(name: str) -> tuple[str, str]:
    namespace, slash, rest = name.rpartition("/")
    namespace = namespace if slash else "default"
    if not is_dns_label(namespace) or not is_subdomain(rest):
        raise click.ClickException(
            f"NAME = {shortened(name)}: must be NAME or NAMESPACE/NAME, lowercase as in DNS (RFC 1123)"
        )
    return namespace, rest


async def _explain_node(bus: Bus, name: str, default_stale_after: float, *, as_json: bool) -> int:
    now = time.time()
    view = await _without_nodes(bus, default_stale_after, now)
    samples, facts = (await NODE_SAMPLES.get(bus, name)).readable(), (await NODE_FACTS.get(bus, name)).readable()
    if samples is not None:
        view.add_samples(name, samples, now)
    if facts is not None:
        view.set_labels(name, facts.complete_labels)
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
    if as_json:
        others = {"cards": cards, "allocation": allocation, "refused": refused, "unknown": unknown}
        print_json(msgspec.to_builtins(explanation) | msgspec.to_builtins(others))
    else:
        if explanation.known:
            print_node(explanation)
        _print_reasons({f"{metric} is unknown": reasons for metric, reasons in unknown.items()})
        if cards is not None:
            print_cards([cards], now)
        if allocation is not None:
            print_allocation(name, allocation)
        _print_reasons(refused)
    is_known = explanation.known or cards is not None or allocation is not None
    if not is_known:
        echo(f"node {name}: the bus has neither samples nor labels of this node (tas get nodes)", err=True)
    return 0 if is_known else 1


def _print_reasons(reasons: Mapping[str, Sequence[str]]) -> None:
    for what, each in reasons.items():
        for reason in each:
            echo(f"{what}: {reason}")


async def _explain_policy(bus: Bus, key: PolicyKey, default_stale_after: float, *, as_json: bool) -> int:
    now = time.time()
    explanation = explain_policy(await _view(bus, default_stale_after, now), key, now)
    if not explanation.known:
        raise click.ClickException(f"policy {key}: does not exist (tas get policies lists all policies)")
    if as_json:
        print_json(msgspec.to_builtins(explanation))
    else:
        print_policy(explanation)
    return 0


async def _explain_pod(
    bus: Bus,
    key: PodKey,
    policy: str | None,
    settings: Settings,
    *,
    described: DescribedPod | None,
    as_json: bool,
) -> int:
    answered = await _answered(key, settings.extender_health)
    now = time.time()
    devices = await devices_of_nodes(bus)
    cards = (
        explain_held(key, devices)
        if described is None
        else explain_claim(described.pod, devices, settings.card_options)
    )
    if described is not None:
        policy = policy or described.policy
    if policy is None:
        try:
            policy = await _policy_of(bus, key, answered or [])
        except click.ClickException:
            # A pod with GPU cards needs no policy, nor does one about which the extender has answered.
            if described is None and not cards.nodes and not answered:
                raise
    explanation = None
    if policy is not None:
        view = await _view(bus, settings.stale_after, now)
        pod = Pod(namespace=key.namespace, name=key.name, uid="", labels={POD_LABEL: policy})
        explanation = explain_pod(view, TelemetryDecider(view), pod, sorted(view.nodes), now)
    if as_json:
        print_json(
            {
                "now": msgspec.to_builtins(explanation),
                "answered": msgspec.to_builtins(answered),
                "cards": msgspec.to_builtins(cards),
            }
        )
        return 0
    if explanation is not None:
        print_pod(explanation, now)
    if answered is not None and (answered or explanation is not None):
        print_answers(answered, now)
    if described is not None or cards.nodes:
        print_pod_cards(cards)
    return 0


async def _explain_pod_by_extender(
    problem: str, key: PodKey, policy: str | None, settings: Settings, *, as_json: bool
) -> int | None:
    """Explains from the view of the extender, which keeps it without the bus; None if the extender does not answer."""
    answered = await _answered(key, settings.extender_health)
    if answered is None:
        return None
    policy = policy or _answered_policy(key, answered)
    if policy is None:
        raise click.ClickException(
            f"{problem}. The extender's last answers contain none for pod {key}: give --policy NAME"
        )
    try:
        query = {"pod": str(key), "policy": policy}
        found = await _of_extender(settings.extender_health, "/debug/explain", PodExplanation, **query)
    except EXTENDER_ERRORS as error:
        raise click.ClickException(f"{problem}. The extender: {error or type(error).__name__}") from error
    echo(f"{problem}. The extender at {settings.extender_health} answers; this is from its view", err=True)
    if as_json:
        print_json({"now": msgspec.to_builtins(found), "answered": msgspec.to_builtins(answered), "cards": None})
    else:
        now = time.time()
        print_pod(found, now)
        print_answers(answered, now)
    return 0


async def _policy_of(bus: Bus, key: PodKey, answered: Sequence[Answer]) -> str:
    """The name of the pod's policy: as stored on the bus; for a deleted pod, that of the extender's last answer."""
    pod = (await POD_RECORDS.get(bus, key)).read()
    if pod is None:
        if (last := _answered_policy(key, answered)) is not None:
            return last
        raise click.ClickException(
            f"pod {key}: not known. Known are the pods of a cluster with the label {POD_LABEL}, and the pods in the "
            "extender's last answers. For another pod, give --policy NAME"
        )
    if isinstance(pod, Unreadable):
        raise click.ClickException(str(pod.error))
    return pod.policy


def _answered_policy(key: PodKey, answered: Sequence[Answer]) -> str | None:
    """The name of the policy in the extender's last answer about the pod that has one."""
    last = next((each.policy for each in answered if each.policy), None)
    return None if last is None else last.removeprefix(f"{key.namespace}/")


async def _answered(key: PodKey, health: Address) -> list[Answer] | None:
    """The extender's last answers about the pod, newest first; None, with a message, if it does not answer."""
    try:
        answers = await _of_extender(health, "/answers", list[Answer])
    except EXTENDER_ERRORS as error:
        setting = f"{flag('extender_health')}, {variable('extender_health')}"
        # Something else listens there, such as the port that the scheduler calls.
        is_other = isinstance(error, (aiohttp.ClientResponseError, msgspec.MsgspecError))
        hint = ": give the health port of the extender, by default 127.0.0.1:9002" if is_other else ""
        echo(f"no last answers: {health} ({setting}): {failed_request(error)}{hint}", err=True)
        return None
    return [each for each in reversed(answers) if (each.namespace, each.pod) == (key.namespace, key.name)]


async def _of_extender(health: Address, path: str, kind: type[T], **query: str) -> T:
    """What the extender returns at a path of its health port. Raises one of `EXTENDER_ERRORS`."""
    timeout = aiohttp.ClientTimeout(total=ANSWERS_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://{health}{path}", params=query, raise_for_status=True) as response,
    ):
        return msgspec.json.decode(await whole_body(response, max_bytes=MAX_OWN_BYTES), type=kind)


async def _without_nodes(bus: Bus, default_stale_after: float, now: float) -> View:
    """A view of the policies, and of the pods that they count."""
    view = View(default_stale_after=default_stale_after)
    for record in (await readable(bus, POLICY_RECORDS)).values():
        view.set_policy(record.policy, now)
    if view.counts_pods:
        for key, pod in (await readable(bus, POD_RECORDS)).items():
            place(view, key, pod, now)
    return view


async def _view(bus: Bus, default_stale_after: float, now: float) -> View:
    view = await _without_nodes(bus, default_stale_after, now)
    for name, samples in (await readable(bus, NODE_SAMPLES)).items():
        view.add_samples(name, samples, now)
    for name, facts in (await readable(bus, NODE_FACTS)).items():
        view.set_labels(name, facts.complete_labels)
    view.advance(now)
    return view
