"""What `tas configure` writes, run by a real kube-scheduler."""

import fcntl
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from cli import cli
from cli.configure.liveness import look
from tas.configuring.plan import Options, configuration, plan
from tests.certificates import Authority
from tests.unit.tas.configuring.hostile import EDITED
from tests.unit.tas.configuring.samples import KUBEADM, telemetry
from workers.process.manifests import read_yaml, read_yaml_tree

from .binaries import cache_folder
from .cluster import Cluster
from .processes import free_ports, running, until
from .recorder import FILTER, Request, Response, passing, recording, scoring


def answer(request: Request) -> Response:
    """Only node-2 passes."""
    return passing(request, ["node-2"]) if request.verb == FILTER else scoring({})


def tas(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="tas", standalone_mode=False)


@contextmanager
def scheduler(
    cluster: Cluster, name: str, flags: list[str], *, program: str = "kube-scheduler", port: int = 0
) -> Iterator[int]:
    """Runs a kube-scheduler with these flags of a pod, and returns the port of its health."""
    port = port or free_ports(1)[0]
    command: list[str | Path] = [cluster.programs[program], *flags, f"--secure-port={port}", "--bind-address=127.0.0.1"]
    with ExitStack() as stack:
        if program == "kube-scheduler-1.22":
            # It has a second port, 10251 for each of them, also those of other tests.
            fcntl.flock(stack.enter_context((cache_folder() / "port-10251").open("w")), fcntl.LOCK_EX)
        process = stack.enter_context(running(name, command, folder=cluster.folder))
        cluster.processes.append(process)
        yield port


def node_files(cluster: Cluster, folder: Path, version: str) -> Path:
    """A manifest of kubeadm for a scheduler of this cluster."""
    kubeconfig = str(cluster.kubeconfig_for("system:kube-scheduler"))
    manifest = folder / "manifests" / "kube-scheduler.yaml"
    manifest.parent.mkdir()
    text = KUBEADM.replace("/etc/kubernetes/own.conf", kubeconfig).replace("/etc/kubernetes/scheduler.conf", kubeconfig)
    manifest.write_text(text.replace("--leader-elect=true", "--leader-elect=false").replace("v1.28.3", version))
    return manifest


def certificate_flags(folder: Path) -> list[str]:
    """The flags with certificates of a client, written to the folder."""
    authority = Authority("gpu")
    client = authority.client("system:kube-scheduler")
    contents = {"-cert": client.certificate, "-key": client.key, "--cacert": authority.certificate}
    flags = ["-cert-dir", str(folder / "certs")]
    for flag, content in contents.items():
        path = folder / f"{flag.strip('-')}.pem"
        path.write_bytes(content)
        flags += [flag, str(path)]
    return flags


def command_of(manifest: Path) -> list[str]:
    """The command of the scheduler."""
    (pod,) = read_yaml(manifest.read_bytes())
    assert isinstance(pod, dict)
    command: list[str] = pod["spec"]["containers"][0]["command"]
    return command


def test_kubernetes_reads_each_odd_manifest_as_we_edited_it(cluster: Cluster, tmp_path: Path) -> None:
    """By kubectl, whose parser of YAML is that of the kubelet. But it splits a file into documents before."""
    texts = {name: text for name, text in EDITED.items() if not text.startswith("%")}
    chosen = Options(extenders=(telemetry(),), config="/d/cfg.yaml", certificates="/etc/certs/")
    ours = []
    for number, text in enumerate(texts.values()):
        made = plan(text, configuration(text, None, chosen, read_yaml_tree), {}, chosen, read_yaml_tree).manifest
        ours.append(read_yaml_tree(made).value["spec"])  # type: ignore[index]
        (tmp_path / f"{number:03}.yaml").write_text(made, newline="")
    each_spec = '-ojsonpath={.spec}{"\\n"}'
    written = cluster.kubectl("create", "--dry-run=client", "--validate=false", each_spec, "-f", str(tmp_path))
    theirs = [json.loads(line) for line in written.splitlines()]
    assert dict(zip(texts, theirs, strict=True)) == dict(zip(texts, ours, strict=True))


