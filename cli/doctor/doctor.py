"""`tas doctor`: why an installation does not work."""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import msgspec

from bus.connection import Bus
from cli.as_json import JSON_OPTION, print_json
from cli.discovery import is_simulated, running_bus
from cli.doctor.bus_facts import BusRead, Stored, metric_facts, no_bus, policy_facts, process_facts, read_bus, settled
from cli.doctor.cluster_facts import ADMINISTRATOR, ClusterRead, read_cluster, unread
from cli.doctor.extender_probe import ExtenderRead, read_extender
from cli.doctor.output import print_findings
from cli.doctor.probes import probed
from cli.doctor.scheduler_files import SchedulerFiles, read_scheduler
from cli.doctor.service import address_of
from cli.options import settings_command
from cli.queries.query import ask
from cli.settings import Settings, flag
from tas.diagnosis.checks import CHECKS
from tas.diagnosis.clocks import ClockFacts, time_there
from tas.diagnosis.descheduler import DeschedulerFacts
from tas.diagnosis.diagnosis import ClusterFacts, Facts, diagnose
from tas.diagnosis.extender import ExtenderFacts
from tas.diagnosis.finding import Finding, Missing, exit_code, left
from tas.diagnosis.rights import NAMESPACE
from tas.diagnosis.scheduler import SchedulerFacts
from tas.diagnosis.service import NoService, ServiceName
from tas.diagnosis.url import Url, url_of
from tas.diagnosis.workloads import requests_resource
from tas.errors import shortened, without_password
from tas.policy.policy import PolicyKey
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConfigurationError

MANIFEST = Path("/etc/kubernetes/manifests/kube-scheduler.yaml")
EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound


class CannotRunError(click.ClickException):
    """`tas doctor` itself could not run."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that are no settings."""

    scheduler_config: Path | None = None
    manifest: Path = MANIFEST
    monitors: tuple[str, ...] = ()
    account_namespace: str = NAMESPACE
    skipped: tuple[str, ...] = ()
    with_ok: bool = False
    as_json: bool = False


def _monitors(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The URLs of `--bus-monitor`, of each value several separated by commas."""
    urls = tuple(url.strip() for value in values for url in value.split(","))
    for url in urls:
        if not re.match(r"https?://[^/]", url):
            raise click.BadParameter(f"{shortened(without_password(url))}: must be a URL such as http://HOST:8222")
    return urls


def _checks(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The checks and groups of `--skip`, of each value several separated by commas."""
    names = [name.strip() for value in values for name in value.split(",")]
    known = {*CHECKS, *(check.partition(".")[0] for check in CHECKS)}
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name}: no check and no group of checks, see docs/doctor.md")
    return tuple(names)


@settings_command(
    "doctor",
    params=[
        click.Option(
            ["--scheduler-config"],
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="The KubeSchedulerConfiguration. [default: as in the manifest]",
        ),
        click.Option(
            ["--manifest"],
            metavar="FILE",
            type=click.Path(path_type=Path),
            default=MANIFEST,
            show_default=True,
            help="The manifest of kube-scheduler on this machine.",
        ),
        click.Option(
            ["--bus-monitor", "monitors"],
            metavar="URL",
            multiple=True,
            callback=_monitors,
            help="The monitoring port of a nats-server, such as http://HOST:8222. May be given several times, for each "
            "server. [default: port 8222 of each host of --bus]",
        ),
        click.Option(
            ["--account-namespace"],
            metavar="NAMESPACE",
            default=NAMESPACE,
            show_default=True,
            help="The namespace with the ServiceAccounts of the workers.",
        ),
        click.Option(
            ["--skip", "skipped"],
            metavar="CHECK",
            multiple=True,
            callback=_checks,
            help="A check that is not made, such as bus.sync, or a group of checks, such as bus. May be given several "
            "times.",
        ),
        click.Option(["--all", "with_ok"], is_flag=True, help="Print also the checks that found nothing."),
        JSON_OPTION,
    ],
)
def doctor(
    settings: Settings,
    *,
    scheduler_config: Path | None,
    manifest: Path,
    monitors: tuple[str, ...],
    account_namespace: str,
    skipped: tuple[str, ...],
    with_ok: bool,
    as_json: bool,
) -> int:
    """Check an installation, and print what is wrong, why it matters, and what mends it.

    Nothing is changed. Checks the bus, policies, metrics, workloads, the scheduler, the extender, certificates,
    proxies, clocks, the descheduler and rights. Run it on a control plane node, where the files of the scheduler are.

    Exit codes: 0 nothing above a hint; 1 a warning, an error, or a check that could not be made; 2 doctor could not
    run.
    """
    chosen = Options(
        scheduler_config=scheduler_config,
        manifest=manifest,
        monitors=monitors,
        account_namespace=account_namespace,
        skipped=skipped,
        with_ok=with_ok,
        as_json=as_json,
    )
    try:
        return ask(
            settings,
            lambda bus, url: _examined(settings, chosen, bus, url),
            without_bus=lambda reason: _examined_without_bus(settings, chosen, reason),
        )
    except click.ClickException as error:
        raise CannotRunError(error.format_message()) from error


async def _examined(settings: Settings, options: Options, bus: Bus, url: str) -> int:
    reading = read_bus(bus, monitors=options.monitors, embedded=url == running_bus())
    return await _examine(settings, options, reading, bus, simulated=is_simulated(url))


async def _examined_without_bus(settings: Settings, options: Options, reason: str) -> int:
    async def read() -> BusRead:
        return no_bus(reason)

    return await _examine(settings, options, read())


