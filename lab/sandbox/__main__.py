"""`python -m lab.sandbox`: runs a simulated cluster until interrupted."""

import argparse
import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from lab.sandbox.server import Sandbox, extender_entry


async def serve(options: argparse.Namespace) -> None:
    """Starts the API server and the scheduler, and prints the URL."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as stack:
        nodes = [f"node-{number}" for number in range(1, options.nodes + 1)]
        sandbox = await stack.enter_async_context(Sandbox.start(nodes=nodes, port=options.port))
        entries = [extender_entry(options.extender)] if options.extender else []
        await stack.enter_async_context(sandbox.scheduler(*entries))
        if options.kubeconfig:
            sandbox.kubeconfig(options.kubeconfig)
        sys.stdout.write(f"{sandbox.url}\n")
        sys.stdout.flush()
        await stopped.wait()


def main() -> None:
    """Parses the options and serves."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.sandbox", description="A simulated cluster, in memory, on loopback."
    )
    parser.add_argument("--port", type=int, default=0, help="the port of the API server; a free port by default")
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes the cluster has: node-1, node-2, ...")
    parser.add_argument("--kubeconfig", type=Path, help="the kubeconfig file to write, for kubectl and other clients")
    parser.add_argument("--extender", metavar="URL", help="the extender of the scheduler, without a path")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
