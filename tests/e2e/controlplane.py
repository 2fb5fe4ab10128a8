"""A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager and kwok, ready within seconds.

All files are in one folder, and all processes are children of this one: nothing runs after the context. Each test
starts its own scheduler.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.client import HTTPException
from pathlib import Path

from tests.certificates import Authority, private_key, private_pem, public_pem

from .api import Api, ApiError
from .processes import Process, free_ports, running, until

# The controllers for Deployments, DaemonSets, evictions and service accounts. kwok simulates the nodes.
CONTROLLERS = (
    "serviceaccount-token-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "pod-garbage-collector-controller",
    "deployment-controller",
    "replicaset-controller",
    "daemonset-controller",
    "disruption-controller",
    "validatingadmissionpolicy-status-controller",  # checks the types of expressions
)
YEAR = timedelta(days=365)
FRONT_PROXY_USER = "front-proxy-client"
ADMIN_GROUP = "system:masters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to the API server, from its audit log."""

    user: str
    verb: str
    uri: str
    status: int
    resource: str
    """With its subresource and its group, as `nodes/status` or `events.events.k8s.io`; empty for other paths."""
    namespace: str


@dataclass(frozen=True, slots=True)
class AuditLog:
    """Every request that the API server answered. An entry is complete before the last byte of its answer is sent."""

    path: Path

    def mark(self) -> int:
        """The current end of the log, for `calls`."""
        return self.path.stat().st_size

    def calls(self, since: int = 0, *, user: str | None = None) -> list[Call]:
        """The requests after a mark, of all users or of one. A watch counts once, when it begins."""
        with self.path.open("rb") as log:
            log.seek(since)
            lines = log.read().splitlines(keepends=True)
        calls: dict[str, Call] = {}
        for line in lines:
            if not line.endswith(b"\n"):
                break  # still being written
            entry = json.loads(line)
            calls[entry["auditID"]] = Call(
                user=entry["user"]["username"],
                verb=entry["verb"],
                uri=entry["requestURI"],
                status=entry.get("responseStatus", {}).get("code", 0),
                resource=_resource(target := entry.get("objectRef", {})),
                namespace=target.get("namespace", ""),
            )
        return [call for call in calls.values() if user is None or call.user == user]


def _resource(target: Mapping[str, str]) -> str:
    with_subresource = "/".join(filter(None, (target.get("resource"), target.get("subresource"))))
    return ".".join(filter(None, (with_subresource, target.get("apiGroup"))))


