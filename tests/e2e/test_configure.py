"""What `tas configure` writes, run by a real kube-scheduler."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner, Result

from cli import cli
from tests.certificates import Authority
from tests.unit.tas.configuring.samples import KUBEADM
from workers.process.manifests import read_yaml

from .cluster import Cluster
from .processes import free_ports, running, until
from .recorder import FILTER, Request, Response, passing, recording, scoring


def answer(request: Request) -> Response:
    """Only node-2 passes."""
    return passing(request, ["node-2"]) if request.verb == FILTER else scoring({})


def tas(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="tas", standalone_mode=False)


@contextmanager
def scheduler(cluster: Cluster, name: str, flags: list[str]) -> Iterator[int]:
    """Runs a kube-scheduler with these flags of a pod, and returns the port of its health."""
    (port,) = free_ports(1)
    command: list[str | Path] = [cluster.programs["kube-scheduler"], *flags, f"--secure-port={port}"]
    with running(name, [*command, "--bind-address=127.0.0.1"], folder=cluster.folder) as process:
        cluster.processes.append(process)
        yield port


def test_a_configured_manifest_makes_the_scheduler_ask_the_extender(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Both extenders, one with certificates: the scheduler accepts all fields. `verify` agrees."""
    kubeconfig = str(cluster.kubeconfig_for("system:kube-scheduler"))
    manifest = tmp_path / "manifests" / "kube-scheduler.yaml"
    manifest.parent.mkdir()
    text = KUBEADM.replace("/etc/kubernetes/own.conf", kubeconfig).replace("/etc/kubernetes/scheduler.conf", kubeconfig)
    manifest.write_text(text.replace("--leader-elect=true", "--leader-elect=false").replace("v1.28.3", "v1.36.3"))
    authority = Authority("gpu")
    client = authority.client("system:kube-scheduler")
    for name, content in (("c.crt", client.certificate), ("c.key", client.key), ("ca.crt", authority.certificate)):
        (tmp_path / name).write_bytes(content)
    files = {"-m": manifest, "-d": tmp_path, "-cert-dir": tmp_path / "certs", "-cert": tmp_path / "c.crt"}
    files |= {"-key": tmp_path / "c.key", "--cacert": tmp_path / "ca.crt"}
    flags = [word for name, path in files.items() for word in (name, str(path))]
    flags += ["--extender", "telemetry", "--extender", "gpu", "--gpu-url", "https://localhost:1"]
    flags += ["--http-timeout", "30s"]

    with recording(answer) as recorder:
        flags += ["--telemetry-url", recorder.url]
        done = tas("configure", *flags, "-b", "/dev/null")
        assert done.return_value == 0, done.exception
        (pod,) = read_yaml(manifest.read_bytes())
        assert isinstance(pod, dict)
        words = pod["spec"]["containers"][0]["command"]
        config = tmp_path / "scheduler-config.yaml"
        assert words[-1] == f"--config={config}"
        written = config.read_text()
        # As the pod mounts the folder.
        config.write_text(written.replace("/host/certs", str(tmp_path / "certs")))
        with scheduler(cluster, "kube-scheduler-configured", words[1:]) as port:
            cluster.create_pod(namespace, "web", policy="demo-policy")
            assert cluster.placed(namespace, "web") == "node-2"
            assert recorder.about("web", FILTER)
            config.write_text(written)
            verified = tas("configure", "verify", *flags, "--livez", f"127.0.0.1:{port}")
            assert (verified.return_value, verified.stdout) == (0, "as configured\n")


def test_a_second_scheduler_places_pods_with_the_rights_of_its_account(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """The API server accepts all objects, and the scheduler holds its own lease as its own account."""
    name = f"second-{namespace}"
    with recording(answer) as recorder:
        flags = ["--image", "r/kube-scheduler:v1.36.3", "--name", name, "--namespace", namespace]
        printed = tas(
            "configure", "deployment", *flags, "--telemetry-url", recorder.url, "--http-timeout", "30s"
        ).stdout
        try:
            cluster.apply(printed)
            (config_map,) = [
                each for each in read_yaml(printed.encode()) if isinstance(each, dict) and each["kind"] == "ConfigMap"
            ]
            (config,) = read_yaml(config_map["data"]["scheduler-config.yaml"].encode())
            assert isinstance(config, dict)
            # In a pod, the account is that of the pod.
            account = cluster.kubeconfig_for(f"system:serviceaccount:{namespace}:{name}", "system:serviceaccounts")
            file = tmp_path / "config.json"
            file.write_text(json.dumps(config | {"clientConnection": {"kubeconfig": str(account)}}))
            access = [f"--{kind}-kubeconfig={account}" for kind in ("authentication", "authorization")]
            with scheduler(cluster, f"kube-{name}", [f"--config={file}", *access]):
                cluster.create_pod(namespace, "web", policy="demo-policy", schedulerName=name)
                assert cluster.placed(namespace, "web") == "node-2"
                assert recorder.about("web", FILTER)
                lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
                assert until(lambda: cluster.api.get(lease)["spec"]["holderIdentity"], "a holder of the lease")
        finally:
            cluster.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=printed)
