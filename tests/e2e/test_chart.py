"""The chart: what Helm makes of it, whether a real API server accepts that, and whether it runs."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import CHART, FILES, FOLDER, NAMESPACE, manifest, rendered

from tests.certificates import Authority
from tests.contract.test_alerts import rules
from tests.forks import ForkedProcess

from .api import Object
from .cluster import Cluster
from .conftest import find_binaries
from .nats import BINARY
from .processes import Process, free_ports, running, until
from .product import TAS, environment, is_ready

OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
"""The Go module with the CRDs of PodMonitor and PrometheusRule."""

VALUES = {"defaults": (), "small": ("examples/small.yaml",), "everything": ("examples/everything.yaml",)}
NODES = ("chart-1", "chart-2")


@pytest.fixture(scope="module")
def helm() -> Path:
    found = find_binaries()
    assert found is not None, "tests with the real control plane are skipped without binaries"
    return found["helm"]


def documents(text: str, *kinds: str) -> list[Object]:
    found = [each for each in yaml.safe_load_all(text) if each is not None]
    return [each for each in found if not kinds or each["kind"] in kinds]


@pytest.fixture(scope="module")
def monitoring(cluster: Cluster) -> Iterator[None]:
    """The CRDs of the operator of Prometheus."""
    if shutil.which("go") is None:
        pytest.skip("no Go, which downloads the CRDs of the operator of Prometheus")
    command = ["go", "mod", "download", "-json", OPERATOR]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd="/")
    if done.returncode != 0:
        pytest.skip(f"Go cannot download {OPERATOR}: {done.stdout}{done.stderr}")
    folder = Path(json.loads(done.stdout)["Dir"]) / "example" / "prometheus-operator-crd"
    files = [folder / f"monitoring.coreos.com_{name}.yaml" for name in ("podmonitors", "prometheusrules")]
    for file in files:
        cluster.kubectl("apply", "--server-side", "-f", str(file))
    for name in ("podmonitors", "prometheusrules"):
        until(partial(is_served, cluster, f"/apis/monitoring.coreos.com/v1/{name}"), f"{name} are served")
    yield
    for file in files:
        cluster.kubectl("delete", "-f", str(file))


def is_served(cluster: Cluster, path: str) -> bool:
    return cluster.kubectl("get", "--raw", path, "--ignore-not-found") != "" if _known(cluster, path) else False


def _known(cluster: Cluster, path: str) -> bool:
    try:
        cluster.kubectl("get", "--raw", path)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_nothing_to_say(helm: Path, name: str) -> None:
    values = [argument for file in VALUES[name] for argument in ("--values", str(CHART / file))]
    done = subprocess.run(
        [helm, "lint", "--strict", "--kube-version", "1.36.3", CHART, *values],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_manifests_are_what_the_chart_renders(helm: Path) -> None:
    """If not: `python release/manifests.py HELM`."""
    assert {file.name for file in FOLDER.iterdir()} == FILES.keys()
    for name in FILES:
        assert (FOLDER / name).read_text() == manifest(helm, name), name


def test_a_wrong_value_is_an_error_that_names_it(helm: Path, tmp_path: Path) -> None:
    for values, words in {
        "bus: {servers: {replicas: 2}}": "/bus/servers/replicas",
        "mode: some": "/mode",
        "processes: {extender: {replicas: many}}": "/processes/extender/replicas",
        "processes: {extendr: {replicas: 1}}": "extendr",
        "colect: {}": "colect",
        "bus: {url: 'http://nats'}": "/bus/url",
        "bus: {servers: {storage: 900Mi}}": "/bus/servers/storage",
        "bus: {servers: {storage: 7Gi}}": "bus.servers.storage = 7Gi: must be at least 8Gi",
        "{mode: all, autoscaling: {enabled: true}}": "autoscaling.enabled = true: needs mode = separate",
        "agents: {config: 'agents: {}'}": "agents.config: needs processes.agents.enabled",
        "notify: {sinks: 'sinks: {}'}": "notify.sinks: needs processes.notify.enabled",
        "{processes: {collect: {enabled: false}}, collect: {remoteWritePort: 9012}}": "need processes.collect.enabled",
        "collect: {secret: some}": "collect.secret: needs collect.config",
        "collect: {publish: table}": "/collect/publish",
        "collect: {sources: [promtheus]}": "/collect/sources/0",
        "collect: {sources: ['prometheus=localhost:9090']}": "/collect/sources/0",
        "collect: {sources: ['remote-write=0.0.0.0:9012']}": "collect.remoteWritePort = 0: must be its port",
        "collect: {sources: ['a:remote-write=0.0.0.0:9012'], remoteWritePort: 9013}": "9013: must be its port",
        "collect: {remoteWritePort: 9012}": "needs a source of the kind remote-write",
        "collect: {config: 'metrics: ['}": "collect.config: no YAML",
        "{processes: {agents: {enabled: true}}, agents: {config: 'agents: ['}}": "agents.config: no YAML",
        "{processes: {notify: {enabled: true}}, notify: {sinks: '- x'}}": "notify.sinks: no YAML",
        "networkPolicy: {enabled: false, metrics: [{podSelector: {}}]}": "networkPolicy.metrics: needs",
        "networkPolicy: {remoteWrite: [{podSelector: {}}]}": "networkPolicy.remoteWrite: needs collect.remoteWritePort",
        "prometheus: {labels: {a: b}}": "prometheus.labels: needs",
        "prometheus: {rules: true, runbookUrl: docs/operations.md}": "/prometheus/runbookUrl",
        "{mode: all, processes: {watch: {args: [--replicas=2]}}}": "processes.watch.args: nothing runs watch",
    }.items():
        file = tmp_path / "values.yaml"
        file.write_text(values)
        with pytest.raises(ValueError, match=re.escape(words)):
            rendered(helm, str(file))


def test_the_monitoring_port_of_nats_is_open_for_whom_the_values_name(helm: Path, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    who = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    file.write_text(yaml.safe_dump({"networkPolicy": {"metrics": who}}))
    (policy,) = (
        each["spec"]
        for each in yaml.safe_load_all(rendered(helm, str(file)))
        if each and (each["kind"], each["metadata"]["name"]) == ("NetworkPolicy", "tas-nats")
    )
    assert policy["ingress"][-1] == {"ports": [{"port": 8222}], "from": who}


def test_admission_needs_a_cluster_that_has_it(helm: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"admission\.enabled = true: needs Kubernetes 1\.30"):
        rendered(helm, kubernetes="1.29.9")
    assert rendered(helm, kubernetes="1.30.0")
    file = tmp_path / "values.yaml"
    file.write_text("admission: {enabled: false}")
    assert rendered(helm, str(file), kubernetes="1.25.0")


@pytest.mark.usefixtures("crd", "monitoring")
@pytest.mark.parametrize("name", VALUES)
def test_a_real_api_server_accepts_every_object(
    cluster: Cluster, product_namespace: str, helm: Path, name: str
) -> None:
    text = rendered(helm, *VALUES[name], crds=False)
    answer = cluster.kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-", stdin=text)
    lines = answer.splitlines()
    assert len(lines) == len(documents(text)) > 15
    assert all("(server dry run)" in line for line in lines)
    assert product_namespace == NAMESPACE


def test_prometheus_names_the_job_as_the_alerts_expect(helm: Path) -> None:
    """The operator of Prometheus names a job after the PodMonitor, and then no alert about a lost target would fire."""
    (monitor,) = documents(rendered(helm, "examples/everything.yaml"), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (relabeling,) = endpoint["relabelings"]
    assert relabeling["targetLabel"] == "job"
    assert [each["alert"] for each in rules() if f'up{{job="{relabeling["replacement"]}"}}' in each["expr"]]


def test_the_link_of_each_alert_is_that_of_the_installation(helm: Path, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("prometheus: {rules: true, schedulerRules: true}")
    for text, base in (
        (rendered(helm, "examples/everything.yaml"), "https://wiki.example/tas/operations"),
        (rendered(helm, str(file)), None),
    ):
        found = [
            rule
            for each in documents(text, "PrometheusRule")
            for group in each["spec"]["groups"]
            for rule in group["rules"]
        ]
        links = [rule["annotations"].get("runbook_url") for rule in found]
        assert links == [base and f"{base}#{rule['alert']}" for rule in found], "a dead link helps nobody"
        assert {rule["alert"] for rule in found} == {rule["alert"] for rule in rules()}


def test_all_is_in_the_namespace_of_the_release(helm: Path) -> None:
    for each in documents(rendered(helm, "examples/everything.yaml", namespace="other", crds=False)):
        if "namespace" in each["metadata"]:
            assert each["metadata"]["namespace"] in ("other", "default")
        assert NAMESPACE not in json.dumps(each).replace(f"{NAMESPACE}-service-account", "").replace(
            f'"name": "{NAMESPACE}"', ""
        ), each["metadata"]["name"]


class Installed:
    """What the chart renders with its defaults, and where its files are on this machine."""

    def __init__(self, cluster: Cluster, text: str, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.servers = free_ports(3)
        self.url = ",".join(f"tls://127.0.0.1:{port}" for port in self.servers)
        self.deployments = documents(text, "Deployment")
        (servers,) = documents(text, "StatefulSet")
        (self.server,) = servers["spec"]["template"]["spec"]["containers"]
        (self.bus,) = (
            each["data"]["nats.conf"] for each in documents(text, "ConfigMap") if each["metadata"]["name"] == "tas-nats"
        )

    def tas(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            [*TAS, *map(str, arguments)], env=environment(self.folder), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def nats(self) -> Iterator[None]:
        """Three servers with the configuration of the chart, on loopback."""
        routes = free_ports(3)
        with ExitStack() as stack:
            for number, (port, route) in enumerate(zip(self.servers, routes, strict=True)):
                config = self.bus
                for before, after in {
                    '"0.0.0.0:4222"': f'"127.0.0.1:{port}"',
                    '"0.0.0.0:8222"': f'"127.0.0.1:{free_ports(1)[0]}"',
                    '"0.0.0.0:6222"': f'"127.0.0.1:{route}"',
                    '"/data"': f'"{self.folder}/data-{number}"',
                    '"auth/auth.conf"': '"operator/auth.conf"',
                    "/etc/nats-tls/": f"{self.folder}/server-tls/",
                }.items():
                    assert config.count(before) == (6 if "tls" in before else 1), before
                    config = config.replace(before, after)
                assert "sync_interval: always" in config
                file = self.folder / f"nats-{number}.conf"
                file.write_text(config)
                stack.enter_context(
                    running(
                        f"tas-nats-{number}",
                        [BINARY, "--config", file],
                        folder=self.folder,
                        env={**os.environ, "POD_NAME": f"tas-nats-{number}", **self.cluster_variables(routes)},
                    )
                )
            yield

    def cluster_variables(self, routes: Sequence[int]) -> dict[str, str]:
        """What the container of a server has in its environment, filled in as a kubelet does."""
        variables = {each["name"]: each for each in self.server["env"]}
        reference = variables["CLUSTER_PASSWORD"]["valueFrom"]["secretKeyRef"]
        assert reference == {"name": "tas-nats", "key": "cluster.password"}
        password = (self.folder / "operator" / reference["key"]).read_text().strip()
        addresses = variables["CLUSTER_ROUTES"]["value"].replace("$(CLUSTER_PASSWORD)", password)
        for number, port in enumerate(routes):
            name = f"tas-nats-{number}.tas-nats-servers.{NAMESPACE}.svc:6222"
            assert addresses.count(name) == 1
            addresses = addresses.replace(name, f"127.0.0.1:{port}")
        return {"CLUSTER_PASSWORD": password, "CLUSTER_ROUTES": addresses}

    def start(self, stack: ExitStack, deployment: Object) -> tuple[Process, int, str]:
        """The process of a pod: with its arguments and variables, and with the files of this machine."""
        spec = deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        name = container["args"][1]
        health, listen = free_ports(2)
        places = {
            "/etc/tas/tls/": f"{self.folder}/certs/",
            "/etc/tas/bus-tls/": f"{self.folder}/bus-tls/",
            "/etc/tas/bus/user.creds": f"{self.folder}/operator/users/tas-{name}.creds",
            "0.0.0.0:9002": f"127.0.0.1:{health}",
            "0.0.0.0:9001": f"127.0.0.1:{listen}",
        }
        variables = {each["name"]: each["value"] for each in container["env"]} | {"TAS_BUS": self.url}

        def placed(text: str) -> str:
            for before, after in places.items():
                text = text.replace(before, after)
            return text

        env = environment(self.folder) | {key: placed(value) for key, value in variables.items()}
        if account := spec.get("serviceAccountName"):
            env["TAS_KUBECONFIG"] = str(self.cluster.account(NAMESPACE, account))
        command = ["-m", "cli", *map(placed, container["args"])]
        process = stack.enter_context(running(f"pod-{name}", command, folder=self.folder, env=env, kind=ForkedProcess))
        return process, health, name


@pytest.mark.usefixtures("crd")
def test_the_defaults_run_on_a_closed_bus_of_three_servers(
    cluster: Cluster, product_namespace: str, helm: Path, namespace: str, tmp_path: Path
) -> None:
    """Each process with its own account, its own user of the bus, and the flags of its pod. All with TLS."""
    authority = Authority("of the bus")
    # The processes have another certificate than the servers, with which they could not be servers.
    pairs = {"server-tls": authority.server("tas-nats", is_client=True), "bus-tls": authority.client("tas")}
    for folder, pair in pairs.items():
        (tmp_path / folder).mkdir()
        for name, content in (("ca.crt", authority.certificate), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
            (tmp_path / folder / name).write_bytes(content)
    values = tmp_path / "values.yaml"
    values.write_text("bus: {tls: {secret: tas-bus-tls, serverSecret: tas-server-tls}}")
    text = rendered(helm, str(values), crds=False)
    mounted = {
        each["metadata"]["name"]: {
            one["secret"]["secretName"] for one in spec["volumes"] if one["name"].endswith("tls")
        }
        for each in documents(text, "Deployment", "StatefulSet")
        for spec in [each["spec"]["template"]["spec"]]
    }
    assert mounted.pop("tas-nats") == {"tas-server-tls"}
    assert all("tas-bus-tls" in each and "tas-server-tls" not in each for each in mounted.values())
    installed = Installed(cluster, text, tmp_path)
    cluster.create_nodes(*NODES)
    rights = documents(text, "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    cluster.apply("\n---\n".join(map(json.dumps, rights)))
    (tmp_path / "operator").mkdir(mode=0o700)
    installed.tas("bus", "init", tmp_path / "operator")
    installed.tas("certs", "init", tmp_path / "certs")
    with installed.nats(), ExitStack() as stack:
        started = [installed.start(stack, each) for each in installed.deployments]
        assert {name for _, _, name in started} >= {"keeper", "extender", "watch", "collect", "labels", "resources"}
        for process, health, name in started:
            until(partial(is_ready, process, health), f"{name} is ready")
        rule = {"metricname": "chart_metric", "operator": "Equals", "target": 1}
        body = {
            "apiVersion": "telemetry.intel.com/v1alpha1",
            "kind": "TASPolicy",
            "metadata": {"name": "chart-policy"},
            "spec": {"strategies": {"deschedule": {"rules": [rule]}}},
        }
        cluster.api.create(f"/apis/telemetry.intel.com/v1alpha1/namespaces/{namespace}/taspolicies", body)
        shown = {"credentials": "operator/users/tas-operator.creds", "cacert": "bus-tls/ca.crt"}
        shown |= {"cert": "bus-tls/tls.crt", "key": "bus-tls/tls.key"}
        flags = [argument for name, file in shown.items() for argument in (f"--bus-{name}", str(tmp_path / file))]
        person = ("--bus", installed.url, *flags)
        installed.tas("publish", NODES[0], "chart_metric=1", *person)
        until(lambda: cluster.labels_of_nodes()[NODES[0]].get("chart-policy") == "violating", "the node has its label")
        until(lambda: offered(cluster), "nodes offer telemetry/scheduling")
        checked = installed.tas("get", "nodes", "--json", *person)
        assert {each["node"] for each in json.loads(checked)} >= set(NODES)
        checked = installed.tas("bus", "check", tmp_path / "operator", "--bus", installed.url, *flags[2:])
        servers = [line for line in checked.splitlines() if line.startswith("server tas-nats-")]
        assert servers == [f"server tas-nats-{number}: ok" for number in range(3)]
    cluster.delete_nodes(*NODES)
    cluster.remove_resource()
    assert product_namespace == NAMESPACE


def offered(cluster: Cluster) -> bool:
    nodes: Mapping[str, Any] = cluster.api.get(f"/api/v1/nodes/{NODES[1]}")
    return "telemetry/scheduling" in nodes["status"]["allocatable"]
