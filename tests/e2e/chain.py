"""The programs between a file on a node and an eviction: node_exporter, Prometheus, prometheus-adapter, descheduler."""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

from tests.certificates import Authority

from .adapter import NAMESPACE, api_service, service
from .api import ApiError, Object
from .cluster import Cluster
from .processes import Process, free_ports, running, until
from .prometheus import EVERY_SECOND, prometheus

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy" / "examples" / "health-metric"
METRICS = "/apis/custom.metrics.k8s.io"
VERSIONS = ("v1beta2", "v1beta1")

ADAPTER = "prometheus-adapter"
DESCHEDULER = "descheduler"

ADAPTER_RIGHTS = f"""
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {ADAPTER}}}
rules:
  - {{apiGroups: [""], resources: [nodes, namespaces, pods, services], verbs: [get, list, watch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {ADAPTER}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {ADAPTER}}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {ADAPTER}}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {ADAPTER}-delegates}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:auth-delegator}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {ADAPTER}}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {ADAPTER}, namespace: kube-system}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {ADAPTER}}}]
"""

DESCHEDULER_RIGHTS = f"""
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {DESCHEDULER}}}
rules:
  - {{apiGroups: [""], resources: [nodes, namespaces, pods, persistentvolumeclaims], verbs: [get, list, watch]}}
  - {{apiGroups: [""], resources: [pods/eviction], verbs: [create]}}
  - {{apiGroups: [scheduling.k8s.io], resources: [priorityclasses], verbs: [get, list, watch]}}
  - {{apiGroups: [policy], resources: [poddisruptionbudgets], verbs: [get, list, watch]}}
  - {{apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, update, patch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {DESCHEDULER}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {DESCHEDULER}}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {DESCHEDULER}}}]
"""


class Scraped(NamedTuple):
    """Running node_exporters, and a Prometheus that scrapes each of them once a second.

    Attributes:
        prometheus: The URL of Prometheus.
        receiver: The address to which Prometheus sends remote write, whether or not a receiver listens.
        exporters: The address of each node's node_exporter.
        folders: The folder of each node's textfile collector.
        kernels: The folder with the directories `proc` and `sys` of each node, for other collectors.
    """

    prometheus: str
    receiver: str
    exporters: Mapping[str, str]
    folders: Mapping[str, Path]
    kernels: Mapping[str, Path]


class Chain:
    """What `Scraped` has, and a prometheus-adapter behind the aggregator of the API server.

    Attributes:
        prometheus: The URL of Prometheus.
        receiver: The address to which Prometheus sends remote write, whether or not a receiver listens.
        adapter: The process of the adapter.
    """

    def __init__(self, cluster: Cluster, scraped: Scraped, adapter: Process) -> None:
        self._cluster = cluster
        self._scraped = scraped
        self.prometheus = scraped.prometheus
        self.receiver = scraped.receiver
        self.adapter = adapter

    def set_health(self, node: str, value: int) -> None:
        """Writes the file of a node, by the script of the example."""
        subprocess.run([EXAMPLE / "set-health.sh", str(value), self._scraped.folders[node]], check=True, timeout=60)

    def exported(self, node: str) -> str:
        """The value that the node's node_exporter serves."""
        text = _get(f"http://{self._scraped.exporters[node]}/metrics")
        found = re.search(r"^node_health_metric (\S+)$", text, re.MULTILINE)
        return found[1] if found else ""

    def scraped(self, node: str) -> str:
        """The node's value in Prometheus."""
        query = urlencode({"query": f'node_health_metric{{instance="{node}"}}'})
        result = json.loads(_get(f"{self.prometheus}/api/v1/query?{query}"))["data"]["result"]
        return str(result[0]["value"][1]) if result else ""

    def adapted(self, node: str) -> str:
        """The node's value in the custom metrics API."""
        return self.all_adapted(node).get(node, "")

    def all_adapted(self, nodes: str = "*") -> dict[str, str]:
        """The values of nodes in the custom metrics API, by node."""
        try:
            found = self._cluster.api.get(f"{METRICS}/v1beta1/nodes/{nodes}/health_metric")
        except ApiError as error:
            # Until the adapter has found the series, and the aggregator the adapter.
            if error.status == 404 or error.status >= 500:
                return {}
            raise
        return {item["describedObject"]["name"]: item["value"] for item in found["items"]}


@contextmanager
def descheduler(cluster: Cluster, policy: Path = EXAMPLE / "descheduler.yaml") -> Iterator[Process]:
    """Runs a descheduler with this policy, by default that of the example, once a second."""
    cluster.apply(DESCHEDULER_RIGHTS)
    (port,) = free_ports(1)
    flags = [
        f"--policy-config-file={policy}",
        f"--client-connection-kubeconfig={cluster.kubeconfig_for(DESCHEDULER)}",
        "--descheduling-interval=1s",
        *_secure(cluster.folder / "server.crt", cluster.folder / "server.key", port),
        "--v=4",  # logs why a pod fits a node or not
    ]
    with _started(cluster, DESCHEDULER, [cluster.programs[DESCHEDULER], *flags]) as process:
        yield process


