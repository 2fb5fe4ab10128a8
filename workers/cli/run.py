"""`tas run`: the workers, each as a process of its own or all in one."""

import click

from workers.cli.options import settings_command
from workers.cli.settings import EMBEDDED, Settings
from workers.cli.wiring import all_workers, bus_url, process, run_process


@click.group("run", no_args_is_help=True)
def run() -> None:
    """Run a worker, or all of them, until SIGTERM or Ctrl-C.

    Every worker tells /healthz, /readyz and /metrics at --health-listen. Exit codes: 0 after an orderly stop, 1 when a
    worker failed, 2 when something keeps it from starting.
    """


async def _run(settings: Settings, *names: str) -> int:
    async with process(settings) as (parts, stop):
        url = bus_url(settings)
        await parts.build(url, names)
        return await parts.run(stop)


async def _run_all(settings: Settings) -> int:
    async with process(settings) as (parts, stop):
        url = await parts.start_bus() if settings.bus == EMBEDDED else bus_url(settings)
        await parts.build(url, all_workers(settings))
        return await parts.run(stop)


async def _run_bus(settings: Settings) -> int:
    async with process(settings) as (parts, stop):
        await parts.start_bus()
        return await parts.run(stop)


@settings_command("materialize", settings_as="run materialize")
def materialize(settings: Settings) -> int:
    """Merge samples into each node's newest, on the bus."""
    return run_process(settings, _run(settings, "materialize"))


@settings_command("policies", settings_as="run policies")
def policies(settings: Settings) -> int:
    """Follow a directory of TASPolicy files."""
    return run_process(settings, _run(settings, "policies"))


@settings_command("watch", settings_as="run watch")
def watch(settings: Settings) -> int:
    """Bring TASPolicies, nodes and the pods that name a policy from the Kubernetes API server onto the bus.

    Also write the status of TASPolicies, as one of all replicas.
    """
    return run_process(settings, _run(settings, "watch", "status"))


@settings_command("evaluate", settings_as="run evaluate")
def evaluate(settings: Settings) -> int:
    """Judge every node by every policy, and write what that means for its labels on the bus."""
    return run_process(settings, _run(settings, "evaluate"))


@settings_command("labels", settings_as="run labels")
def labels(settings: Settings) -> int:
    """Label nodes in the Kubernetes API server as their verdicts wish, and wake pods that wait for a node."""
    return run_process(settings, _run(settings, "labels"))


@settings_command("resources", settings_as="run resources")
def resources(settings: Settings) -> int:
    """Let each node of the cluster offer the resource `telemetry/scheduling`."""
    return run_process(settings, _run(settings, "resources"))


@settings_command("collect", settings_as="run collect")
def collect(settings: Settings) -> int:
    """Bring onto the bus what sources of telemetry say of the metrics that policies use."""
    return run_process(settings, _run(settings, "collect"))


@settings_command("extender", settings_as="run extender")
def extender(settings: Settings) -> int:
    """Answer kube-scheduler's filter, prioritize and preempt."""
    return run_process(settings, _run(settings, "extender"))


@settings_command("machine", settings_as="run machine")
def machine(settings: Settings) -> int:
    """Report this machine's own telemetry as a node."""
    return run_process(settings, _run(settings, "machine"))


@settings_command("bus", settings_as="run bus")
def bus(settings: Settings) -> int:
    """Run the embedded nats-server by itself."""
    return run_process(settings, _run_bus(settings))


@settings_command("all", settings_as="run all")
def run_all(settings: Settings) -> int:
    """Run all that is needed in one process, with a bus of its own unless --bus says where one is.

    With --policies: materialize, policies, evaluate and extender. With --kubeconfig: materialize, watch, evaluate,
    extender, labels and collect, and with --node-resource resources. With --source collect as well.
    """
    return run_process(settings, _run_all(settings))


for _command in (run_all, bus, collect, evaluate, extender, labels, machine, materialize, policies, resources, watch):
    run.add_command(_command)
