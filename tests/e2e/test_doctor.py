"""`tas doctor` on a real control plane: rights, clocks, and a real scheduler with certificates."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from cli import cli
from tests.certificates import Authority
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server, eventually

from .api import ApiError
from .cluster import Cluster
from .processes import until
from .product import Product
from .test_tls import POLICY, Files, files, serving

__all__ = ["files"]

RBAC = Path(__file__).parents[2] / "deploy" / "rbac"
Findings = dict[str, list[dict[str, Any]]]


def doctor(*arguments: str) -> Findings:
    """The findings of each check."""
    done = CliRunner().invoke(cli, ["doctor", "--json", *arguments], prog_name="tas")
    assert done.exit_code == 1, (done.output, done.exception)  # some checks cannot be made beside simulated nodes
    return by_check(json.loads(done.stdout))


def by_check(findings: list[dict[str, Any]]) -> Findings:
    found: Findings = {}
    for each in findings:
        found.setdefault(each["check"], []).append(each)
    return found


def severities(findings: Findings, check: str) -> set[str]:
    return {each["severity"] for each in findings[check]}


def account(namespace: str, name: str) -> list[dict[str, Any]]:
    """The account of a worker with its rights in deploy/rbac, in another namespace and by a role of its own."""
    found = []
    for each in yaml.safe_load_all((RBAC / f"{name.removeprefix('tas-')}.yaml").read_text()):
        if each["kind"] == "ServiceAccount":
            each["metadata"]["namespace"] = namespace
        else:
            each["metadata"]["name"] = f"{namespace}-{name}"
        if each["kind"] == "ClusterRoleBinding":
            each["roleRef"]["name"] = f"{namespace}-{name}"
            each["subjects"][0]["namespace"] = namespace
        found.append(each)
    return found


async def test_missing_rights_are_found_and_the_clock_of_the_api_server_is_compared(
    cluster: Cluster, namespace: str, crd: None, server: Server, tmp_path: Path
) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    names = ("tas-labels", "tas-collect")
    tas = Tas(tmp_path / "home")

    async def diagnosed() -> Findings:
        flags = ("--kubeconfig", str(cluster.kubeconfig), "--account-namespace", namespace)
        return by_check((await tas("doctor", "--json", "--bus", server.url, *flags)).json)

    async def has_rights() -> bool:
        return severities(await diagnosed(), "rights.accounts") == {"ok"}

    async def lacks_rights() -> bool:
        return severities(await diagnosed(), "rights.accounts") == {"ok", "error"}

    try:
        for name in names:
            cluster.apply(yaml.safe_dump_all(account(namespace, name)))
        await eventually(has_rights)  # the API server applies rights with a delay
        cluster.api.delete(f"{rbac}/clusterrolebindings/{namespace}-tas-collect")
        await eventually(lacks_rights)
        findings = await diagnosed()
        assert sorted(each["what"] for each in findings["rights.accounts"]) == [
            "tas-collect may not: get *.custom.metrics.k8s.io, list nodes.metrics.k8s.io",
            "tas-labels has all 8 rights",
        ]
        for check in ("clocks.api_server", "cluster.reached", "policies.served"):
            assert severities(findings, check) == {"ok"}, findings[check]
    finally:
        for name in names:
            for kind in ("clusterroles", "clusterrolebindings"):
                with suppress(ApiError):
                    cluster.api.delete(f"{rbac}/{kind}/{namespace}-{name}")


async def test_a_user_without_rights_gets_no_check_that_is_ok_by_mistake(
    cluster: Cluster, crd: None, server: Server, tmp_path: Path
) -> None:
    kubeconfig = str(cluster.kubeconfig_for("nobody", "system:authenticated"))
    done = await Tas(tmp_path / "home")("doctor", "--json", "--bus", server.url, "--kubeconfig", kubeconfig)
    assert done.code == 1
    findings = by_check(done.json)
    for check in ("policies.served", "workloads.label", "scheduler.alike", "clocks.nodes", "rights.accounts"):
        assert severities(findings, check) == {"unknown"}, findings[check]
        assert "forbidden" in findings[check][0]["what"]
    assert severities(findings, "cluster.reached") == {"ok"}


def test_a_scheduler_that_asks_is_seen_and_another_ca_is_found(
    cluster: Cluster, namespace: str, tmp_path: Path, files: Files
) -> None:
    with serving(cluster, tmp_path, files, namespace) as tas:
        entry = files.extender(tas)
        config = tmp_path / "scheduler-config.json"
        flags = (*flags_of(tas), "--kubeconfig", str(cluster.kubeconfig), "--scheduler-config", str(config))

        def configured(**tls: str) -> Findings:
            head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
            config.write_text(json.dumps(head | {"extenders": [entry | {"tlsConfig": entry["tlsConfig"] | tls}]}))
            return doctor(*flags)

        assert severities(configured(), "extender.asked") == {"warning"}
        with cluster.scheduler(entry):
            cluster.create_pod(namespace, "web", policy=POLICY)
            assert cluster.placed(namespace, "web") == "node-3"
        findings = configured()
        for check in ("extender.reached", "extender.ca", "extender.client", "extender.ready", "extender.asked"):
            assert severities(findings, check) == {"ok"}, findings[check]
        assert severities(findings, "extender.expires") == {"warning"}  # the certificates of tests live for a day
        for check in ("scheduler.configured", "scheduler.valid", "scheduler.verifies", "scheduler.names"):
            assert severities(findings, check) == {"ok"}, findings[check]

        (tmp_path / "other.crt").write_bytes(Authority("other").certificate)
        found = configured(caFile=str(tmp_path / "other.crt"))
        assert severities(found, "extender.ca") == {"error"}, found["extender.ca"]
        assert severities(configured(caFile=""), "scheduler.verifies") == {"warning"}
        files.trust(Authority("another"))

        def is_refused() -> bool:
            return severities(configured(), "extender.client") == {"error"}

        until(is_refused, "the extender refuses the certificate of the scheduler")


def flags_of(tas: Product) -> tuple[str, ...]:
    return ("--bus", tas.bus, "--extender-health", tas.health.removeprefix("http://"))