def evictions(cluster: Cluster, since: int) -> set[str]:
    """The URIs of the evictions by the descheduler after a mark of the audit log that the API server accepted."""
    calls = cluster.audit.calls(since, user=DESCHEDULER)
    return {call.uri for call in calls if call.uri.endswith("/eviction") and call.status == 201}


@contextmanager
def scraped(
    cluster: Cluster,
    folder: Path,
    nodes: Iterable[str],
    *,
    collectors: Iterable[str] = (),
    prometheus_configuration: Mapping[str, object] = EVERY_SECOND,
) -> Iterator[Scraped]:
    """Starts one node_exporter for each node, which serves only files of the test, and a Prometheus.

    `collectors` are those of node_exporter beside the textfile collector.
    """
    with ExitStack() as stack:
        folders = {node: folder / node / "textfile" for node in nodes}
        kernels = {node: folder / node / "kernel" for node in folders}
        exporters: dict[str, str] = {}
        for node, port in zip(folders, free_ports(len(folders)), strict=True):
            for made in (folders[node], kernels[node] / "proc", kernels[node] / "sys"):
                made.mkdir(parents=True)
            exporters[node] = f"127.0.0.1:{port}"
            flags = ["--collector.disable-defaults", *(f"--collector.{each}" for each in ("textfile", *collectors))]
            flags += [f"--path.{each}fs={kernels[node] / each}" for each in ("proc", "sys")]
            flags += [f"--collector.textfile.directory={folders[node]}", f"--web.listen-address={exporters[node]}"]
            stack.enter_context(_started(cluster, f"node_exporter-{node}", [cluster.programs["node_exporter"], *flags]))
        (folder / "prometheus").mkdir()
        receiver = f"127.0.0.1:{free_ports(1)[0]}"
        targets = {address: {"instance": node} for node, address in exporters.items()}
        url, process = stack.enter_context(
            prometheus(
                cluster.programs["prometheus"],
                folder / "prometheus",
                targets,
                writes_to=f"http://{receiver}/api/v1/write",
                based_on=prometheus_configuration,
            )
        )
        cluster.processes.append(process)
        yield Scraped(url, receiver, exporters, folders, kernels)


@contextmanager
def chain(cluster: Cluster, folder: Path, nodes: Iterable[str]) -> Iterator[Chain]:
    """Starts the programs of `scraped` and an adapter, and waits until the API has all values.

    Every node is healthy.
    """
    with (
        scraped(cluster, folder, nodes) as sources,
        adapter(cluster, folder, sources.prometheus, adapter_rules()) as process,
    ):
        chain = Chain(cluster, sources, process)
        for node in sources.folders:
            chain.set_health(node, 0)
        healthy = dict.fromkeys(sources.folders, "0")
        until(lambda: chain.all_adapted() == healthy, "the custom metrics API has all values")
        yield chain


@contextmanager
def adapter(cluster: Cluster, folder: Path, url: str, configuration: str) -> Iterator[Process]:
    """Runs a prometheus-adapter with this configuration, and registers the adapter with the API server."""
    cluster.apply(ADAPTER_RIGHTS)
    authority = Authority(ADAPTER)
    pair = authority.server(ADAPTER, dns=(f"{ADAPTER}.{NAMESPACE}.svc",))
    certificate, key, config = folder / "adapter.crt", folder / "adapter.key", folder / "adapter.yaml"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    config.write_text(configuration)
    (port,) = free_ports(1)
    kubeconfig = cluster.kubeconfig_for(ADAPTER)
    flags = [
        f"--config={config}",
        f"--prometheus-url={url}",
        *(f"--{use}-kubeconfig={kubeconfig}" for use in ("lister", "authentication", "authorization")),
        *_secure(certificate, key, port),
        "--metrics-relist-interval=1s",
        "--metrics-max-age=10s",
    ]
    registrations: list[Object] = [service(ADAPTER, port)]
    for place, version in enumerate(VERSIONS):
        registrations.append(
            api_service(
                METRICS.rpartition("/")[2], version, 100 - place, service=ADAPTER, port=port, authority=authority
            )
        )
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": registrations})
    with _started(cluster, ADAPTER, [cluster.programs[ADAPTER], *flags]) as process:
        cluster.apply(manifest)
        try:
            yield process
        finally:
            cluster.kubectl("delete", "-f", "-", stdin=manifest)


def _get(url: str) -> str:
    with build_opener(ProxyHandler({})).open(url, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def adapter_rules() -> str:
    """The rule for the adapter in docs/how-to/sources.md."""
    page = (ROOT / "docs" / "how-to" / "sources.md").read_text()
    (indent, rules) = re.findall(r"```yaml\n( +)(rules:\n.*?) +```", page, re.DOTALL)[0]
    return "\n".join(line.removeprefix(indent) for line in rules.splitlines()) + "\n"


def _secure(certificate: Path, key: Path, port: int) -> list[str]:
    """The flags of a server of Kubernetes that listens on loopback."""
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
    ]


@contextmanager
def _started(cluster: Cluster, name: str, command: list[str | Path]) -> Iterator[Process]:
    with running(f"{name}-{len(cluster.processes)}", command, folder=cluster.folder) as process:
        cluster.processes.append(process)
        yield process
