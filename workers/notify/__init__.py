"""The worker that takes events to where people look."""

from typing import TYPE_CHECKING

from bus.buckets import ANNOUNCED, DEAD_LETTERS, EVENTS, POLICIES, SINK_CONSUMERS
from bus.rights.roles import Rights, lease
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.notify.configured import sinks_file
    from workers.notify.sinks.base import SinkMetrics
    from workers.notify.worker import Notify

    bus = await context.bus()
    metrics = SinkMetrics(context.registry)
    file = sinks_file(context.settings, bus, lambda: context.connect_kubernetes("notify"), metrics)
    return Notify(bus, await file.load(), metrics=metrics, changed=file.changed)


SPEC = WorkerSpec(
    name="notify",
    help="Take events to where people look: Kubernetes Events, Alertmanager, CloudEvents over HTTP, a chat.",
    port=9014,
    build=_build,
    rights=Rights(
        reads=(EVENTS, ANNOUNCED, POLICIES),
        writes=DEAD_LETTERS.subjects,
        durables=tuple((EVENTS, name) for name in SINK_CONSUMERS),
    )
    | lease("notify.*"),
    account="create patch: events.events.k8s.io",
    settings=("sinks", "cluster_name", "kubeconfig"),
    in_all=lambda settings: settings.sinks is not None,
)
