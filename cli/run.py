"""`tas run`: runs each worker as its own process, or all workers in one process."""

import click

from cli.options import settings_command
from cli.workers.registry import WorkerSpec, run_by, with_commands, workers_of_all
from workers.settings import EMBEDDED, Settings


@click.group("run", no_args_is_help=True)
def run() -> None:
    """Run a worker, or all of them, until SIGTERM or Ctrl-C.

    Every worker serves /healthz, /readyz and /metrics at --health-listen. Exit codes: 0 after a normal stop, 1 if a
    worker failed, 2 if a worker cannot start.
    """


def _command_of(worker: WorkerSpec) -> click.Command:
    @settings_command(worker.name, settings_as=f"run {worker.name}", help=worker.help)
    def command(settings: Settings) -> int:
        from cli.wiring import run_workers

        return run_workers(settings, run_by(worker.name))

    return command


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
    from cli.wiring import run_workers

    return run_workers(settings, workers_of_all(settings), starts_bus=settings.bus == EMBEDDED)


for _command in (run_all, bus, *map(_command_of, with_commands())):
    run.add_command(_command)
