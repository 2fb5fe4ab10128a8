"""The harness: children end, requests are counted, tests without binaries are skipped with one line."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from . import binaries, golden
from .cluster import Cluster
from .controlplane import ADMIN_GROUP
from .processes import clean_environment, running, until

ROOT = Path(__file__).parent.parent.parent


def is_running(pid: int) -> bool:
    """False for a process that has ended, also if its exit code has not been read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_and_its_own_children_end_with_the_context(tmp_path: Path) -> None:
    script = "sleep 60 & echo $!; exec sleep 60"
    with running("shell", ["sh", "-c", script], folder=tmp_path) as shell:
        orphan = int(until(shell.tail, "the shell prints the pid of its child"))
        assert is_running(shell.pid)
        assert is_running(orphan)
    until(lambda: not is_running(shell.pid) and not is_running(orphan), "both have ended")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_child_does_not_outlive_a_killed_session(tmp_path: Path) -> None:
    program = f"""
        import sys
        from pathlib import Path
        from tests.e2e.processes import running
        with running("sleep", ["sleep", "60"], folder=Path({str(tmp_path)!r})) as child:
            print(child.pid, flush=True)
            sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as session:
        assert session.stdout is not None
        child = int(session.stdout.readline())
        until(lambda: b"sleep" in Path(f"/proc/{child}/comm").read_bytes(), "the child has become the command")
        session.kill()
    until(lambda: not is_running(child), "the child has ended too")


def test_a_process_that_ends_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    with running("failing", ["sh", "-c", "echo no such flag; exit 3"], folder=tmp_path) as process:
        until(lambda: not is_running(process.pid), "it has ended")
        with pytest.raises(RuntimeError, match=r"failing ended with 3(.|\n)*no such flag"):
            process.must_run()


def test_until_fails_with_what_it_waited_for() -> None:
    with pytest.raises(TimeoutError, match=re.escape("an event: not within 0.05 s, last answer None")):
        until(lambda: None, "an event", timeout=0.05)


def test_children_get_no_variables_of_another_cluster_or_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG", "HTTPS_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "elsewhere")
    assert "elsewhere" not in clean_environment(KEPT="here").values()


def test_without_binaries_all_tests_are_skipped_with_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/e2e/test_protocol.py", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=os.environ | {"TAS_E2E_CACHE": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (reason,) = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert binaries.MISSING in reason


def test_a_changed_module_has_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = binaries.MODULES[0]
    before = module.digest()
    changed = tmp_path / module.name
    changed.mkdir()
    for name in ("go.mod", "go.sum"):
        (changed / name).write_bytes((module.folder / name).read_bytes() + b"\n")
    monkeypatch.setattr(binaries, "TOOLS", tmp_path)
    assert module.digest() != before


def test_a_shape_has_the_fields_and_types_and_not_the_values() -> None:
    one = {"Pod": {"name": "a", "labels": {"x": "1"}}, "NodeNames": ["n1", "n2"]}
    assert golden.shape(one) == golden.shape({"Pod": {"name": "b", "labels": {"x": "2"}}, "NodeNames": ["n3"]})
    assert golden.shape(one) != golden.shape({"Pod": {"name": "a", "labels": {"y": "1"}}, "NodeNames": ["n1"]})
    assert golden.shape(one) != golden.shape({"Pod": {"name": "a", "labels": {"x": 1}}, "NodeNames": ["n1"]})


def test_the_audit_log_has_every_request_by_user(cluster: Cluster) -> None:
    lister = cluster.kubeconfig_for("lister", ADMIN_GROUP)
    mark = cluster.audit.mark()
    cluster.kubectl("--kubeconfig", str(lister), "get", "--raw", "/api/v1/nodes")
    with pytest.raises(RuntimeError, match=r'pods is forbidden: User "guest" cannot list'):
        cluster.kubectl("--kubeconfig", str(cluster.kubeconfig_for("guest")), "get", "pods")
    calls = cluster.audit.calls(mark, user="lister")
    assert [(call.verb, call.uri, call.status) for call in calls] == [("list", "/api/v1/nodes", 200)]
    refused = [call for call in cluster.audit.calls(mark, user="guest") if call.status == 403]
    assert {call.verb for call in refused} >= {"list"}


def test_a_deployment_becomes_ready_while_a_scheduler_runs(cluster: Cluster, namespace: str) -> None:
    """A test starts and stops schedulers, and the controllers work."""
    deployment = f"""
        apiVersion: apps/v1
        kind: Deployment
        metadata: {{name: web, namespace: {namespace}}}
        spec:
          replicas: 0
          selector: {{matchLabels: {{app: web}}}}
          template:
            metadata: {{labels: {{app: web}}}}
            spec: {{containers: [{{name: main, image: pause}}]}}
    """
    cluster.apply(textwrap.dedent(deployment))
    for replicas in (2, 4):
        cluster.kubectl("scale", "deployment/web", f"--namespace={namespace}", f"--replicas={replicas}")
        with cluster.scheduler():
            cluster.kubectl("rollout", "status", "deployment/web", f"--namespace={namespace}", "--timeout=95s")
        status = cluster.api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/web")["status"]
        assert status["readyReplicas"] == replicas
