"""`tas explain pod`: what the extender answers about a pod, and why."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import aiohttp
import click
import msgspec

from bus.connection import Bus
from bus.kinds import POD_RECORDS
from bus.record_kind import Unreadable
from cli.as_json import JSON_OPTION, print_json
from cli.options import settings_command
from cli.output import echo
from cli.queries.card_tables import print_pod_cards
from cli.queries.cards import devices_of_nodes
from cli.queries.explain import pair, view_of
from cli.queries.explain_tables import print_answers, print_pod
from cli.queries.query import ask, time_of_bus
from tas.enforcing.pod import PodKey
from tas.errors import shortened
from tas.explain.pods import PodExplanation, explain_pod
from tas.extender.decision import Pod
from tas.extender.telemetry import TelemetryDecider
from tas.extender.verbs import Answer
from tas.gpu.explanation import explain_claim, explain_held
from tas.policy.policy import POD_LABEL
from tas.values.names import is_label_value
from workers.http.address import Address
from workers.http.body import READ_ERRORS, failed_request, read_json
from workers.settings import Settings, flag, variable

if TYPE_CHECKING:
    from cli.queries.pod_manifest import DescribedPod

ANSWERS_SECONDS = 3.0
"""How long the extender may take to return its last answers."""


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
    For a pod with GPU cards it shows the cards. With --manifest it shows for each node what each card lacks: give
    --allowlist, --denylist and --balanced-resource as tas run gpu has them. With the --extender-health of tas run gpu
    it shows the last answers of that one.
    """
    key = PodKey(*pair(name))
    if policy is not None and not is_label_value(policy):
        raise click.ClickException(f"--policy = {shortened(policy)}: must be a valid value of a label")
    described = None if manifest is None else _described(key, manifest)
    return ask(
        settings,
        lambda bus, _: _explain_pod(bus, key, policy, settings, described=described, as_json=as_json),
        without_bus=lambda problem: _explain_pod_by_extender(problem, key, policy, settings, as_json=as_json),
    )


def _described(key: PodKey, manifest: str) -> "DescribedPod":
    """The pod in the file, or in standard input for `-`; of a larger one so much is read that its size is refused."""
    from cli.queries.pod_manifest import pod_of_manifest  # only here: it loads the reader of YAML
    from workers.process.manifests import MAX_BYTES

    try:
        with click.open_file(manifest, "rb") as file:
            data: bytes = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise click.ClickException(f"--manifest: {manifest}: {error.strerror}") from error
    return pod_of_manifest(key, data)


async def _explain_pod(
    bus: Bus,
    key: PodKey,
    policy: str | None,
    settings: Settings,
    *,
    described: "DescribedPod | None",
    as_json: bool,
) -> int:
    answered = await _answered(key, settings.extender_health.near)
    now = await time_of_bus(bus)
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
        view = await view_of(bus, settings.stale_after, now)
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
    answered = await _answered(key, settings.extender_health.near)
    if answered is None:
        return None
    policy = policy or _answered_policy(key, answered)
    if policy is None:
        raise click.ClickException(
            f"{problem}. The extender's last answers contain none for pod {key}: give --policy NAME"
        )
    try:
        query = {"pod": str(key), "policy": policy}
        found: PodExplanation = await read_json(
            f"http://{settings.extender_health.near}/debug/explain",
            PodExplanation,
            seconds=ANSWERS_SECONDS,
            query=query,
        )
    except READ_ERRORS as error:
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
            f"extender's last answers. For a pod of agents or of cards, give {flag('extender_health')} with their "
            "health port; for another pod, --policy NAME"
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
        answers: list[Answer] = await read_json(f"http://{health}/answers", list[Answer], seconds=ANSWERS_SECONDS)
    except READ_ERRORS as error:
        setting = f"{flag('extender_health')}, {variable('extender_health')}"
        # Something else listens there, such as the port that the scheduler calls.
        is_other = isinstance(error, (aiohttp.ClientResponseError, msgspec.MsgspecError))
        hint = ": give the health port of the extender, by default 127.0.0.1:9002" if is_other else ""
        echo(f"no last answers: {health} ({setting}): {failed_request(error)}{hint}", err=True)
        return None
    return [each for each in reversed(answers) if (each.namespace, each.pod) == (key.namespace, key.name)]
