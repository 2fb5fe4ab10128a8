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
from manifests import CHART, FILES, FOLDER, KUBERNETES, NAMESPACE, manifest, rendered

from tests.certificates import Authority
from tests.contract.test_alerts import rules
from tests.forks import ForkedProcess
from tests.installed import ROOT

from .api import Object
from .cluster import Cluster
from .nats import BINARY
from .processes import Process, free_ports, running, until
from .product import TAS, environment, is_ready

OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
"""The Go module with the CRDs of PodMonitor and PrometheusRule."""

VALUES = {"defaults": ()} | {
    name: (f"examples/{name}.yaml",) for name in ("small", "separate", "own-nats", "gpu", "everything")
}
NODES = ("chart-1", "chart-2")
HOSTS = {"defaults": "[::1]", "separate": "127.0.0.1"}
"""Forms that run here: two replicas of one process and one server with IPv6 alone; separate processes with IPv4."""


@pytest.fixture(scope="module")
def helm(programs: Mapping[str, Path]) -> Path:
    return programs["helm"]


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
        "autoscaling: {enabled: true}": "autoscaling.enabled = true: needs mode = separate",
        "{mode: separate, autoscaling: {enabled: true}, processes: {materialize: {enabled: false}}}": "needs process",
        "{mode: separate, autoscaling: {enabled: true}, processes: {materialize: {replicas: 0}}}": "= 0: must be",
        "bus: {tls: {serverSecret: some}}": "bus.tls.serverSecret: needs bus.tls.secret",
        "{mode: separate, autoscaling: {enabled: true, maxReplicas: 1}}": "from 1 to autoscaling.maxReplicas = 1",
        "autoscaling: {selector: {number: 1}}": "/autoscaling/selector/number",
        "nodeSelector: {disk: true}": "/nodeSelector/disk",
        "tolerations: [all]": "/tolerations/0",
        "prometheus: {rules: true, labels: {release: 1}}": "/prometheus/labels/release",
        "processes: {gpu: {enabled: true}}": "processes.gpu.enabled = true: needs processes.inventory.enabled",
        "{mode: separate, processes: {evictions: {enabled: true}}}": "processes.evictions.enabled = true: needs",
        "agents: {config: 'agents: {}'}": "agents.config: needs processes.agents.enabled",
        "{mode: separate, notify: {sinks: 'sinks: {}'}}": "notify.sinks: needs processes.notify.enabled",
        "{mode: separate, processes: {collect: {enabled: false}}, collect: {remoteWritePort: 9012}}": "need processes.",
        "collect: {secret: some}": "collect.secret: needs collect.config",
        "collect: {publish: table}": "/collect/publish",
        "collect: {sources: [promtheus]}": "/collect/sources/0",
        "collect: {sources: ['prometheus=localhost:9090']}": "/collect/sources/0",
        "collect: {sources: ['remote-write=:9012']}": "collect.remoteWritePort = 0: must be its port",
        "collect: {sources: ['a:remote-write=:9012'], remoteWritePort: 9013}": "9013: must be its port",
        "collect: {remoteWritePort: 9012}": "needs a source of the kind remote-write",
        "collect: {config: 'metrics: ['}": "collect.config: no YAML",
        "priorityClass: {value: 1000000001}": "/priorityClass/value",
        "{processes: {agents: {enabled: true}}, agents: {config: 'agents: ['}}": "agents.config: no YAML",
        "{processes: {notify: {enabled: true}}, notify: {sinks: '- x'}}": "notify.sinks: no YAML",
        "networkPolicy: {enabled: false, metrics: [{podSelector: {}}]}": "networkPolicy.metrics: needs",
        "networkPolicy: {remoteWrite: [{podSelector: {}}]}": "networkPolicy.remoteWrite: needs collect.remoteWritePort",
        "prometheus: {labels: {a: b}}": "prometheus.labels: needs",
        "prometheus: {rules: true, runbookUrl: docs/operations.md}": "/prometheus/runbookUrl",
        "{processes: {watch: {args: [--replicas=2]}}}": "processes.watch.args: nothing runs watch",
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


