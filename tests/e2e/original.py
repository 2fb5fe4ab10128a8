"""The product as the original's deployment starts it: in a container like that of the original, with its account."""

import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from .cluster import Cluster
from .processes import Process, free_ports, running
from .product import TAS, environment

NAMESPACE = "telemetry-aware-scheduling"
ACCOUNT = "telemetry-aware-scheduling-service-account"

LINE = "--syncPeriod=2s --cert={tls}/server.crt --key={tls}/server.key --cacert={tls}/ca.crt --v=2"
"""The arguments in the original's deployment, with other files."""

CONTAINER = """
set -e
run=$(readlink -f /var/run)
mount -t tmpfs tmpfs "$run"
mkdir -p "$run/secrets/kubernetes.io"
cp -r "$1" "$run/secrets/kubernetes.io/serviceaccount"
shift
for folder in /tmp /var/tmp "$PWD" /; do
  ! mountpoint -q "$folder" || mount -o remount,bind,ro "$folder"
done
! touch "$PWD/written" /tmp/written 2>/dev/null
exec "$@"
"""
"""A container as far as the product can see: the files of an account, and a root that is read-only."""

UNSHARE = ("unshare", "--map-root-user", "--mount", "--propagation", "private")


@pytest.fixture(scope="module")
def containers() -> None:
    if subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this system lets no user make a mount namespace")


@pytest.fixture(scope="module")
def account(
    cluster: Cluster, containers: None, product_namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The files of the original's account, which has no rights yet."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": NAMESPACE}}
    cluster.apply(json.dumps(account))
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    token = cluster.api.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
    folder = tmp_path_factory.mktemp("account")
    (folder / "token").write_text(token["status"]["token"])
    (folder / "ca.crt").write_bytes((cluster.folder / "ca.crt").read_bytes())
    return folder


class Original:
    """The product, started as the original was."""

    def __init__(self, process: Process, *, tls: ssl.SSLContext, port: int, health: int) -> None:
        self._process = process
        self._tls = tls
        self._port = port
        self._health = health

    def is_ready(self) -> bool:
        self._process.must_run()
        connection = http.client.HTTPConnection("127.0.0.1", self._health, timeout=60)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def status_of_filter(self) -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=60, context=self._tls)
        try:
            body = json.dumps({"Pod": {"metadata": {"name": "p"}}, "Nodes": None, "NodeNames": ["node-1"]})
            connection.request("POST", "/scheduler/filter", body, {"Content-Type": "application/json"})
            return connection.getresponse().status
        finally:
            connection.close()

    def logged(self, event: str) -> list[dict[str, Any]]:
        complete, _, _ = self._process.log.read_text().rpartition("\n")  # the last line may still be written
        lines = map(json.loads, complete.splitlines())
        return [line for line in lines if line["event"] == event]


@contextmanager
def deployed(cluster: Cluster, account: Path) -> Iterator[Original]:
    port, health, bus = free_ports(3)
    api = urlsplit(cluster.url)
    # A test may listen only on loopback, at ports of its own.
    env = environment(cluster.folder) | {
        "XDG_RUNTIME_DIR": "",
        "KUBERNETES_SERVICE_HOST": str(api.hostname),
        "KUBERNETES_SERVICE_PORT": str(api.port),
        "TAS_LISTEN": f"127.0.0.1:{port}",
        "TAS_HEALTH_LISTEN": f"127.0.0.1:{health}",
        "TAS_EMBEDDED_PORT": str(bus),
    }
    line = LINE.format(tls=cluster.folder).split()
    command = [*UNSHARE, "sh", "-c", CONTAINER, "sh", str(account), *TAS, "run", "all", *line]
    tls = ssl.create_default_context(cafile=cluster.folder / "ca.crt")
    tls.load_cert_chain(cluster.folder / "admin.crt", cluster.folder / "admin.key")
    with running(f"tas-{len(cluster.processes)}", command, folder=cluster.folder, env=env) as process:
        cluster.processes.append(process)
        yield Original(process, tls=tls, port=port, health=health)
