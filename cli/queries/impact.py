"""`tas policy impact`: what a policy would do now, before it is applied."""

import sys
from collections.abc import Mapping

import click
import msgspec

from bus.connection import Bus
from bus.kinds import POD_RECORDS, POLICY_RECORDS
from cli.as_json import print_json
from cli.options import settings_command
from cli.output import echo
from cli.policy import content
from cli.policy_lint import Severity, lint
from cli.queries.explain import view_of
from cli.queries.query import ask, readable, stored_breakers, time_of_bus
from tas.errors import InvalidInputError
from tas.explain.impact import Impact, ImpactFacts, PodOfPolicy, impacts_of
from tas.policy.manifest import is_another_kind, parse_manifest
from tas.policy.policy import Policy, PolicyKey
from tas.values.nouns import counted
from workers.process.manifests import ManifestError, objects, read_yaml_lines
from workers.settings import Settings

NO_TRIP, TRIPS, WRONG, UNKNOWN = 0, 1, 2, 3
"""The exit codes."""

SHOWN = 10
"""The most nodes or pods that are named in a line; JSON has all."""


@settings_command(
    "impact",
    settings_as="policy impact",
    params=[
        click.Argument(["file"], metavar="FILE"),
        click.Option(
            ["--output"], type=click.Choice(["text", "json"]), default="text", show_default=True, help="The form."
        ),
    ],
)
def impact(settings: Settings, *, file: str, output: str) -> int:
    """Show what the policies in FILE would do now, and change nothing.

    FILE is a manifest, or - for standard input. By what is on the bus, the command says for each policy which nodes
    violate it now, by strategy; which nodes would get a label; whether a breaker would trip; and which waiting and
    running pods that concerns. A `for` counts as over. Limits are those of --breaker and --breaker-all, as `labels`
    has them.

    Exit codes: 0 no breaker would trip; 1 a breaker would trip; 2 wrong usage, or FILE cannot be read or has an
    invalid policy; 3 no bus answers, or it is not known of any node whether it violates a policy.
    """
    policies = _policies_in(file)
    try:
        return ask(settings, lambda bus, _: _impact(bus, settings, policies, output))
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            raise
        echo(f"Error: {error.format_message()}", err=True)
        return UNKNOWN


def _policies_in(file: str) -> Mapping[PolicyKey, Policy]:
    """The policies of a file. Ends the command with `WRONG` if one is invalid."""
    data = content(file)
    errors = [each for each in lint(file, data).findings if each.severity is Severity.ERROR]
    for each in errors:
        echo(each, err=True)
    if errors:
        sys.exit(WRONG)
    found: dict[PolicyKey, Policy] = {}
    try:
        for document, _ in read_yaml_lines(data):
            for manifest in objects([document]):
                if is_another_kind(manifest):
                    continue
                policy, _ = parse_manifest(manifest)
                if policy.key in found:
                    raise click.UsageError(f"FILE = {file}: policy {policy.key} is there twice")
                found[policy.key] = policy
    except (ManifestError, InvalidInputError) as error:
        raise click.UsageError(f"FILE = {file}: {error}") from error
    if not found:
        raise click.UsageError(f"FILE = {file}: holds no policy")
    return found


async def _impact(bus: Bus, settings: Settings, policies: Mapping[PolicyKey, Policy], output: str) -> int:
    now = await time_of_bus(bus)
    known = ImpactFacts(
        view=await view_of(bus, settings.stale_after, now),
        policies=[(record.policy, record.created) for record in (await readable(bus, POLICY_RECORDS)).values()],
        pods=[
            PodOfPolicy(key, PolicyKey(key.namespace, pod.policy), pod.node)
            for key, pod in (await readable(bus, POD_RECORDS)).items()
        ],
        breakers=await stored_breakers(bus),
        limit=settings.breaker,
        limit_over_all=settings.breaker_all,
    )
    found = impacts_of(policies.values(), known, now)
    if output == "json":
        print_json([msgspec.to_builtins(each) | {"trips": each.trips, "known": each.is_known} for each in found])
    else:
        for each in found:
            _print(each)
    if any(each.trips for each in found):
        return TRIPS
    return NO_TRIP if all(each.is_known for each in found) else UNKNOWN


def _print(found: Impact) -> None:
    echo(f"policy {found.policy}: selects {found.selected} of {counted(found.nodes, 'node')}")
    for strategy in found.strategies:
        echo(
            f"  {strategy.strategy}: {len(strategy.violating)} violate it{_named(strategy.violating)}, "
            f"{strategy.met} meet it, {strategy.unknown} unknown"
        )
    if not found.acts:
        echo("  it is suspended or a dry run: no node gets a label")
    echo(f"  {counted(len(found.labels), 'node')} would get a label{_named(found.labels)}")
    for breaker in found.breakers:
        what = "all policies together" if breaker.breaker == "_all" else breaker.breaker
        if breaker.limit is None:
            echo(f"  the breaker of {what}: no limit")
            continue
        verdict = "WOULD TRIP" if breaker.trips else "would not trip"
        tripped = "; it has tripped already" if breaker.tripped else ""
        echo(
            f"  the breaker of {what} {verdict}: {breaker.wanted} of {counted(breaker.selected, 'node')}, "
            f"at most {breaker.limit} may have labels{tripped}"
        )
    echo(f"  pods of the policy: {len(found.waiting)} without a node{_named(found.waiting)}")
    echo(f"  pods of the policy on nodes that violate it: {len(found.running)}{_named(found.running)}")
    if not found.is_known:
        echo("  not known: no node is selected, or none has fresh values of a strategy's metrics", err=True)


def _named(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f" ({', '.join(names[:SHOWN])}{more})"