def test_a_configured_manifest_makes_the_scheduler_ask_the_extender(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Both extenders, one with certificates: the scheduler accepts all fields. `verify` agrees."""
    manifest = node_files(cluster, tmp_path, "v1.36.3")
    flags = ["-m", str(manifest), "-d", str(tmp_path), *certificate_flags(tmp_path)]
    flags += ["--extender", "telemetry", "--extender", "gpu", "--gpu-url", "https://localhost:1"]
    flags += ["--http-timeout", "30s"]

    with recording(answer) as recorder:
        flags += ["--telemetry-url", recorder.url]
        done = tas("configure", *flags, "-b", "/dev/null")
        assert done.return_value == 0, done.exception
        words = command_of(manifest)
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
            # The scheduler has started before, and does not look again.
            read_once = [config, tmp_path / "certs" / "ca.crt"]
            for path in (*read_once, tmp_path / "certs" / "client.crt", tmp_path / "certs" / "client.key"):
                os.utime(path, (time.time() + 60,) * 2)
            found = tas("configure", "verify", *flags).stdout.splitlines()
            assert [line.partition(":")[0] for line in found if "is newer than" in line] == [
                str(path) for path in read_once
            ]
            for path in read_once:
                os.utime(path, (0, 0))

            def is_verified() -> bool:
                """The scheduler is alive and the extender for telemetry is there; nobody answers for GPUs.

                A busy scheduler may not answer in time, which is another difference.
                """
                verified = tas("configure", "verify", *flags, "--livez", f"127.0.0.1:{port}")
                assert verified.return_value == 3
                differences = verified.stdout.splitlines()
                unreached = "the scheduler does not reach https://localhost:1/scheduler: "
                return len(differences) == 1 and differences[0].startswith(unreached)

            until(is_verified, "only the extender for GPUs is not reached")
            verified = tas("configure", "verify", *flags, "--files-only")
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


class Older(NamedTuple):
    """A scheduler of an older minor version, and the form that it is given; None: the one of `tas configure`."""

    program: str
    image: str
    form: str | None
    flags: tuple[str, ...] = ()


# Kubernetes 1.27 removed storage.k8s.io/v1beta1 from the API server; a scheduler waits for all that it watches.
NO_STORAGE_CAPACITY = "--feature-gates=CSIStorageCapacity=false"
OLDER = [
    Older("kube-scheduler-1.27", "v1.27.4", None),
    Older("kube-scheduler-1.27", "v1.27.4", "v1beta3"),
    Older("kube-scheduler-1.27", "v1.27.4", "v1beta2"),
    Older("kube-scheduler-1.22", "v1.22.17", None, (NO_STORAGE_CAPACITY,)),
    Older("kube-scheduler-1.22", "v1.22.17", "v1beta1", (NO_STORAGE_CAPACITY,)),
]


@pytest.mark.parametrize("older", OLDER, ids=lambda older: f"{older.image}-{older.form}")
def test_an_older_scheduler_reads_its_form(cluster: Cluster, namespace: str, tmp_path: Path, older: Older) -> None:
    manifest = node_files(cluster, tmp_path, older.image)
    flags = ["-m", str(manifest), "-d", str(tmp_path), "-b", "/dev/null", "--http-timeout", "30s"]
    if older.form is not None:
        template = tmp_path / "template.yaml"
        template.write_text(f"apiVersion: kubescheduler.config.k8s.io/{older.form}\nkind: KubeSchedulerConfiguration\n")
        flags += ["-f", str(template), "--extender", "telemetry"]
    with recording(answer) as recorder:
        done = tas("configure", *flags, "--telemetry-url", recorder.url)
        assert done.return_value == 0, done.exception
        words = command_of(manifest)
        if older.form is not None:
            (config,) = read_yaml((tmp_path / "template.yaml").read_bytes())
            assert isinstance(config, dict)
            assert config["apiVersion"] == f"kubescheduler.config.k8s.io/{older.form}"
        with scheduler(cluster, older.program, [*words[1:], *older.flags], program=older.program):
            cluster.create_pod(namespace, "web", policy="demo-policy")
            assert cluster.placed(namespace, "web") == "node-2"
            assert recorder.about("web", FILTER)


@pytest.mark.parametrize("older", [OLDER[0], OLDER[3]], ids=lambda older: older.image)
def test_an_older_scheduler_starts_with_a_key_of_another_certificate(
    cluster: Cluster, namespace: str, tmp_path: Path, older: Older
) -> None:
    """As after a run that was killed between the two files. Its extender may be missing."""
    manifest = node_files(cluster, tmp_path, older.image)
    flags = ["-m", str(manifest), "-d", str(tmp_path), "-b", "/dev/null", *certificate_flags(tmp_path)]
    done = tas("configure", *flags, "--telemetry-url", "https://localhost:1")
    assert done.return_value == 0, done.exception
    (tmp_path / "certs" / "client.key").write_bytes(Authority("another").client("another").key)
    config = tmp_path / "scheduler-config.yaml"
    config.write_text(config.read_text().replace("/host/certs", str(tmp_path / "certs")))
    with scheduler(cluster, older.program, [*command_of(manifest)[1:], *older.flags], program=older.program):
        cluster.create_pod(namespace, "web", policy="demo-policy")
        assert cluster.placed(namespace, "web")


def test_a_scheduler_of_1_22_reads_the_policy_of_its_config_map(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """It may read it, too: the role in the file allows it."""
    manifest = node_files(cluster, tmp_path, "v1.22.17")
    with recording(answer) as recorder:
        flags = ["-m", str(manifest), "-d", str(tmp_path), "-b", "/dev/null", "--http-timeout", "30s"]
        done = tas("configure", *flags, "--policy-configmap", "--telemetry-url", recorder.url)
        assert done.return_value == 0, done.exception
        objects = (tmp_path / "scheduler-extender-policy.yaml").read_text()
        try:
            cluster.apply(objects)
            words = [*command_of(manifest)[1:], NO_STORAGE_CAPACITY]
            with scheduler(cluster, "kube-scheduler-policy", words, program="kube-scheduler-1.22"):
                cluster.create_pod(namespace, "web", policy="demo-policy")
                assert cluster.placed(namespace, "web") == "node-2"
                assert recorder.about("web", FILTER)
        finally:
            cluster.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=objects)


@pytest.mark.parametrize("starts", [True, False])
def test_wait_ends_with_the_new_scheduler_or_restores_all_files(
    cluster: Cluster, tmp_path: Path, *, starts: bool
) -> None:
    """A thread in place of the kubelet. The hard case: certificates at a place where this scheduler has none."""
    manifest = node_files(cluster, tmp_path, "v1.36.3")
    before = manifest.read_bytes()
    stop = threading.Event()
    (port,) = free_ports(1)

    def kubelet() -> None:
        while not stop.is_set():
            seen = manifest.read_bytes()
            with suppress(RuntimeError), scheduler(cluster, "kube-scheduler-wait", command_of(manifest)[1:], port=port):
                while manifest.read_bytes() == seen and not stop.wait(0.1):
                    pass

    thread = threading.Thread(target=kubelet)
    thread.start()
    try:
        until(lambda: look(f"127.0.0.1:{port}").problem is None, "a scheduler")
        flags = ["-m", str(manifest), "-d", str(tmp_path), "-b", "/dev/null", *certificate_flags(tmp_path)]
        url = "http://127.0.0.1:1" if starts else "https://127.0.0.1:1"
        flags += ["--telemetry-url", url, "--livez", f"127.0.0.1:{port}", "--wait", "60s" if starts else "10s"]
        done = tas("configure", *flags)
        if starts:
            assert done.return_value == 0, done.exception
            assert "the scheduler has started again" in done.stdout
        else:
            assert getattr(done.exception, "exit_code", None) == 1
            assert manifest.read_bytes() == before
            assert not (tmp_path / "scheduler-config.yaml").exists()
            until(lambda: look(f"127.0.0.1:{port}").problem is None, "the scheduler from before")
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
def test_kubeadm_writes_the_manifest_that_tas_configure_wants(
    cluster: Cluster, tmp_path: Path, *, existing: bool
) -> None:
    """kubeadm itself, below another root: its manifest is then as configured, to the digest of the configuration."""
    root = tmp_path / "root"
    (root / "etc/kubernetes").mkdir(parents=True)
    out = root / "out"
    flags = ["--to", str(out), "--kube-version", "1.36", "--telemetry-url", "http://tas.example:9001"]
    cluster_configuration = tmp_path / "cluster.yaml"
    cluster_configuration.write_text(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.3\n"
        + ("scheduler: {extraArgs: [{name: v, value: '3'}]}\n" if existing else "")
    )
    flags += ["--cluster-configuration", str(cluster_configuration)]
    done = tas("configure", "kubeadm", *flags)
    assert done.return_value == 0, done.exception
    # kubeadm sees `root` as its root.
    phase = out / "init-phase.yaml"
    phase.write_text(phase.read_text().replace(str(root), ""))
    arguments = ["init", "phase", "control-plane", "scheduler", "--config", "/out/init-phase.yaml"]
    arguments += ["--rootfs", str(root)]
    ended = subprocess.run(
        [cluster.programs["kubeadm"], *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    manifest = root / "etc/kubernetes/manifests/kube-scheduler.yaml"
    assert ("--v=3" in command_of(manifest)) is existing
    (pod,) = read_yaml(manifest.read_bytes())
    assert isinstance(pod, dict)
    assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    chosen = Options(
        extenders=(telemetry(url="http://tas.example:9001"),),
        config="/etc/kubernetes/scheduler-config.yaml",
        certificates="/etc/certs",
    )
    text = manifest.read_text()
    config = (out / "scheduler-config.yaml").read_text()
    made = configuration(text, config, chosen, read_yaml_tree)
    wanted = plan(text, made, {}, chosen, read_yaml_tree)
    assert (wanted.changes, wanted.config) == ((), config)
