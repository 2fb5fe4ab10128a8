"""`tas run gpu` and `tas run inventory` with a real kube-scheduler, with exactly the rights of their accounts.

The scheduler's entry is that of the original, by HTTPS; only `ignorable` differs.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli import cli
from tests.integration.replicas import replica, tas
from tests.integration.servers import Server

from .cluster import NODES, Cluster
from .processes import until
from .test_rights import NAMESPACE, RBAC, account, is_allowed

ACCOUNT = "tas-gpu"
INVENTORY = "tas-inventory"
LABEL = "gpu.intel.com/gpu-numbers"
AMOUNTS = {"gpu.intel.com/i915": "4", "gpu.intel.com/millicores": "2000"}
USED = NODES[:2]
PODS = [f"p{number}" for number in range(6)]
"""Each needs 600 of a card's 1000 millicores: by the totals of the nodes all have room, by cards only four."""


SERVICE = "gas-service.default.svc.cluster.local"
"""The Service of the original, by whose name the scheduler reaches and verifies the extender."""


def entry(url: str, certificates: Path | None = None) -> dict[str, Any]:
    """The extender in the configuration of the scheduler, as a user of the original has it, but not ignorable.

    With `certificates` by HTTPS, as there. Here nobody resolves the name of the Service, so the scheduler gets an
    address, and the name to be verified.
    """
    found = {
        "urlPrefix": url.removesuffix("/scheduler"),
        "filterVerb": "scheduler/filter",
        "bindVerb": "scheduler/bind",
        "weight": 1,
        "nodeCacheCapable": True,
        "ignorable": False,
        "httpTimeout": "10s",
        "managedResources": [{"name": "gpu.intel.com/i915", "ignoredByScheduler": False}],
    }
    if certificates is None:
        return found
    files = {"caFile": "ca.crt", "certFile": "client.crt", "keyFile": "client.key"}
    tls = {field: str(certificates / file) for field, file in files.items()}
    return found | {"enableHTTPS": True, "tlsConfig": tls | {"serverName": SERVICE}}


def set_cards(cluster: Cluster, numbers: str | None, amounts: dict[str, str] | dict[str, None]) -> None:
    """What node feature discovery and the device plugin write."""
    for node in USED:
        cluster.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {LABEL: numbers}}})
        cluster.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": amounts, "allocatable": amounts}})


def place(cluster: Cluster, namespace: str, url: str, certificates: Path) -> None:
    requests = {"gpu.intel.com/i915": "1", "gpu.intel.com/millicores": "600"}
    container = {"name": "main", "image": "pause", "resources": {"limits": requests}}
    mark = cluster.audit.mark()
    with cluster.scheduler(entry(url, certificates)):
        for name in PODS:
            cluster.create_pod(namespace, name, containers=[container])
        cluster.create_pod(namespace, "plain", managed=False)

        def four_are_placed_and_two_are_refused() -> bool:
            placed = [name for name in PODS if cluster.node_of(namespace, name)]
            refused = [name for name in PODS if "Not enough GPU-resources" in cluster.why_pending(namespace, name)]
            return (len(placed), len(refused)) == (4, 2)

        until(four_are_placed_and_two_are_refused, "four pods have cards, and two are refused")
        cluster.placed(namespace, "plain")
    cards = set()
    for name in PODS:
        pod = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        if node := pod["spec"].get("nodeName"):
            cards.add((node, pod["metadata"]["annotations"]["gas-container-cards"]))
            assert pod["metadata"]["annotations"]["gas-ts"].isdigit()
            calls = until(partial(cluster.bindings, mark, namespace, name), "the audit log has the binding")
            assert [(call.user, call.status) for call in calls] == [
                (f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}", 201)
            ]
        else:
            assert "annotations" not in pod["metadata"]
    assert cards == {(node, card) for node in USED for card in ("card0", "card1")}
    plain = until(partial(cluster.bindings, mark, namespace, "plain"), "the audit log has the binding")
    assert [call.user for call in plain] == ["system:kube-scheduler"]


@pytest.mark.usefixtures("product_namespace")
async def test_facts_c30_a_real_scheduler_places_pods_by_their_cards(
    cluster: Cluster, namespace: str, server: Server, tmp_path: Path
) -> None:
    for name in ("gpu", "inventory"):
        cluster.apply(RBAC / f"{name}.yaml")
    until(partial(is_allowed, cluster, ACCOUNT, "create", "pods", "binding"), "the account may bind")
    assert is_allowed(cluster, ACCOUNT, "get", "pods", "")
    for verb, resource in (("list", "pods"), ("patch", "pods"), ("update", "pods"), ("get", "nodes")):
        assert not is_allowed(cluster, ACCOUNT, verb, resource, "")
    until(partial(is_allowed, cluster, INVENTORY, "list", "pods", ""), "the account may list pods")
    books = ("inventory", "--kubeconfig", str(account(cluster, INVENTORY)), "--new-bus-wait", "1s")
    # Flags of the original, beside the address: its port is open on all interfaces.
    original = ("--kubeConfig", str(account(cluster, ACCOUNT)), "--enableAllowlist", "-qps", "50", "-burst", "100")
    (certificates := tmp_path / "certs").mkdir()
    done = CliRunner().invoke(cli, ["certs", "init", str(certificates), "--server-name", SERVICE])
    assert done.exit_code == 0, done.output
    secured = (
        "-cert",
        f"{certificates}/tls.crt",
        "-key",
        f"{certificates}/tls.key",
        "-cacert",
        f"{certificates}/ca.crt",
    )
    binder = ("gpu", *original, *secured, "--client-names", "system:kube-scheduler", "--listen", "127.0.0.1:0")
    set_cards(cluster, "0.1", AMOUNTS)
    try:
        with (
            replica("inventory", tas(*books, bus=server.url), folder=tmp_path),
            replica("gpu", tas(*binder, bus=server.url), folder=tmp_path) as gpu,
        ):
            await gpu.ready()
            url = await gpu.address("extender")
            assert url.startswith("https://")
            await asyncio.to_thread(place, cluster, namespace, url, certificates)
    finally:
        set_cards(cluster, None, dict.fromkeys(AMOUNTS))