def test_a_name_that_looks_like_a_number_stays_text(helm: Path, tmp_path: Path) -> None:
    """A namespace, a Secret or a class may be called 123 or 1e3, and the API server takes no number as a name."""
    file = tmp_path / "values.yaml"
    names = {"bus": {"tls": {"secret": "12"}, "servers": {"storageClass": "1e3"}}, "priorityClassName": "13"}
    collect = {"collect": {"config": "metrics: {}", "secret": "14"}}
    monitoring = {"prometheus": {"podMonitor": True, "rules": True, "schedulerRules": True}, "dashboard": True}
    file.write_text(json.dumps(names | collect | monitoring))
    found = list(names_in(documents(rendered(helm, str(file), namespace="123", crds=False))))
    assert {"12", "13", "14", "1e3", "123", "tas-nats"} <= set(found)
    assert [each for each in found if not isinstance(each, str)] == []


def names_in(value: object) -> Iterator[object]:
    """What is a name, anywhere in a document."""
    names = ("namespace", "name", "secretName", "priorityClassName", "storageClassName", "app.kubernetes.io/instance")
    if isinstance(value, dict):
        for key, below in value.items():
            yield from (below,) if key in names and not isinstance(below, dict) else names_in(below)
    elif isinstance(value, list):
        for below in value:
            yield from names_in(below)


