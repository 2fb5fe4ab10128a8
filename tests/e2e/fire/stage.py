"""A control plane, a bus, an adapter behind the aggregator, and two replicas of each worker with their own rights."""

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bus.buckets import VERDICTS
from bus.connection import Bus
from cli.crd import crd_manifest
from tests.e2e.adapter import AggregatedAdapter
from tests.e2e.cluster import Cluster
from tests.e2e.controlplane import ControlPlane
from tests.e2e.processes import free_ports
from tests.integration.replicas import Replica, tas
from tests.integration.servers import Server, eventually
from tests.kubernetes.admin import POLICIES, Admin, AdminError

from .size import Size

RBAC = Path(__file__).parents[3] / "deploy" / "rbac"
PRODUCT = "telemetry-aware-scheduling"
HISTORY_BYTES = 64 << 20
"""The limit of VERDICTS, which is full within minutes.

Until then its history grows, by default up to 512 MiB. When a process starts that reads the verdicts, nats-server has
the whole bucket in memory: so its live heap would grow for as long.
"""

NAMESPACE: dict[str, object] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PRODUCT}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What users and faults act upon.

    Attributes:
        watcher: A client with the rights of `watch`.
        port: That of both extenders.
        replicas: Two of each worker, side by side.
    """

    size: Size
    plane: ControlPlane
    server: Server
    admin: Admin
    watcher: Admin
    adapter: AggregatedAdapter
    port: int
    replicas: list[Replica]


@asynccontextmanager
async def stage(plane: ControlPlane, folder: Path, size: Size) -> AsyncIterator[Stage]:
    """The workers do not run yet, and the custom metrics API is not registered."""
    cluster = Cluster(plane)
    manifests = [crd_manifest(), json.dumps(NAMESPACE), *(file.read_text() for file in sorted(RBAC.glob("*.yaml")))]
    for manifest in manifests:
        cluster.apply(manifest)
    metrics = [{"op": "add", "path": "/rules/0/resources/-", "value": f"nodes/metric_{n}"} for n in range(size.metrics)]
    cluster.kubectl("patch", "clusterrole", "tas-collect", "--type=json", "--patch", json.dumps(metrics))
    async with AsyncExitStack() as stack:
        server = Server(folder / "store")
        with _traced_collections():
            await server.start()
        stack.push_async_callback(server.stop)
        await _limit_history(server.url)
        admin = await stack.enter_async_context(Admin.connect(plane.admin))
        watcher = await stack.enter_async_context(Admin.connect(_account(plane, "watch")))
        await eventually(lambda: _are_policies_served(admin))
        adapter = await stack.enter_async_context(AggregatedAdapter.start(admin, folder))
        (port,) = free_ports(1)
        replicas = [
            Replica(f"{worker}-{number}", command, folder=folder)
            for worker, command in _commands(plane, server.url, port, size).items()
            for number in (1, 2)
        ]
        for each in replicas:
            stack.callback(each.kill)
        yield Stage(
            size=size,
            plane=plane,
            server=server,
            admin=admin,
            watcher=watcher,
            adapter=adapter,
            port=port,
            replicas=replicas,
        )


async def _limit_history(url: str) -> None:
    """Creates all streams, VERDICTS with a lower limit, as an operator may."""
    async with Bus.connect(url, name="fire") as bus:
        await eventually(lambda: bus.connected and bus.problem is None)
        config = (await bus.api(f"STREAM.INFO.{VERDICTS.stream}"))["config"]
        await bus.api(f"STREAM.UPDATE.{VERDICTS.stream}", config | {"max_bytes": HISTORY_BYTES})


@contextmanager
def _traced_collections() -> Iterator[None]:
    """A Go process that starts in the body writes a line for each garbage collection."""
    before = os.environ.get("GODEBUG")
    os.environ["GODEBUG"] = "gctrace=1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["GODEBUG"]
        else:
            os.environ["GODEBUG"] = before


async def _are_policies_served(admin: Admin) -> bool:
    try:
        await admin.get(f"{POLICIES}/taspolicies")
    except AdminError as error:
        if error.status not in {404, 429}:  # 429 while the API server prepares the storage
            raise
        return False
    return True


BRAKE_OFF = (
    *("--breaker", "off", "--breaker-all", "off", "--flap-budget", "0"),
    *("--label-rate", "off", "--label-rate-all", "off"),
)
"""The users of the fire let most nodes violate a policy, and change them often."""


def _commands(plane: ControlPlane, url: str, port: int, size: Size) -> Mapping[str, list[str]]:
    """The command of each worker, with the rights of its account; `status` is a part of `watch`."""

    def account(name: str) -> tuple[str, str]:
        return "--kubeconfig", str(_account(plane, name))

    return {
        "materialize": tas("materialize", bus=url),
        "watch": tas("watch", *account("watch"), bus=url),
        "evaluate": tas("evaluate", bus=url),
        "labels": tas("labels", *account("labels"), *BRAKE_OFF, bus=url),
        "resources": tas("resources", *account("resources"), bus=url),
        "collect": tas("collect", *account("collect"), "--period", f"{size.poll_seconds:g}s", bus=url),
        "extender": tas("extender", "--listen", f"127.0.0.1:{port}", "--share-listen", "on", bus=url),
    }


def _account(plane: ControlPlane, worker: str) -> Path:
    """A kubeconfig with the rights of a worker's ServiceAccount."""
    user = f"system:serviceaccount:{PRODUCT}:tas-{worker}"
    return plane.kubeconfig(user, "system:serviceaccounts", "system:authenticated")
