"""`tas run`: runs each worker as its own process, or all workers in one process."""

import click

from cli.options import settings_command
from workers.names import ALL_WORKERS, run_by
from workers.registry import WORKERS, with_commands, workers_of_all
from workers.settings import EMBEDDED, Settings
from workers.spec import WorkerSpec


class _Group(click.Group):
    """Imports the folder of a worker only for its command, and for the list of all."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, in the order of the help."""
        return sorted([ALL_WORKERS, *self.commands, *(spec.name for spec in with_commands())])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command `cmd_name`; None if there is no such command."""
        if cmd_name == ALL_WORKERS:
            return run_all()
        spec = WORKERS.get(cmd_name)
        return super().get_command(ctx, cmd_name) if spec is None or spec.port is None else _command_of(spec)


@click.group("run", cls=_Group, no_args_is_help=True)
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


def run_all() -> click.Command:
    """The command `all`, which needs to know all workers."""

    @settings_command("all", settings_as="run all")
    def command(settings: Settings) -> int:
        """Run all workers in one process.

        The bus is embedded unless --bus is given.

        With --policies: materialize, windows, policies, evaluate, extender and events. With --kubeconfig: materialize,
        windows, watch, evaluate, extender, labels, marks, events and collect; with --node-resource also resources. With
        --source also collect, with --sinks also notify, with --bus-credentials also keeper.
        """
        from cli.wiring import run_workers

        return run_workers(settings, workers_of_all(settings), starts_bus=settings.bus == EMBEDDED)

    return command


run.add_command(bus)
