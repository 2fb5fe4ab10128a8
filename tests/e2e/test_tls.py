"""A real kube-scheduler with a certificate of `tas certs`, and an extender that requires this certificate."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import cli
from tests.certificates import Authority

from .api import Object
from .cluster import NODES, Cluster, extender
from .processes import until
from .product import Product, product

POLICY = "demo-policy"
STRATEGIES = {"scheduleonmetric": {"rules": [{"metricname": "room", "operator": "GreaterThan"}]}}
USER = "system:kube-scheduler"
ANOTHER = Authority("another").certificate


class Files:
    """The files of `tas certs init` in a folder, and the authorities that each side trusts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certs("init")
        self.authority = (folder / "ca.crt").read_bytes()
        self.trust(self.authority)
        (folder / "server-ca.crt").write_bytes(self.authority)

    def certs(self, command: str, *flags: str) -> None:
        done = CliRunner().invoke(cli, ["certs", command, str(self.folder), *flags])
        assert done.exit_code == 0, done.output

    def trust(self, *authorities: bytes) -> None:
        """Replaces atomically the authorities that the extender trusts for clients."""
        temporary = self.folder / "temporary"
        temporary.write_bytes(b"".join(authorities))
        temporary.rename(self.folder / "client-ca.crt")

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.folder / "server-ca.crt")
        context.load_cert_chain(self.folder / "client.crt", self.folder / "client.key")
        return context

    def extender(self, product: Product, *, verified: bool = True) -> Object:
        """The entry of the scheduler's configuration in docs/how-to/tls.md."""
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
    """The product with the flags of the original TAS, and a policy that scores node-3 highest."""
    folder = tmp_path / "tas"
    folder.mkdir()
    flags = [
        f"-cert={files.folder / 'tls.crt'}",
        f"-key={files.folder / 'tls.key'}",
        f"-cacert={files.folder / 'client-ca.crt'}",
        "-v=2",
        f"--client-names={USER}",
    ]
    with product(cluster, folder, *flags, tls=files.client()) as tas:
        tas.publish({name: {"room": room} for room, name in enumerate(NODES)})
        with tas.policy(namespace, POLICY, STRATEGIES):
            best = {"node-1": 8, "node-2": 9, "node-3": 10}
            until(lambda: tas.scores(namespace, POLICY, NODES) == best, "policy and room are applied")
            yield tas


def test_a_scheduler_with_a_valid_certificate_gets_answers(
    cluster: Cluster, namespace: str, tmp_path: Path, files: Files
) -> None:
    with serving(cluster, tmp_path, files, namespace) as tas, cluster.scheduler(files.extender(tas)):
        cluster.create_pod(namespace, "web", policy=POLICY)
        assert cluster.placed(namespace, "web") == "node-3"


def test_a_client_is_refused_after_its_authority_is_removed_and_accepted_after_it_is_added_again(
    cluster: Cluster, namespace: str, tmp_path: Path, files: Files
) -> None:
    with serving(cluster, tmp_path, files, namespace) as tas, cluster.scheduler(files.extender(tas)):
        cluster.create_pod(namespace, "before", policy=POLICY)
        cluster.placed(namespace, "before")  # over a connection that stays open

        files.trust(ANOTHER)
        until(lambda: not tas.answers(), "the extender refuses")
        # Until then the connection that is open may get one more answer.
        until(lambda: "its authority was removed" in tas.process.log.read_text(), "the idle connection is closed")
        cluster.create_pod(namespace, "meanwhile", policy=POLICY)
        cluster.rejected(namespace, "meanwhile", containing="filter")
        until(lambda: "client_refused" in tas.process.log.read_text(), "a new connection is refused")

        files.trust(ANOTHER, files.authority)
        assert cluster.placed(namespace, "meanwhile") == "node-3"


def test_a_certificate_with_another_name_is_refused(
    cluster: Cluster, namespace: str, tmp_path: Path, files: Files
) -> None:
    with serving(cluster, tmp_path, files, namespace) as tas:
        files.certs("renew", "--client-name", "system:node:node-1")
        with cluster.scheduler(files.extender(tas)):
            cluster.create_pod(namespace, "web", policy=POLICY)
            cluster.rejected(namespace, "web", containing="filter")
            until(lambda: "'system:node:node-1'" in tas.process.log.read_text(), "the extender logs the name")


def test_a_scheduler_starts_with_a_key_of_another_certificate_and_uses_the_right_one_once_it_is_there(
    cluster: Cluster, namespace: str, tmp_path: Path, files: Files
) -> None:
    key = files.folder / "client.key"
    right = key.read_bytes()
    with serving(cluster, tmp_path, files, namespace) as tas:
        key.write_bytes(Authority("another").client(USER).key)
        with cluster.scheduler(files.extender(tas)):
            cluster.create_pod(namespace, "web", policy=POLICY)
            assert "private key" in cluster.rejected(namespace, "web", containing="tls")
            key.write_bytes(right)
            assert cluster.placed(namespace, "web") == "node-3"


@pytest.mark.parametrize("verified", [True, False])
def test_facts_c10_without_a_ca_the_scheduler_accepts_any_server_certificate(
    cluster: Cluster, namespace: str, tmp_path: Path, files: Files, *, verified: bool
) -> None:
    with serving(cluster, tmp_path, files, namespace) as tas:
        (files.folder / "server-ca.crt").write_bytes(ANOTHER)
        with cluster.scheduler(files.extender(tas, verified=verified)):
            cluster.create_pod(namespace, "web", policy=POLICY)
            if verified:
                assert "x509" in cluster.rejected(namespace, "web", containing="x509")
            else:
                assert cluster.placed(namespace, "web") == "node-3"