@pytest.mark.parametrize(
    ("resources", "memory"),
    [
        ("limits: {memory: 512Mi}", "483183820B"),
        ("limits: {memory: 1.5Gi}", "1449551462B"),
        ("limits: {memory: 2G}", "1800000000B"),
        ("limits: {memory: 1073741824}", "966367641B"),
        ("limits: {memory: 1e9}", "900000000B"),
        ("limits: {memory: null}", None),
        ("limits: null", None),
    ],
)
def test_the_memory_of_nats_in_go_follows_its_limit(
    helm: Path, tmp_path: Path, resources: str, memory: str | None
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(f"bus: {{servers: {{resources: {{{resources}}}}}}}\n")
    (server,) = documents(rendered(helm, str(file)), "StatefulSet")
    (container,) = server["spec"]["template"]["spec"]["containers"]
    found = {each["name"]: each.get("value") for each in container["env"]}
    assert found.get("GOMEMLIMIT") == memory
    file.write_text("bus: {servers: {resources: {limits: {memory: 1X}}}}\n")
    with pytest.raises(ValueError, match=r"bus\.servers\.resources\.limits\.memory = 1X: must be a quantity"):
        rendered(helm, str(file))


def test_a_secret_of_servers_that_the_chart_does_not_run_is_no_mistake(helm: Path, tmp_path: Path) -> None:
    """A bus of one's own may have TLS without a certificate of clients."""
    file = tmp_path / "values.yaml"
    file.write_text("bus: {url: 'tls://nats.example:4222', tls: {serverSecret: some}}")
    assert documents(rendered(helm, str(file)), "StatefulSet") == []


def test_inventory_may_run_elsewhere_with_a_bus_of_ones_own(helm: Path, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("{bus: {url: 'nats://nats.example:4222'}, processes: {gpu: {enabled: true}}}")
    names = {each["metadata"]["name"] for each in documents(rendered(helm, str(file)), "Deployment")}
    assert names == {"tas-all", "tas-gpu"}


def test_a_cluster_that_does_not_know_a_field_of_a_budget_does_not_get_it(helm: Path, tmp_path: Path) -> None:
    """The API server of 1.25 refuses the whole object (facts.md c77)."""
    file = tmp_path / "values.yaml"
    file.write_text("{mode: separate, admission: {enabled: false}, bus: {servers: {replicas: 3}}}")
    for version, expected in (("1.25.0", None), ("1.26.15", None), ("1.27.0-eks-1", "AlwaysAllow")):
        text = rendered(helm, str(file), kubernetes=version)
        budgets = {each["metadata"]["name"]: each["spec"] for each in documents(text, "PodDisruptionBudget")}
        assert "unhealthyPodEvictionPolicy" not in budgets.pop("tas-nats")
        found = list(budgets.values())
        assert len(found) > 5
        assert {each.get("unhealthyPodEvictionPolicy") for each in found} == {expected}, version
        assert {each["maxUnavailable"] for each in found} == {1}


def test_every_pod_has_the_secrets_of_the_registry(helm: Path, tmp_path: Path) -> None:
    """A mirror of nats in a registry of one's own demands them, too."""
    file = tmp_path / "values.yaml"
    file.write_text("image: {pullSecrets: [{name: registry}]}")
    pods = documents(rendered(helm, str(file)), "Deployment", "StatefulSet")
    found = {each["kind"]: each["spec"]["template"]["spec"].get("imagePullSecrets") for each in pods}
    assert found == {key: [{"name": "registry"}] for key in ("Deployment", "StatefulSet")}


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


def pods_of(text: str, namespace: str) -> list[Object]:
    """A pod of each replica, as the controllers would create it."""
    pods = []
    for each in documents(text, "Deployment", "StatefulSet"):
        template, name = each["spec"]["template"], each["metadata"]["name"]
        for number in range(each["spec"].get("replicas", 2)):  # without the number: an autoscaler sets it
            spec = dict(template["spec"])
            for claim in each["spec"].get("volumeClaimTemplates", ()):
                own = f"{claim['metadata']['name']}-{name}-{number}"
                volume = {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": own}}
                spec["volumes"] = [*spec["volumes"], volume]
            metadata = template["metadata"] | {"name": f"{name}-{number}", "namespace": namespace}
            pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return pods


def listed(objects: Sequence[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


@pytest.fixture
def restricted(cluster: Cluster, namespace: str) -> str:
    """A namespace that refuses each pod which breaks the Pod Security Standard *restricted*."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    return namespace


@pytest.mark.parametrize("name", VALUES)
def test_a_namespace_that_enforces_restricted_takes_each_pod(
    cluster: Cluster, restricted: str, helm: Path, name: str
) -> None:
    text = rendered(helm, *VALUES[name], namespace=restricted, crds=False)
    cluster.apply(listed(documents(text, "ServiceAccount", "PriorityClass")))
    pods = pods_of(text, restricted)
    answer = cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=listed(pods))
    assert len(answer.splitlines()) == len(pods) > 1
    assert "Warning" not in answer
    pods[-1]["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(RuntimeError, match="violates PodSecurity"):
        cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=listed(pods[-1:]))


def test_the_defaults_and_their_upgrade_fit_the_quota_that_the_page_names(
    cluster: Cluster, restricted: str, helm: Path
) -> None:
    """A Deployment of two replicas needs room for a third one, or an upgrade never ends."""
    page = (ROOT / "docs" / "start" / "install.md").read_text()
    (hard,) = re.findall(r"kubectl create quota tas .*--hard=(\S+)", page)
    quota = cluster.kubectl("create", "quota", "tas", "-n", restricted, f"--hard={hard}", "--dry-run=client", "-ojson")
    cluster.apply(quota)
    # No controller of quotas runs here: its first count is made by hand, and admission adds to it.
    limits = json.loads(quota)["spec"]["hard"]
    status = {"hard": limits, "used": dict.fromkeys(limits, "0")}
    cluster.api.patch(f"/api/v1/namespaces/{restricted}/resourcequotas/tas/status", {"status": status})
    text = rendered(helm, namespace=restricted, crds=False)
    cluster.apply(listed(documents(text, "ServiceAccount", "PriorityClass")))
    (servers,) = documents(text, "StatefulSet")
    (claim,) = servers["spec"]["volumeClaimTemplates"]
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"} | claim
    claim["metadata"] = {"name": "data-tas-nats-0", "namespace": restricted}
    pods = pods_of(text, restricted)
    (one,) = (each for each in pods if each["metadata"]["name"] == "tas-all-0")
    surge, more = (one | {"metadata": one["metadata"] | {"name": name}} for name in ("surge", "more"))
    cluster.kubectl("create", "-f", "-", stdin=listed([claim, *pods, surge]))
    with pytest.raises(RuntimeError, match="exceeded quota: tas"):
        cluster.kubectl("create", "-f", "-", stdin=listed([more]))
    cluster.kubectl("delete", "pvc", "data-tas-nats-0", "-n", restricted, "--wait=false")


class Upgrade:
    """What `helm upgrade` would make of what is in a namespace: Helm asks the API server for it."""

    def __init__(self, helm: Path, cluster: Cluster, namespace: str) -> None:
        self.command: list[str | Path] = [
            helm,
            "template",
            "tas",
            CHART,
            "--namespace",
            namespace,
            "--is-upgrade",
            "--dry-run=server",
        ]
        self.command += ["--kubeconfig", cluster.kubeconfig, "--kube-version", KUBERNETES]

    def replicas(self, *flags: str) -> dict[str, int]:
        """The number of pods by name of the Deployment or StatefulSet. Raises RuntimeError with the error of Helm."""
        done = subprocess.run([*self.command, *flags], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        found = documents(done.stdout, "Deployment", "StatefulSet")
        return {each["metadata"]["name"]: each["spec"]["replicas"] for each in found}


def test_an_upgrade_keeps_what_runs_unless_the_values_say_otherwise(
    cluster: Cluster, namespace: str, helm: Path
) -> None:
    """The default was separate processes and three servers. Another number of servers is refused (facts.md n78)."""
    upgrade = Upgrade(helm, cluster, namespace)
    small = {"tas-all": 2, "tas-nats": 1}
    assert upgrade.replicas() == small  # what is not there cannot be kept
    text = rendered(helm, "examples/separate.yaml", namespace=namespace, crds=False)
    there = [
        each | {"spec": each["spec"] | {"replicas": 0 if each["kind"] == "Deployment" else 3}}
        for each in documents(text, "Deployment", "StatefulSet")
        if each["metadata"]["name"] in ("telemetry-aware-scheduling", "tas-labels", "tas-nats")
    ]
    cluster.apply(listed(there))
    separate = {each["metadata"]["name"] for each in documents(text, "Deployment", "StatefulSet")}
    kept = upgrade.replicas()
    assert kept.keys() == separate
    assert kept["tas-nats"] == 3
    assert upgrade.replicas("--set=mode=all") == small | {"tas-nats": 3}
    with pytest.raises(
        RuntimeError, match=r"set bus\.servers\.replicas = 3, or begin anew \(docs/how-to/grow\.md#servers\)"
    ):
        upgrade.replicas("--set=bus.servers.replicas=1")
    cluster.kubectl("scale", "statefulset", "tas-nats", "--replicas=0", "-n", namespace)
    with pytest.raises(RuntimeError, match="tas-nats is scaled to 0, so nobody knows for how many servers its streams"):
        upgrade.replicas()
    assert upgrade.replicas("--set=bus.servers.replicas=3")["tas-nats"] == 3
    cluster.kubectl("delete", "statefulset", "tas-nats", "-n", namespace)
    assert upgrade.replicas("--set=bus.servers.replicas=1")["tas-nats"] == 1
    cluster.kubectl("delete", "deployment", "telemetry-aware-scheduling", "-n", namespace)
    assert upgrade.replicas().keys() == separate, "the extender may be switched off"
    cluster.kubectl("delete", "deployment", "tas-labels", "-n", namespace)
    assert upgrade.replicas() == small


@pytest.mark.parametrize("name", VALUES)
def test_the_notes_say_what_one_process_gives_up_and_what_is_paid_twice(helm: Path, tmp_path: Path, name: str) -> None:
    """Helm prints them after an installation only: here a template of a copy of the chart does."""
    shutil.copytree(CHART, tmp_path / "chart")
    shutil.copy(CHART / "templates" / "NOTES.txt", tmp_path / "chart" / "notes")
    shown = tmp_path / "chart" / "templates" / "shown.yaml"
    shown.write_text('notes: |{{ tpl (.Files.Get "notes") . | nindent 2 }}')
    command: list[str | Path] = [helm, "template", tmp_path / "chart", "--show-only", "templates/shown.yaml"]
    command += ["--kube-version", KUBERNETES, *(f"--values={CHART / each}" for each in VALUES[name])]

    def shown_with(*flags: str) -> str:
        done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return str(yaml.safe_load(done.stdout)["notes"])

    notes = shown_with()
    together = name not in ("separate", "everything")
    assert ("It has all rights: whoever controls it" in notes) is together
    assert ("\n- By each replica: its memory" in notes) is (together and name != "small")
    assert ("--user tas-all" in notes) is (together and name != "small")
    own = {each for each in ("gpu", "agents") if f" --server-name tas-{each}.default.svc" in notes}
    assert own == {"gpu": {"gpu"}, "everything": {"gpu", "agents"}}.get(name, set()), (
        "each Service shows the certificate"
    )
    assert "does not run inventory" not in notes
    if name == "own-nats":
        assert "does not run inventory, which gpu and evictions need" in shown_with("--set=processes.gpu.enabled=true")
    assert ("One server of NATS: " in notes) is (together and name != "own-nats")
    (configure,) = (line.strip() for line in notes.splitlines() if line.strip().startswith("tas configure "))
    given = "" if name == "small" else "-cert certs/client.crt -key certs/client.key --cacert certs/ca.crt "
    url = f"{'http' if name == 'small' else 'https'}://tas-service."
    assert configure.startswith(f"tas configure {given}--telemetry-url {url}")


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
    """What the chart renders, and where its files and addresses are on this machine: `host` is one of loopback."""

    def __init__(self, cluster: Cluster, text: str, folder: Path, host: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.host = host
        (servers,) = documents(text, "StatefulSet")
        self.servers = free_ports(servers["spec"]["replicas"])
        self.url = ",".join(f"tls://{host}:{port}" for port in self.servers)
        self.deployments = documents(text, "Deployment")
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
        """The servers with the configuration of the chart, on loopback."""
        routes = free_ports(len(self.servers))
        with ExitStack() as stack:
            for number, (port, route) in enumerate(zip(self.servers, routes, strict=True)):
                config = self.bus
                for before, after in {
                    '":4222"': f'"{self.host}:{port}"',
                    '":8222"': f'"{self.host}:{free_ports(1)[0]}"',
                    '":6222"': f'"{self.host}:{route}"',
                    '"/data"': f'"{self.folder}/data-{number}"',
                    '"auth/auth.conf"': '"operator/auth.conf"',
                    "/etc/nats-tls/": f"{self.folder}/server-tls/",
                }.items():
                    if len(routes) > 1:
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
        if len(routes) == 1:
            return {}
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
            ":9002": f"{self.host}:{health}",
            ":9001": f"{self.host}:{listen}",
        }
        variables = {each["name"]: each["value"] for each in container["env"]} | {"TAS_BUS": self.url}

        def placed(text: str) -> str:
            for before, after in places.items():
                text = text.replace(before, after)
            return text

        account = spec.get("serviceAccountName")
        if account:
            places["in-cluster"] = str(self.cluster.account(NAMESPACE, account))
        env = environment(self.folder) | {key: placed(value) for key, value in variables.items()}
        if account:
            env["TAS_KUBECONFIG"] = places["in-cluster"]
        command = ["-m", "cli", *map(placed, container["args"])]
        process = stack.enter_context(
            running(f"pod-{name}-{health}", command, folder=self.folder, env=env, kind=ForkedProcess)
        )
        return process, health, name


@pytest.mark.usefixtures("crd", "product_namespace")
@pytest.mark.parametrize("form", ["defaults", pytest.param("separate", marks=pytest.mark.nightly)])
def test_it_runs_on_a_closed_bus(cluster: Cluster, helm: Path, namespace: str, tmp_path: Path, form: str) -> None:
    """Each process with its own account, its own user of the bus, and the flags of its pod. All with TLS."""
    authority = Authority("of the bus")
    # The processes have another certificate than the servers, with which they could not be servers.
    pairs = {
        "server-tls": authority.server("tas-nats", ips=("127.0.0.1", "::1"), is_client=True),
        "bus-tls": authority.client("tas"),
    }
    for folder, pair in pairs.items():
        (tmp_path / folder).mkdir()
        for name, content in (("ca.crt", authority.certificate), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
            (tmp_path / folder / name).write_bytes(content)
    values = tmp_path / "values.yaml"
    values.write_text("bus: {tls: {secret: tas-bus-tls, serverSecret: tas-server-tls}}")
    text = rendered(helm, *VALUES[form], str(values), crds=False)
    mounted = {
        each["metadata"]["name"]: {
            one["secret"]["secretName"] for one in spec["volumes"] if one["name"].endswith("tls")
        }
        for each in documents(text, "Deployment", "StatefulSet")
        for spec in [each["spec"]["template"]["spec"]]
    }
    assert mounted.pop("tas-nats") == {"tas-server-tls"}
    assert all("tas-bus-tls" in each and "tas-server-tls" not in each for each in mounted.values())
    installed = Installed(cluster, text, tmp_path, HOSTS[form])
    cluster.create_nodes(*NODES)
    rights = documents(text, "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    cluster.apply("\n---\n".join(map(json.dumps, rights)))
    (tmp_path / "operator").mkdir(mode=0o700)
    installed.tas("bus", "init", tmp_path / "operator")
    installed.tas("certs", "init", tmp_path / "certs")
    with installed.nats(), ExitStack() as stack:
        replicas = [each for each in installed.deployments for _ in range(2 if form == "defaults" else 1)]
        started = [installed.start(stack, each) for each in replicas]
        separate = {"keeper", "extender", "watch", "collect", "labels", "resources"}
        assert {process for _, _, process in started} >= ({"all"} if form == "defaults" else separate)
        for process, health, which in started:
            until(partial(is_ready, process, health, HOSTS[form].strip("[]")), f"{which} is ready")
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
        if form == "separate":
            servers = [line for line in checked.splitlines() if line.startswith("server tas-nats-")]
            assert servers == [f"server tas-nats-{number}: ok" for number in range(3)]
    cluster.delete_nodes(*NODES)
    cluster.remove_resource()


def offered(cluster: Cluster) -> bool:
    nodes: Mapping[str, Any] = cluster.api.get(f"/api/v1/nodes/{NODES[1]}")
    return "telemetry/scheduling" in nodes["status"]["allocatable"]