async def _examine(
    settings: Settings,
    options: Options,
    reading: Awaitable[BusRead],
    bus: Bus | None = None,
    *,
    simulated: bool = False,
) -> int:
    findings = await examined(settings, options, await reading, bus, simulated=simulated)
    if options.as_json:
        print_json([msgspec.to_builtins(each) for each in findings])
    else:
        print_findings(findings, with_ok=options.with_ok)
    return exit_code(findings)


async def examined(
    settings: Settings, options: Options, read: BusRead, bus: Bus | None, *, simulated: bool = False
) -> list[Finding]:
    """The findings of all checks but the skipped ones. The bus of a `simulated` cluster has none to ask."""
    files = await asyncio.to_thread(read_scheduler, options.manifest, options.scheduler_config)
    known = None if files.url is None else url_of(files.url)
    own = settings.listen
    url = known or Url("http", "127.0.0.1" if own.host in EVERY_ADDRESS else own.host, own.port)
    # One after the other: else the decoding of large lists uses up the time limits of the others.
    extender = await read_extender(
        url, files.tls, settings.extender_health, is_guess=known is None, find=partial(_service, settings)
    )
    cluster = await _cluster(settings, options)
    changing: frozenset[PolicyKey] = frozenset()
    if bus is not None and isinstance(read.stored, Stored) and isinstance(cluster.policies, frozenset):
        changing = await settled(bus, read.stored, cluster.policies)
    facts = facts_of(
        bus=read,
        changing=changing,
        cluster=cluster,
        files=files,
        extender=extender,
        simulated=simulated,
        own_environment=os.environ,
        stale_after=settings.stale_after,
        now=time.time(),
    )
    return left(diagnose(facts), options.skipped)


async def _service(settings: Settings, name: ServiceName, port: int) -> str | NoService | Missing:
    """Where a Service can be reached from outside of the DNS of the cluster."""
    kubeconfig = settings.kubeconfig
    if kubeconfig is None:
        return Missing(f"{flag('kubeconfig')} is not given", f"give {flag('kubeconfig')} FILE")
    try:
        async with KubernetesClient.connect(
            kubeconfig if isinstance(kubeconfig, Path) else None, worker="doctor"
        ) as client:
            return await probed(address_of(client, name, port), mend=ADMINISTRATOR)
    except ConfigurationError as error:
        return Missing(f"{flag('kubeconfig')}: {error}", "give a kubeconfig that can be read")


async def _cluster(settings: Settings, options: Options) -> ClusterRead:
    kubeconfig = settings.kubeconfig
    if kubeconfig is None:
        unseen = Missing(f"{flag('kubeconfig')} is not given", f"give {flag('kubeconfig')} FILE")
        return unread(unseen, unseen, is_asked=False)
    file = kubeconfig if isinstance(kubeconfig, Path) else None
    try:
        async with KubernetesClient.connect(file, worker="doctor") as client:
            return await read_cluster(client, namespace=options.account_namespace)
    except ConfigurationError as error:
        invalid = Missing(f"{flag('kubeconfig')}: {error}", "give a kubeconfig that can be read")
        return unread(invalid, Missing("the API server is not known"), is_asked=True)


def facts_of(
    *,
    bus: BusRead,
    cluster: ClusterRead,
    files: SchedulerFiles,
    extender: ExtenderRead,
    changing: frozenset[PolicyKey],
    own_environment: Mapping[str, str],
    stale_after: float,
    now: float,
    simulated: bool = False,
) -> Facts:
    """All that was read, in the form of the checks. `now` is when the rest was read, by our clock.

    Of a `simulated` cluster there is nothing to check, as without a cluster, unless it is asked by its kubeconfig.
    """
    stored, pods = bus.stored, cluster.pods
    without_cluster = simulated or (isinstance(stored, Stored) and stored.cluster is False)
    from_directory = not cluster.is_asked and without_cluster
    environment = cluster.environment if isinstance(files.environment, Missing) else files.environment
    return Facts(
        bus=bus.bus,
        policies=policy_facts(
            bus,
            in_api=cluster.policies,
            has_api=not from_directory,
            changing=changing,
            strategy_fields=cluster.strategy_fields,
        ),
        metrics=metric_facts(bus, offered=cluster.offered, stale_after=stale_after, in_files=from_directory),
        processes=process_facts(bus, now),
        clocks=ClockFacts(
            api_server=cluster.clock,
            bus=bus.clock,
            extender=extender.clock,
            nodes=cluster.node_clocks,
            samples=stored if isinstance(stored, Missing) else stored.samples,
        ),
        extender=ExtenderFacts(
            url=extender.url,
            request=extender.request,
            health=extender.health,
            unready=extender.unready,
            asked=extender.asked,
            pods=pods if isinstance(pods, Missing) else frozenset((each.namespace, each.name) for each in pods.running),
            environment=environment,
            own_environment=own_environment,
            api_server=cluster.address,
            now=time_there(now, extender.clock),
        ),
        cluster=None if from_directory else _cluster_facts(cluster, files, stored),
    )


def _cluster_facts(cluster: ClusterRead, files: SchedulerFiles, stored: Stored | Missing) -> ClusterFacts:
    pods = cluster.pods
    return ClusterFacts(
        server=cluster.server,
        is_asked=cluster.is_asked,
        pods=pods if isinstance(pods, Missing) else pods.running,
        daemon_sets=cluster.daemon_sets,
        scheduler=SchedulerFacts(
            configuration=files.configuration,
            origin=files.origin,
            minor=files.minor or cluster.minor,
            control_planes=cluster.control_planes,
            nodes=cluster.nodes,
        ),
        descheduler=DeschedulerFacts(
            found=pods if isinstance(pods, Missing) else pods.deschedulers,
            nodes=cluster.nodes,
            policies=stored if isinstance(stored, Missing) else [each.policy for each in stored.policies],
            requested=not isinstance(pods, Missing) and requests_resource(pods.running),
        ),
        rights=cluster.rights,
    )
