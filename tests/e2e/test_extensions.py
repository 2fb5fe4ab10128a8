"""Extensions with a real scheduler: the example of the documentation, and an extension that binds."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.installed import EXAMPLES, install, write_package

from .cluster import NODES, Cluster, extender
from .controlplane import ADMIN_GROUP
from .processes import until
from .product import CALL_SECONDS, Product, lone_extension, product

LABEL = "example.com/needs-mbps"
OWN = '''
    import os

    from kubernetes_asyncio import client, config


    class Fitting:
        """Passes three machines, and scores one of them highest."""

        best, machines = "machine2", ("machine1", "machine2", "machine3")

        def __init__(self, nodes):
            pass

        def filter(self, pod, candidates, now):
            return {node: "does not fit" for node in candidates if node not in self.machines}

        def score(self, pod, candidates, now):
            return {node: 10 if node == self.best else 1 for node in candidates}


    class Binder:
        """Binds pods, except those whose names begin with `no`."""

        def __init__(self, nodes):
            self._api = None

        async def __aenter__(self):
            await config.load_kube_config(os.environ["BINDER_KUBECONFIG"])
            self._api = client.ApiClient()

        async def __aexit__(self, *_):
            await self._api.close()

        async def bind(self, binding, now):
            if binding.name.startswith("no"):
                return "refused by name"
            body = {"metadata": {"name": binding.name}, "target": {"kind": "Node", "name": binding.node}}
            path = f"/api/v1/namespaces/{binding.namespace}/pods/{binding.name}/binding"
            await self._api.call_api(path, "POST", body=body, auth_settings=["BearerToken"], _preload_content=False)
            return None


    class FittingBinder(Binder, Fitting):
        best, machines = "machine3", ("machine2", "machine3", "machine5")

'''


@pytest.fixture(scope="module")
def tas(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder = Path(tmp_path_factory.mktemp("tas"))
    with product(cluster, folder, site=install(EXAMPLES / "bandwidth", folder / "installed")) as running:
        yield running


def fitting(tas: Product, mbps: int) -> set[str]:
    """The nodes on which the example lets a pod be placed that needs so much."""
    pod = {"metadata": {"name": "asked", "labels": {LABEL: str(mbps)}}}
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": NODES}).encode()
    request = Request(f"{tas.url}/bandwidth/filter", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=CALL_SECONDS) as response:
        return set(json.load(response)["NodeNames"] or ())


def test_the_example_and_the_telemetry_extender_together_place_a_pod(
    cluster: Cluster, namespace: str, tas: Product
) -> None:
    """One process serves both, each under its own path."""
    tas.publish({name: {"net_free_mbps": free} for name, free in zip(NODES, (40, 200, 100), strict=True)})
    rules = [{"metricname": "health_metric", "operator": "Equals", "target": 2}]
    example = extender(
        tas.url,
        names_only=True,
        filterVerb="bandwidth/filter",
        prioritizeVerb="bandwidth/prioritize",
        managedResources=[],
    )
    with (
        tas.policy(namespace, "demo", {"dontschedule": {"rules": rules}}),
        cluster.scheduler(extender(tas.url, names_only=True), example),
    ):
        until(lambda: fitting(tas, 30) == set(NODES) and fitting(tas, 150) == {"node-2"}, "it knows all values")
        cluster.create_pod(namespace, "best-fit", labels={LABEL: "50"})
        assert cluster.placed(namespace, "best-fit") == "node-3"
        cluster.create_pod(namespace, "only-fit", labels={LABEL: "150"})
        assert cluster.placed(namespace, "only-fit") == "node-2"
        cluster.create_pod(namespace, "too-much", labels={LABEL: "500"})
        cluster.rejected(namespace, "too-much", containing="3 Too little net_free_mbps.")

        tas.publish({"node-3": {"health_metric": 2}})
        until(lambda: tas.passes(namespace, "demo", NODES) == {"node-1", "node-2"}, "node-3 is rejected")
        cluster.create_pod(namespace, "both", policy="demo", labels={LABEL: "50"})
        assert cluster.placed(namespace, "both") == "node-2"


def test_facts_c30_an_extension_that_binds_replaces_the_binding_of_the_scheduler(
    cluster: Cluster, namespace: str, tas: Product, tmp_path: Path
) -> None:
    site = write_package(tmp_path / "site", OWN, binder="own:Binder")
    credentials = str(cluster.kubeconfig_for("binder", ADMIN_GROUP))
    with lone_extension(cluster, tas, "binder", site, BINDER_KUBECONFIG=credentials) as url:
        entry = {
            "urlPrefix": f"{url}/binder",
            "bindVerb": "bind",
            "nodeCacheCapable": True,
            "httpTimeout": "10s",
        }
        mark = cluster.audit.mark()
        with cluster.scheduler(extender(tas.url, names_only=True), entry):
            cluster.create_pod(namespace, "yes")
            assert cluster.placed(namespace, "yes") in NODES
            cluster.create_pod(namespace, "no")
            assert "refused by name" in cluster.rejected(namespace, "no", containing="refused by name")
            assert cluster.node_of(namespace, "no") is None
        bound = until(lambda: cluster.bindings(mark, namespace, "yes"), "the audit log has the binding")
        assert [(call.user, call.status) for call in bound] == [("binder", 201)]
        assert not cluster.bindings(mark, namespace, "no")

        cluster.delete_pods(namespace)
        with cluster.scheduler(entry | {"ignorable": True}):
            cluster.create_pod(namespace, "no", managed=False)
            assert cluster.placed(namespace, "no") in NODES


def test_facts_c32_the_best_machine_of_three_extensions_wins(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The extender test of Kubernetes, with our extensions: weights 3, 4 and 10. The second runs alone, since it binds.

    The third scores up to 10 instead of 50: a higher score of an extension is refused (facts.md c25).
    """
    extensions = {"first": "own:Fitting", "second": "own:FittingBinder", "third": "own:Fitting"}
    site = write_package(tmp_path / "site", OWN, **extensions)
    machines = [f"machine{number}" for number in range(1, 6)]
    credentials = str(cluster.kubeconfig_for("binder", ADMIN_GROUP))
    cluster.create_nodes(*machines)
    try:
        with (
            product(cluster, tmp_path, site=site) as tas,
            lone_extension(cluster, tas, "second", site, BINDER_KUBECONFIG=credentials) as url,
        ):
            first, second, third = (
                extender(
                    at,
                    names_only=name == "third",
                    weight=weight,
                    managedResources=[],
                    filterVerb=f"{name}/filter",
                    prioritizeVerb=f"{name}/prioritize",
                )
                for name, at, weight in (("first", tas.url, 3), ("second", url, 4), ("third", tas.url, 10))
            )
            mark = cluster.audit.mark()
            with cluster.scheduler(first, second | {"bindVerb": "second/bind"}, third):
                cluster.create_pod(namespace, "web", managed=False)
                assert cluster.placed(namespace, "web") == "machine2"
            bound = until(lambda: cluster.bindings(mark, namespace, "web"), "the audit log has the binding")
            assert [call.user for call in bound] == ["binder"]
    finally:
        cluster.delete_nodes(*machines)
