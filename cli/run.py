"""`tas run`: runs each worker as its own process, or all workers in one process."""

import click

from cli.options import settings_command
from cli.settings import EMBEDDED, Settings


@click.group("run", no_args_is_help=True)
def run() -> None:
    """Run a worker, or all of them, until SIGTERM or Ctrl-C.

    Every worker serves /healthz, /readyz and /metrics at --health-listen. Exit codes: 0 after a normal stop, 1 if a
    worker failed, 2 if a worker cannot start.
    """


def _workers_command(name: str, workers: tuple[str, ...], help_text: str) -> click.Command:
    @settings_command(name, settings_as=f"run {name}", help=help_text)
    def command(settings: Settings) -> int:
        from cli.wiring import run_workers

        return run_workers(settings, workers)

    return command


WORKERS = {
    "materialize": "Store the newest samples of each node on the bus.",
    "policies": "Store the TASPolicies of a directory on the bus.",
    "evaluate": "Evaluate every policy for every node, and store the verdicts. They contain the desired labels.",
    "events": "Publish what happens as public events: violations, stale metrics, labels, policies, sources.",
    "labels": "Write the desired labels of verdicts to the nodes. Also wake pods that wait for a node.",
    "marks": "Write the taints and node conditions that policies want beside their label.",
    "resources": "Add the resource `telemetry/scheduling` to each node.",
    "notify": "Take events to where people look: Kubernetes Events, Alertmanager, CloudEvents over HTTP, a chat.",
    "collect": "Poll sources, and publish samples. Only metrics that policies use are polled.",
    "windows": "Compute statistics over time, such as `cpu:p95:5m`, from samples, for policies and agents.",
    "extender": "Answer kube-scheduler's filter, prioritize and preempt.",
    "inventory": "Store the GPU cards of nodes on the bus, and who has them.",
    "evictions": "Label the pods that are to leave a GPU card, so that a descheduler evicts them.",
    "gpu": "Give GPU cards to pods: answer kube-scheduler's filter, prioritize and bind.",
    "agents": "Answer kube-scheduler's filter and prioritize by agents, which use load, requests and history.",
    "keeper": "Create the streams and buckets of a closed bus, on which no other process may create one.",
    "machine": "Publish the telemetry of this machine as samples of a node.",
}
"""The commands that run the worker of their name, each with its help."""

WATCH = """Store the policies, nodes and pods of a cluster on the bus.

Of the pods, only those that name a policy are stored. One replica at a time also writes the status of TASPolicies.
"""


@settings_command("bus", settings_as="run bus")
def bus(settings: Settings) -> int:
    """Run only the embedded nats-server."""
    from cli.wiring import run_workers

    return run_workers(settings, (), starts_bus=True)


@settings_command("all", settings_as="run all")
def run_all(settings: Settings) -> int:
    """Run all workers in one process.

    The bus is embedded unless --bus is given.

    With --policies: materialize, windows, policies, evaluate, extender and events. With --kubeconfig: materialize,
    windows, watch, evaluate, extender, labels, marks, events and collect; with --node-resource also resources. With
    --source also collect, with --sinks also notify, with --bus-credentials also keeper.
    """
    from cli.wiring import all_workers, run_workers

    return run_workers(settings, all_workers(settings), starts_bus=settings.bus == EMBEDDED)


for _command in (
    run_all,
    bus,
    _workers_command("watch", ("watch", "status"), WATCH),
    *(_workers_command(name, (name,), text) for name, text in WORKERS.items()),
):
    run.add_command(_command)
