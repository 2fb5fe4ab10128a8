"""Builds the workers that answer kube-scheduler."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.context import Context
    from workers.http.limits import Limits
    from workers.runtime import Worker
    from workers.settings import Settings


def _limits(settings: "Settings") -> "Limits":
    from workers.http.limits import Limits

    return Limits(connections=settings.max_connections, idle_seconds=settings.idle_timeout)


async def extender(context: "Context") -> "Worker":
    """Answers by telemetry, and by installed extensions."""
    from workers.extender.worker import ExtenderWorker
    from workers.scheduler.extensions import installed
    from workers.settings import FailedNodes, UnknownPolicy

    settings = context.settings
    return ExtenderWorker(
        await context.bus(),
        await context.view(),
        listen=settings.listen,
        registry=context.registry,
        max_body_bytes=settings.max_body,
        unknown_policy_fails=settings.unknown_policy is UnknownPolicy.ERROR,
        unresolvable=settings.failed_nodes is FailedNodes.UNRESOLVABLE,
        debug_explain=settings.debug_explain,
        prometheus_query=settings.prometheus_query,
        share_listen=settings.share_listen,
        extensions=installed(),
        only=settings.only,
        extension_seconds=settings.extension_timeout,
        limits=_limits(settings),
        certificates=context.certificates(),
    )


async def gpu(context: "Context") -> "Worker":
    """Gives GPU cards to pods."""
    from workers.gpu.worker import GpuExtender

    settings = context.settings
    bus = await context.bus()
    return GpuExtender(
        bus,
        await context.connect_kubernetes("gpu"),
        listen=settings.listen,
        registry=context.registry,
        options=settings.card_options,
        by=settings.card_score,
        one_start=settings.one_start,
        max_body_bytes=settings.max_body,
        share_listen=settings.share_listen,
        limits=_limits(settings),
        certificates=context.certificates(),
    )


async def agents(context: "Context") -> "Worker":
    """Answers by agents, with numpy."""
    from cli.agents import agents_file, hooks_of
    from workers.agents.worker import AgentsWorker

    settings = context.settings
    bus = await context.bus()
    source = agents_file(settings, context.registry)
    return AgentsWorker(
        bus,
        await context.view(),
        source,
        await source.load(),
        hooks_of=hooks_of,
        listen=settings.listen,
        registry=context.registry,
        max_body_bytes=settings.max_body,
        share_listen=settings.share_listen,
        limits=_limits(settings),
        certificates=context.certificates(),
    )
