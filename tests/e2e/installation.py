"""A complete installation in which `tas doctor` finds nothing: bus, workers, certificates, scheduler, workloads.

On a control plane of kwok some parts are only objects: leases of kubelets, the pod of kube-scheduler as the kubelet of
a control plane node shows it, and a Deployment of a descheduler.
"""

import asyncio
import base64
import datetime as dt
import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import yaml

from tas.diagnosis.extender import CONFIGURE
from tests.integration.cli.tas import Tas
from tests.integration.servers import eventually
from tests.unit.tas.configuring.samples import KUBEADM

from .api import ApiError, Object
from .cluster import NODES, RESOURCE, Cluster
from .processes import Process, clean_environment, free_ports, running
from .product import Product, product
from .test_tls import USER, Files

POLICY = "doctored"
METRIC = "doctored_health"
ROOT = Path(__file__).parents[2]
RBAC = ROOT / "deploy" / "rbac"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
MIRROR = f"kube-scheduler-{NODES[0]}"
MANIFEST = KUBEADM.replace("v1.28.3", "v1.36.3")
"""The manifest of a scheduler that nobody has configured."""

RULES = [{"metricname": METRIC, "operator": "Equals", "target": 2}]

SERVICE = "tas-service.telemetry-aware-scheduling.svc.cluster.local"
"""The name of a Service in the certificate of the extender, which this machine does not know."""

UNREACHED = ("clocks.extender", "extender.ca", "extender.client", "proxy.extender")
"""What is not known of an extender that does not answer."""

RENEW_SECONDS = 2.0
"""A real kubelet renews its lease every 10 s."""

Findings = dict[str, list[dict[str, str]]]
"""The findings of each check that are not ok."""


def policy(name: str = POLICY, *strategies: str) -> Object:
    """A policy whose samples stay fresh while the tests run."""
    kinds = strategies or ("dontschedule", "deschedule")
    return {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": name},
        "spec": {"staleAfter": "30m", "strategies": {kind: {"rules": RULES} for kind in kinds}},
    }


