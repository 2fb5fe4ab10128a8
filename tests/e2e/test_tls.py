"""A real kube-scheduler with a certificate of its own, and an extender that answers nobody else."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.certificates import Authority, Pair

from .api import Object
from .cluster import NODES, Cluster, extender
from .processes import until
from .product import Product, product

POLICY = "demo-policy"
STRATEGIES = {"scheduleonmetric": {"rules": [{"metricname": "room", "operator": "GreaterThan"}]}}
USER = "system:kube-scheduler"


class Files:
    """What both sides are given, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority("tas")
        self.write("server", self.authority.server("tas"))
        self.write("client", self.authority.client(USER))
        self.trust(self.authority)
        (folder / "server-ca.crt").write_bytes(self.authority.certificate)

    def write(self, name: str, pair: Pair) -> None:
        (self.folder / f"{name}.crt").write_bytes(pair.certificate)
        (self.folder / f"{name}.key").write_bytes(pair.key)

    def trust(self, *authorities: Authority) -> None:
        """Those that clients are to be signed by, from now on, put there as one piece."""
        unfinished = self.folder / "unfinished"
        unfinished.write_bytes(b"".join(authority.certificate for authority in authorities))
        unfinished.rename(self.folder / "client-ca.crt")

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.folder / "server-ca.crt")
        context.load_cert_chain(self.folder / "client.crt", self.folder / "client.key")
        return context

    def extender(self, product: Product, *, verified: bool = True) -> Object:
        """The entry of the scheduler's configuration as docs/tls.md has it."""
        tls = {"certFile": str(self.folder / "client.crt"), "keyFile": str(self.folder / "client.key")}
        if verified:
            tls["caFile"] = str(self.folder / "server-ca.crt")
        return extender(product.url, names_only=True, enableHTTPS=True, tlsConfig=tls)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    folder = tmp_path / "certificates"
    folder.mkdir()
    return Files(folder)


@contextmanager
def serving(cluster: Cluster, tmp_path: Path, files: Files, namespace: str) -> Iterator[Product]:
    """The product by the flags of the original, with one policy that likes node-3 best."""
    folder = tmp_path / "tas"
    folder.mkdir()
    flags = [
        f"-cert={files.folder / 'server.crt'}",
        f"-key={files.folder / 'server.key'}",
        f"-cacert={files.folder / 'client-ca.crt'}",
        "-v=2",
        f"--client-names={USER}",
    ]
    with product(cluster, folder, *flags, tls=files.client()) as tas:
        tas.publish({name: {"room": room} for room, name in enumerate(NODES)})
        with tas.policy(namespace, POLICY, STRATEGIES):
            best = {"node-1": 8, "node-2": 9, "node-3": 10}
            until(lambda: tas.scores(namespace, POLICY, NODES) == best, "policy and room have arrived")
            yield tas


def test_the_scheduler_asks_with_its_certificate_and_is_answered(
    cluster: Cluster, namespace: str, tmp_path: Path, files: Files
) -> None:
    with serving(cluster, tmp_path, files, namespace) as tas, cluster.scheduler(files.extender(tas)):
        cluster.create_pod(namespace, "web", policy=POLICY)
        assert cluster.placed(namespace, "web") == "node-3"


def test_an_authority_that_is_taken_out_ends_it_and_one_that_comes_back_begins_it_again(
    cluster: Cluster, namespace: str, tmp_path: Path, files: Files
) -> None:
    with serving(cluster, tmp_path, files, namespace) as tas, cluster.scheduler(files.extender(tas)):
        cluster.create_pod(namespace, "before", policy=POLICY)
        cluster.placed(namespace, "before")  # over a connection that stays open

        files.trust(Authority("another"))
        until(lambda: not tas.answers(), "the extender refuses")
        cluster.create_pod(namespace, "meanwhile", policy=POLICY)
        cluster.rejected(namespace, "meanwhile", containing="filter")
        until(lambda: "client_refused" in tas.process.log.read_text(), "it tried anew")

        files.trust(Authority("another"), files.authority)
        assert cluster.placed(namespace, "meanwhile") == "node-3"


def test_another_name_of_the_same_authority_is_refused(
    cluster: Cluster, namespace: str, tmp_path: Path, files: Files
) -> None:
    with serving(cluster, tmp_path, files, namespace) as tas:
        files.write("client", files.authority.client("system:node:node-1", groups=["system:nodes"]))
        with cluster.scheduler(files.extender(tas)):
            cluster.create_pod(namespace, "web", policy=POLICY)
            cluster.rejected(namespace, "web", containing="filter")
            until(lambda: "'system:node:node-1'" in tas.process.log.read_text(), "the extender logs the name")


@pytest.mark.parametrize("verified", [True, False])
def test_facts_c10_without_a_ca_the_scheduler_believes_any_server(
    cluster: Cluster, namespace: str, tmp_path: Path, files: Files, *, verified: bool
) -> None:
    with serving(cluster, tmp_path, files, namespace) as tas:
        (files.folder / "server-ca.crt").write_bytes(Authority("another").certificate)
        with cluster.scheduler(files.extender(tas, verified=verified)):
            cluster.create_pod(namespace, "web", policy=POLICY)
            if verified:
                assert "x509" in cluster.rejected(namespace, "web", containing="x509")
            else:
                assert cluster.placed(namespace, "web") == "node-3"
