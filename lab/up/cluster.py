"""`python -m lab.up.cluster`: the simulated cluster of the Procfile, with the policies of a directory applied to it.

It has what `tas up` has besides the workers, which are processes of their own there: nodes that publish samples, pods,
and a scheduler that asks the extender.
"""

from contextlib import AsyncExitStack
from pathlib import Path

import click

from cli.options import settings_command
from cli.wiring import process, run_process
from lab.sandbox import Sandbox, extender_entry
from lab.up.applied import AppliedPolicies
from lab.up.simulated import SIMULATED_NODES, SimulatedNodes, SimulatedPods
from workers.following.followed_view import FollowedView
from workers.settings import Settings


@settings_command(
    "cluster",
    settings_as="up",
    params=(
        click.Option(["--kubeconfig-file"], type=click.Path(path_type=Path), required=True),
        click.Option(["--port"], type=int, required=True),
    ),
)
def cluster(settings: Settings, kubeconfig_file: Path, port: int) -> int:
    """Run the simulated cluster of the Procfile, and write its kubeconfig."""
    return run_process(settings, _cluster(settings, kubeconfig_file, port))


async def _cluster(settings: Settings, file: Path, port: int) -> int:
    assert settings.policies is not None, "checked by Settings"
    async with AsyncExitStack() as stack:
        nodes = dict.fromkeys((*SIMULATED_NODES, settings.node))
        sandbox = await stack.enter_async_context(Sandbox.start(nodes=nodes, port=port))
        parts, stop = await stack.enter_async_context(process(settings))
        followed = FollowedView(await parts.context.connect("live"), default_stale_after=settings.stale_after)
        simulated = SimulatedNodes(await parts.context.connect("simulated"), followed, SIMULATED_NODES)
        applied = AppliedPolicies(sandbox.cluster, settings.policies)
        for part in (applied, followed, simulated, SimulatedPods(sandbox.cluster)):
            parts.add(part)
        await stack.enter_async_context(sandbox.scheduler(extender_entry(f"http://{settings.listen.near}")))
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        sandbox.kubeconfig(unfinished).replace(file)  # a worker that waits for it never reads half of it
        return await parts.run(stop)


if __name__ == "__main__":
    cluster()