def workload(name: str, kind: str = "Deployment", *, image: str = "pause", wired: bool = True) -> Object:
    """A workload; `wired`: with label, limit and affinity for the policy."""
    labels, pod = {"app": name}, {"containers": [{"name": "main", "image": image}]}
    if wired:
        labels["telemetry-policy"] = POLICY
        pod["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}  # type: ignore[assignment]
        pod |= affinity()
    spec = {"selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def affinity(*keys: str) -> Object:
    """A pod's required node affinity that excludes nodes with the labels of policies."""
    excluding = [{"key": key, "operator": "NotIn", "values": ["violating"]} for key in keys or (POLICY,)]
    required = {"nodeSelectorTerms": [{"matchExpressions": excluding}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def descheduler(version: str = "v0.36.0") -> Object:
    """A Deployment of a descheduler."""
    return workload("descheduler", image=f"registry.k8s.io/descheduler/descheduler:{version}", wired=False)


class NatsServer:
    """A nats-server of one's own, with a monitoring port."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._port, self._monitor = free_ports(2)
        self._folder = folder
        self.config = folder / "nats-server.conf"
        self.process: Process | None = None
        self.configure("always")

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def monitor(self) -> str:
        return f"http://127.0.0.1:{self._monitor}"

    def configure(self, sync_interval: str) -> None:
        self.config.write_text(
            f'listen: "127.0.0.1:{self._port}"\nhttp: "127.0.0.1:{self._monitor}"\n'
            f'jetstream {{ store_dir: "{self._folder}/jetstream", sync_interval: "{sync_interval}" }}\n'
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        binary = Path(sys.executable).parent / "nats-server"
        with running("nats-server", [binary, "-c", self.config], folder=self._cluster.folder) as self.process:
            self._cluster.processes.append(self.process)
            yield


class Installation:
    """What the tests break and mend."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, files: Files, nats: NatsServer) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.files = files
        self.nats = nats
        self.manifest = folder / "manifests" / "kube-scheduler.yaml"
        self.config = folder / "etc" / "scheduler-config.yaml"
        self.certificates = folder / "host" / "certs"
        self.product: Product
        self.ahead: dict[str, float] = {}
        """How far the clocks of kubelets are ahead, in seconds."""
        self._tas = Tas(folder / "home")

    @contextmanager
    def workers(self) -> Iterator[None]:
        """Runs all workers in one process, with certificates and with a source that waits for others."""
        (receiver,) = free_ports(1)
        folder = self.files.folder
        flags = [
            *("--cert", str(folder / "tls.crt"), "--key", str(folder / "tls.key")),
            *("--cacert", str(folder / "client-ca.crt"), "--client-names", USER),
            *("--source", f"remote-write=127.0.0.1:{receiver}"),
        ]
        kubeconfig, tls = self.cluster.kubeconfig, self.files.client()
        with product(
            self.cluster, self.folder / "tas", *flags, kubeconfig=kubeconfig, tls=tls, bus=self.nats.url
        ) as self.product:
            yield

    # What a person does

    async def doctor(self, *flags: str, **environment: str) -> Findings:
        """The findings that are not ok; runs the command as a process, and checks its exit code."""
        bus, health = self.nats.url, self.product.health.removeprefix("http://")
        arguments: dict[str, str] = {
            "--bus": bus,
            "--bus-monitor": self.nats.monitor,
            "--kubeconfig": str(self.cluster.kubeconfig),
            "--manifest": str(self.manifest),
            "--listen": self.product.url.partition("://")[2],
            "--extender-health": health,
            "--skip": "workers.expected",  # known only after ten minutes
        }
        arguments |= dict(zip(flags[::2], flags[1::2], strict=True))
        self._tas.long_limits = arguments["--bus"] == bus  # nobody waits for another
        words = [word for pair in arguments.items() for word in pair]
        # A library that the environment names is loaded only by a new process.
        run = self._tas.process if "LD_PRELOAD" in environment else self._tas
        async with self.kubelets():
            done = await run("doctor", "--json", *words, **environment)
        findings = done.json
        bad = [each for each in findings if each["severity"] != "ok"]
        assert done.code == int(any(each["severity"] != "hint" for each in bad)), done.err
        found: Findings = {}
        for each in bad:
            found.setdefault(each["check"], []).append(each)
        return found

    async def has(
        self,
        *checks: str,
        saying: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        flags: tuple[str, ...] = (),
        **environment: str,
    ) -> Findings:
        """The findings, once they are of exactly these checks.

        `saying`: texts of the first finding of a check, for which is waited, too: what is wrong becomes known step by
        step.
        """
        last: Findings = {}

        async def is_found() -> bool:
            nonlocal last
            last = await self.doctor(*flags, **environment)
            # A source that does not answer is also behind, sooner or later.
            also = {"workers.behind"} if "metrics.sources" in last else set[str]()
            return set(last) - also == set(checks) - also and all(
                text in last[check][0]["what"] for check, texts in saying.items() for text in texts
            )

        try:
            await eventually(is_found, every=1.0)  # each costs as much as a start of the product
        except AssertionError as error:
            raise AssertionError({check: [each["what"] for each in found] for check, found in last.items()}) from error
        return last

    async def sources(self) -> dict[str, str]:
        """The state of each source, as `tas get sources` shows it."""
        self._tas.long_limits = True
        done = await self._tas("get", "sources", "--json", "--bus", self.nats.url)
        assert done.code == 0, done.err
        return {each["source"]: each["state"] for each in done.json}

    def run(self, command: str, *, editor: str = "true", folder: Path | None = None, code: int = 0) -> str:
        """Runs a command in a shell as it is printed. `editor` is the editor of `kubectl edit`."""
        programs = self.folder / "bin"
        if not programs.exists():
            programs.mkdir()
            (programs / "tas").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cli "$@"\n')
            (programs / "tas").chmod(0o755)
            (programs / "kubectl").symlink_to(self.cluster.programs["kubectl"])
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command.replace("FILE", str(self.cluster.kubeconfig))],
            cwd=folder or self.folder,
            env=self.environment(KUBE_EDITOR=editor, PATH=f"{programs}:{os.environ['PATH']}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == code, (command, done.stdout)
        return done.stdout

    def environment(self, **extra: str) -> dict[str, str]:
        """That of a person at this cluster and this bus, as docs/reference/doctor.md has it."""
        kubeconfig = str(self.cluster.kubeconfig)
        known = {"KUBECONFIG": kubeconfig, "TAS_KUBECONFIG": kubeconfig, "TAS_BUS": self.nats.url}
        home = {"HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder)}
        return clean_environment(**known, **home, PYTHONPATH=str(ROOT), **extra)

    def kubeconfig_at(self, address: str, authority: bytes = b"") -> Path:
        """The kubeconfig of an administrator, with another address of the API server, and perhaps another CA."""
        kubeconfig = json.loads(self.cluster.kubeconfig.read_text())
        cluster = kubeconfig["clusters"][0]["cluster"]
        cluster["server"] = f"https://{address}"
        if authority:
            cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
        file = self.folder / "other.kubeconfig"
        file.write_text(json.dumps(kubeconfig))
        return file

    def change_entry(self, **fields: object) -> None:
        """Changes fields of the extender in the configuration of the scheduler; None removes a field."""
        document = yaml.safe_load(self.config.read_text())
        (entry,) = document["extenders"]
        entry = {key: value for key, value in (entry | fields).items() if value is not None}
        self.config.write_text(json.dumps(document | {"extenders": [entry]}))

    def where(self) -> str:
        """The flags of `tas configure` for the paths of this installation, which are not those of a machine."""
        return shlex.join(
            (
                *("-m", str(self.manifest), "-d", str(self.config.parent), "-cert-dir", str(self.certificates)),
                *("-b", "/dev/null", "--telemetry-url", self.product.url, "--http-timeout", "30s"),
            )
        )

    def configure(self, command: str) -> None:
        """Runs the `tas configure` of a finding in the folder of the certificates."""
        assert command.startswith("tas configure -cert client.crt"), command
        self.run(f"{command} {self.where()}", folder=self.files.folder)

    # Objects

    def create(self, manifest: Object, namespace: str | None = None) -> None:
        self.cluster.kubectl("create", "-n", namespace or self.namespace, "-f", "-", stdin=json.dumps(manifest))

    def delete(self, kind: str, name: str, namespace: str | None = None) -> None:
        self.cluster.kubectl("delete", kind, name, "-n", namespace or self.namespace, "--wait=false")

    def replace(self, manifest: Object) -> None:
        self.cluster.kubectl("replace", "-n", self.namespace, "-f", "-", stdin=json.dumps(manifest))

    def patch_policy(self, spec: Object) -> None:
        path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{self.namespace}/taspolicies/{POLICY}"
        self.cluster.api.patch(path, {"spec": spec})

    def template(self, name: str, template: Object) -> None:
        """Patches the pod template of a Deployment."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}"
        self.cluster.api.patch(path, {"spec": {"template": template}})

    def offer(self, *nodes: str, amount: str | None = "1000") -> None:
        """Lets nodes offer the resource; None: they no longer do."""
        for node in nodes:
            status = {"capacity": {RESOURCE: amount}, "allocatable": {RESOURCE: amount}}
            self.cluster.api.patch(f"/api/v1/nodes/{node}/status", {"status": status})

    @asynccontextmanager
    async def kubelets(self) -> AsyncIterator[None]:
        """Renews the lease of each node all the time, as its kubelet does: a command takes long on a busy machine."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(RENEW_SECONDS)
                await asyncio.to_thread(self._renew_leases)

        await asyncio.to_thread(self._renew_leases)
        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing

    def _renew_leases(self) -> None:
        for node in NODES:
            now = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self.ahead.get(node, 0.0))
            spec = {"holderIdentity": node, "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
            try:
                self.cluster.api.patch(f"{LEASES}/{node}", {"spec": spec})
            except ApiError:
                self.cluster.api.create(LEASES, {"metadata": {"name": node}, "spec": spec})

    def show_scheduler(self) -> None:
        """Creates the pod that a kubelet shows for the manifest of kube-scheduler."""
        pod = yaml.safe_load(self.manifest.read_text())
        pod["metadata"]["name"] = MIRROR
        pod["spec"]["nodeName"] = NODES[0]
        self.create(pod, "kube-system")

    def control_plane(self, node: str, *, is_one: bool = True) -> None:
        """Labels a node as one of the control plane."""
        value = "" if is_one else None
        self.cluster.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {CONTROL_PLANE: value}}})


@contextmanager
def installation(cluster: Cluster, namespace: str, folder: Path) -> Iterator[Installation]:
    """Runs everything, until nothing is wrong: see `Installation.has`."""
    for name in ("certificates", "manifests", "etc", "host", "tas"):
        (folder / name).mkdir()
    found = Installation(cluster, namespace, folder, Files(folder / "certificates"), NatsServer(cluster, folder))
    found.manifest.write_text(MANIFEST)
    for file in sorted(RBAC.glob("*.yaml")):
        cluster.apply(file)
    found.create(policy())
    found.create(descheduler())
    found.offer(*NODES)
    found.control_plane(NODES[0])
    try:
        with found.nats.running(), found.workers():
            found.product.publish({node: {METRIC: 0} for node in NODES})
            found.configure(CONFIGURE)
            found.show_scheduler()
            with cluster.scheduler(found.files.extender(found.product)):
                found.create(workload("web"))
                yield found
    finally:
        found.control_plane(NODES[0], is_one=False)
        cluster.remove_resource()
        for kind in ("daemonsets", "deployments"):
            cluster.kubectl("delete", kind, "--all", "-n", namespace)
        cluster.kubectl("delete", "pod", MIRROR, "-n", "kube-system", "--ignore-not-found", "--force")
        for node in NODES:
            with suppress(ApiError):
                cluster.api.delete(f"{LEASES}/{node}")