@dataclass(slots=True, kw_only=True)
class ControlPlane:
    """A running control plane: its URL, its certificates and its processes."""

    folder: Path
    binaries: Mapping[str, Path]
    url: str
    authority: Authority
    admin: Path
    api: Api
    audit: AuditLog
    started: list[Process] = field(default_factory=list)
    _count: int = 0

    def kubeconfig(self, user: str, *groups: str) -> Path:
        """A kubeconfig of this user, who is in these groups and has the rights that RBAC grants."""
        pair = self.authority.client(user, groups=groups, lives=YEAR)  # else it expires soon, by alerts and tas doctor
        credentials = {
            "client-certificate-data": _base64(pair.certificate),
            "client-key-data": _base64(pair.key),
        }
        return self._kubeconfig(user, credentials)

    def account(self, namespace: str, name: str) -> Path:
        """A kubeconfig with a token of a ServiceAccount, as the API server gives it to the account's pods."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self.api.create(path, request)["status"]["token"]
        return self._kubeconfig(f"token-{namespace}-{name}", {"token": token})

    def _kubeconfig(self, user: str, credentials: Mapping[str, str]) -> Path:
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority-data": _base64(self.authority.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": user, "user": dict(credentials)}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
            "current-context": "e2e",
        }
        path.write_text(json.dumps(config, indent=1))
        path.chmod(0o600)
        return path

    def client(self, port: int) -> Api:
        """A client of an administrator for a server of this control plane at this port."""
        return _client(self.folder, port)

    def restart(self, name: str) -> None:
        """Kills a process of the control plane and starts it again; does not wait until it is ready."""
        (process,) = (each for each in self.started if each.name == name)
        process.restart()

    @contextmanager
    def scheduler(
        self, extenders: Sequence[Mapping[str, object]], configuration: Mapping[str, object] = {}, *, port: int = 0
    ) -> Iterator[Process]:
        """Runs a kube-scheduler with these extenders (entries of its configuration), and waits until it is ready.

        `configuration` has other fields of the configuration. The metrics are served at `port`; 0: any free port.
        """
        self._count += 1
        name = f"kube-scheduler-{self._count}"
        port = port or free_ports(1)[0]
        kubeconfig = self.kubeconfig("system:kube-scheduler")
        config = self.folder / f"{name}.json"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 5000},
                    "leaderElection": {"leaderElect": False},
                    "extenders": list(extenders),
                }
                | dict(configuration),
                indent=1,
            )
        )
        command: list[str | Path] = [
            self.binaries["kube-scheduler"],
            f"--config={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--v=2",
        ]
        with running(name, command, folder=self.folder) as process:
            self.started.append(process)
            server = self.client(port)
            until(lambda: _ready(server, process), f"{name} is ready")
            server.close()
            yield process


@contextmanager
def control_plane(folder: Path, binaries: Mapping[str, Path]) -> Iterator[ControlPlane]:
    """Starts a control plane in an empty folder, and waits until it accepts nodes and pods."""
    with ExitStack() as stack:
        authority = _write_certificates(folder)
        client_port, peer_port, port = free_ports(3)
        plane = ControlPlane(
            folder=folder,
            binaries=binaries,
            url=f"https://127.0.0.1:{port}",
            authority=authority,
            admin=folder / "admin.kubeconfig",
            api=_client(folder, port),
            audit=AuditLog(folder / "audit.log"),
        )
        stack.callback(plane.api.close)
        plane.kubeconfig("admin", ADMIN_GROUP)

        def start(name: str, *flags: str) -> Process:
            process = stack.enter_context(running(name, [binaries[name], *flags], folder=folder))
            plane.started.append(process)
            return process

        etcd_url = f"http://127.0.0.1:{client_port}"
        start("etcd", *_etcd_flags(folder, etcd_url, f"http://127.0.0.1:{peer_port}"))
        server = start("kube-apiserver", *_api_server_flags(folder, etcd_url, port))
        until(lambda: _ready(plane.api, server), "kube-apiserver is ready")
        start("kube-controller-manager", *_controller_manager_flags(folder, plane))
        start("kwok", *_kwok_flags(plane))
        yield plane


def _ready(server: Api, process: Process) -> bool:
    process.must_run()
    # It does not listen yet, or is not ready.
    with suppress(OSError, HTTPException, ApiError):
        server.get("/readyz")
        return True
    return False


def _client(folder: Path, port: int) -> Api:
    """A client of an administrator; every server here has a certificate of the same authority."""
    return Api(port, authority=folder / "ca.crt", certificate=folder / "admin.crt", key=folder / "admin.key")


def _write_certificates(folder: Path) -> Authority:
    authority, front_proxy = Authority("e2e"), Authority("e2e-front-proxy")
    server = authority.server("e2e", dns=("localhost", "kubernetes.default.svc"))
    admin = authority.client("admin", groups=(ADMIN_GROUP,), lives=YEAR)
    proxy = front_proxy.client(FRONT_PROXY_USER)
    accounts = private_key()
    files = {
        "ca.crt": authority.certificate,
        "front-proxy-ca.crt": front_proxy.certificate,
        "server.crt": server.certificate,
        "server.key": server.key,
        "admin.crt": admin.certificate,
        "admin.key": admin.key,
        "front-proxy.crt": proxy.certificate,
        "front-proxy.key": proxy.key,
        "accounts.pub": public_pem(accounts),
        "accounts.key": private_pem(accounts),
    }
    for name, content in files.items():
        path = folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)
    return authority


def _etcd_flags(folder: Path, client: str, peer: str) -> list[str]:
    return [
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",  # the data need not survive a crash
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=error",
    ]


def _api_server_flags(folder: Path, etcd: str, port: int) -> list[str]:
    policy = folder / "audit-policy.json"
    policy.write_text(
        json.dumps(
            {
                "apiVersion": "audit.k8s.io/v1",
                "kind": "Policy",
                "omitStages": ["RequestReceived"],
                "rules": [{"level": "Metadata"}],
            }
        )
    )
    return [
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={folder / 'server.crt'}",
        f"--tls-private-key-file={folder / 'server.key'}",
        f"--client-ca-file={folder / 'ca.crt'}",
        "--authorization-mode=RBAC",
        "--endpoint-reconciler-type=none",  # endpoints may not be on loopback
        "--service-cluster-ip-range=10.96.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'accounts.pub'}",
        f"--service-account-signing-key-file={folder / 'accounts.key'}",
        f"--requestheader-client-ca-file={folder / 'front-proxy-ca.crt'}",
        f"--requestheader-allowed-names={FRONT_PROXY_USER}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={folder / 'front-proxy.crt'}",
        f"--proxy-client-key-file={folder / 'front-proxy.key'}",
        "--disable-admission-plugins=TaintNodesByCondition",  # only the node lifecycle controller removes the taint
        f"--audit-policy-file={policy}",
        f"--audit-log-path={folder / 'audit.log'}",
        "--audit-log-mode=blocking",
    ]


def _controller_manager_flags(folder: Path, plane: ControlPlane) -> list[str]:
    return [
        # All controllers use this one user, whose built-in role has too few rights for all of them.
        f"--kubeconfig={plane.kubeconfig('system:kube-controller-manager', ADMIN_GROUP)}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--service-account-private-key-file={folder / 'accounts.key'}",
        f"--root-ca-file={folder / 'ca.crt'}",
        f"--controllers={','.join(CONTROLLERS)}",
        "--kube-api-qps=500",
        "--kube-api-burst=500",
    ]


def _kwok_flags(plane: ControlPlane) -> list[str]:
    return [
        f"--kubeconfig={plane.kubeconfig('kwok', ADMIN_GROUP)}",
        f"--config={Path(__file__).with_name('stages.yaml')}",
        "--manage-all-nodes=true",
        "--node-lease-duration-seconds=0",  # no controller here checks the leases of nodes
        "--node-ip=127.0.0.1",
        "--cidr=10.0.0.0/16",
    ]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
