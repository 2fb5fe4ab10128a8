"""All that `tas doctor` reads, and what is found in it."""

import asyncio
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bus.connection import Bus
from cli.doctor.bus_facts import BusRead, Stored, metric_facts, policy_facts, process_facts, settled
from cli.doctor.cluster_read import ClusterRead, unread
from cli.doctor.extender_probe import ExtenderRead, read_extender
from cli.doctor.monitors import monitored
from cli.doctor.options import Options
from cli.doctor.scheduler_files import SchedulerFiles, read_scheduler
from tas.diagnosis.clocks import ClockFacts, time_there
from tas.diagnosis.descheduler import DeschedulerFacts
from tas.diagnosis.diagnosis import ClusterFacts, Facts, diagnose
from tas.diagnosis.extender import ExtenderFacts
from tas.diagnosis.finding import Finding, Missing, left
from tas.diagnosis.scheduler import SchedulerFacts
from tas.diagnosis.service import NoService, ServiceName
from tas.diagnosis.url import Url, url_of
from tas.diagnosis.workloads import requests_resource
from tas.policy.policy import PolicyKey
from workers.settings import Settings, flag

NO_KUBECONFIG = Missing(f"{flag('kubeconfig')} is not given", f"give {flag('kubeconfig')} FILE")


async def examined(
    settings: Settings, options: Options, read: BusRead, bus: Bus | None, *, simulated: bool = False
) -> list[Finding]:
    """The findings of all checks but the skipped ones. The bus of a `simulated` cluster has none to ask."""
    read = await monitored(read, options.monitors)
    files = await asyncio.to_thread(read_scheduler, options.manifest, options.scheduler_config)
    known = None if files.url is None else url_of(files.url)
    own = settings.listen.near
    url = known or Url("http", own.host, own.port)
    # One after the other: else the decoding of large lists uses up the time limits of the others.
    extender = await read_extender(
        url, files.tls, settings.extender_health.near, is_guess=known is None, find=partial(_service, settings)
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
    if settings.kubeconfig is None:
        return NO_KUBECONFIG
    from cli.doctor.service import find_service  # here, as in `_cluster`

    return await find_service(_file(settings.kubeconfig), name, port)


async def _cluster(settings: Settings, options: Options) -> ClusterRead:
    if settings.kubeconfig is None:
        return unread(NO_KUBECONFIG, NO_KUBECONFIG, is_asked=False)
    from cli.doctor.cluster_facts import read_cluster  # here: the client of the API server is much to load

    return await read_cluster(_file(settings.kubeconfig), namespace=options.account_namespace)


def _file(kubeconfig: Path | str) -> Path | None:
    """The file of `--kubeconfig`; None: that of the pod."""
    return kubeconfig if isinstance(kubeconfig, Path) else None


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
