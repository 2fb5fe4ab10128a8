"""What runs beside the workers of a process, so that others know which processes run; no worker depends on it."""

import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from bus.lease import process_identity
from tas.processes.process import Process
from workers.context import Context
from workers.names import workers_of
from workers.process.presence import Presence
from workers.process.version import product_version
from workers.runtime import Supervisor

ROSTER_WORKERS = frozenset({"watch", "policies"})
"""The workers beside which a process finds out which processes run: each installation has one of them."""


async def parts_beside(context: Context, supervisor: Supervisor) -> list[Coroutine[None, None, None]]:
    """The record of this process on the bus, and perhaps who reads those of all; nothing without workers."""
    own = workers_of(context.name)
    shown = [name for name in context.workers if name in own]
    if not shown:
        return []
    describe = _describer(context, supervisor, shown)
    parts = [Presence(await context.bus(), context.name, describe).run()]
    if ROSTER_WORKERS.intersection(shown):
        parts.append((await context.roster()).run())
    return parts


def _describer(context: Context, supervisor: Supervisor, workers: Sequence[str]) -> Callable[[], Process]:
    return partial(_process, context, supervisor, workers, time.time())


def _process(context: Context, supervisor: Supervisor, workers: Sequence[str], started: float) -> Process:
    unready = supervisor.unready()
    return Process(
        version=product_version(),
        name=process_identity(),
        started=started,
        workers={name: unready.get(name) or "" for name in workers},
        leases=tuple(context.leases),
        behind=supervisor.behind(),
        lag=context.lag,
        bus=context.bus_problem() or "",
        answers=supervisor.last_answers(),
        expires=context.expires,
        waiting_labels=supervisor.waiting_labels(),
        refused_samples=supervisor.refused_samples(),
        late_metrics=supervisor.late_metrics(),
        concerns=supervisor.concerns(),
        newest_pods=supervisor.newest_pods(),
        not_ready=supervisor.policies_not_ready(),
        time=time.time(),
    )
