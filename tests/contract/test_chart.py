"""What the chart renders, as `deploy/manifests` has it: flags that exist, few rights, and every process."""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bus.buckets import ALL
from cli.loading import every_setting
from cli.run import run
from tests.installed import ROOT
from workers.registry import with_commands
from workers.roles import ROLES
from workers.samples.source_spec import SourceKind, parse_sources
from workers.settings import variable

DEPLOY = ROOT / "deploy"
WORKLOADS = ("Deployment", "StatefulSet")
CHART = DEPLOY / "chart"
FILES = sorted((DEPLOY / "manifests").glob("*.yaml"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = yaml.safe_load((CHART / "values.schema.json").read_text())


@cache
def everything(file: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.load_all(file.read_text(), yaml.CSafeLoader) if each is not None]


def documents(file: Path, *kinds: str) -> list[dict[str, Any]]:
    return [each for each in everything(file) if not kinds or each["kind"] in kinds]


def pods(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the spec of each pod."""
    for each in documents(file, *WORKLOADS):
        yield each["metadata"]["name"], each["spec"]["template"]["spec"]


ALL_PODS = [pytest.param(spec, id=f"{file.stem}-{name}") for file in FILES for name, spec in pods(file)]
PROCESSES = [
    pytest.param(spec, id=f"{file.stem}-{name}") for file in FILES for name, spec in pods(file) if name != "tas-nats"
]


def test_there_are_manifests_and_the_chart_knows_every_process() -> None:
    assert [file.name for file in FILES] == ["tas-separate.yaml", "tas-small.yaml", "tas.yaml"]
    assert VALUES["processes"].keys() == {"all", *(spec.name for spec in with_commands() if spec.in_cluster)}
    assert VALUES["processes"].keys() <= ROLES.keys()


def test_the_notes_give_the_certificates_to_each_command_that_needs_them() -> None:
    """`tas configure` with an address of https and without the files of `tas certs init` ends with an error."""
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    lines = [line for line in notes.splitlines() if line.startswith("  tas configure ")]
    assert ["https:" in line for line in lines] == [True, False]
    install = (ROOT / "docs" / "start" / "install.md").read_text()
    for line in lines:
        files = re.findall(r" (-\S+ certs/\S+)", line)
        assert len(files) == (3 if "https:" in line else 0)
        assert all(each in install for each in files)


def test_the_page_and_the_values_say_by_which_names_servers_join_each_other() -> None:
    """Each verifies the name in the certificate of the other, and one that only clients use does not suffice."""
    (server,) = documents(DEPLOY / "manifests" / "tas-separate.yaml", "StatefulSet")
    (container,) = server["spec"]["template"]["spec"]["containers"]
    (routes,) = (each["value"] for each in container["env"] if each["name"] == "CLUSTER_ROUTES")
    (names,) = {f"*{each}" for each in re.findall(r"@tas-nats-\d+(\.\S+?):6222", routes)}
    said = names.replace("telemetry-aware-scheduling", "NAMESPACE")
    assert said.startswith("*.tas-nats-servers.NAMESPACE")
    assert f"`{said}`" in (ROOT / "docs" / "reference" / "chart.md").read_text()
    assert said in (CHART / "values.yaml").read_text()


@pytest.mark.parametrize("spec", PROCESSES)
def test_each_process_has_flags_and_variables_that_exist(spec: dict[str, Any]) -> None:
    (container,) = spec["containers"]
    program, name, *flags = container["args"]
    assert program == "run"
    command = run.get_command(click.Context(run), name)
    assert command is not None
    with command.make_context(name, list(flags)) as context:
        given = {key for key, value in context.params.items() if value}
    assert len(given) >= len(flags)
    variables = {variable(setting): described for setting, described in every_setting()}
    for each in container["env"]:
        assert f"run {name}" in variables[each["name"]].commands, each


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.stem))
def test_an_upgrade_in_one_step_publishes_what_pods_of_an_earlier_version_read(file: Path) -> None:
    flags = [spec["containers"][0].get("args", ()) for _, spec in pods(file)]
    assert [[each for each in of if each.startswith("--publish")] for of in flags if {"collect", "all"} & {*of}] == [
        ["--publish=nodes"]
    ]


@pytest.mark.parametrize("spec", ALL_PODS)
def test_each_pod_may_do_little(spec: dict[str, Any]) -> None:
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert container["resources"]["limits"].keys() == {"memory"}
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    ports = {each["name"] for each in container["ports"]}
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} <= ports
    if container["name"] != "nats":  # a process that answers kube-scheduler stays in its Service
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz/serving"
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in spec["volumes"]} | ({"data"} if container["name"] == "nats" else set())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_account_has_the_rights_of_its_file_and_all_others_have_no_token(file: Path) -> None:
    accounts = {each["metadata"]["name"] for each in documents(file, "ServiceAccount")}
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    expected = [each for name in accounts for each in documents(DEPLOY / "rbac" / f"{name[4:]}.yaml", *kinds)]
    found = documents(file, *kinds)
    assert sorted(map(str, found)) == sorted(map(str, expected))
    used = {}
    for name, spec in pods(file):
        account = spec.get("serviceAccountName", "")
        assert spec["automountServiceAccountToken"] is bool(account)
        used[name] = account
    assert set(used.values()) - {""} == accounts
    for name in ("tas-materialize", "tas-evaluate", "tas-events", "tas-windows", "tas-keeper", "tas-nats"):
        assert used.get(name, "") == ""


def test_a_scheduler_of_the_original_finds_its_names() -> None:
    for file in FILES:
        (service,) = (each for each in documents(file, "Service") if each["metadata"]["name"] == "tas-service")
        assert [each["port"] for each in service["spec"]["ports"]] == [9001]
        answering = [
            each["metadata"]["name"]
            for each in documents(file, "Deployment")
            if service["spec"]["selector"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        separate = file.stem == "tas-separate"
        assert answering == ["telemetry-aware-scheduling" if separate else "tas-all"]
        assert service["spec"]["selector"]["app"] == "tas"
        volumes = dict(pods(file))[answering[0]]["volumes"]
        tls = {"name": "tls", "secret": {"secretName": "extender-secret", "defaultMode": 0o440}}
        assert (tls in volumes) is (file.stem != "tas-small")


def test_the_default_is_small_and_what_it_selects_never_changes() -> None:
    """A Deployment with another selector could not be upgraded: `mode` changes to other Deployments."""
    replicas = {
        file.stem: {each["metadata"]["name"]: each["spec"]["replicas"] for each in documents(file, *WORKLOADS)}
        for file in FILES
    }
    assert replicas["tas"] == {"tas-all": 2, "tas-nats": 1}
    assert replicas["tas-small"] == {"tas-all": 1, "tas-nats": 1}
    separate = replicas["tas-separate"]
    assert (separate.pop("tas-nats"), separate.pop("tas-keeper"), set(separate.values())) == (3, 1, {2})
    selectors: dict[str, set[str]] = {}
    for file in FILES:
        for each in documents(file, *WORKLOADS):
            selectors.setdefault(each["metadata"]["name"], set()).add(str(each["spec"]["selector"]))
    assert all(len(each) == 1 for each in selectors.values())


def test_every_service_has_both_families_and_says_what_its_ports_speak() -> None:
    for file in FILES:
        for each in documents(file, "Service"):
            assert each["spec"]["ipFamilyPolicy"] == "PreferDualStack"
            speaks = {port["name"]: port["appProtocol"] for port in each["spec"]["ports"]}
            https = "http" if file.stem == "tas-small" else "https"
            known = {"extender": https, "client": "tcp", "cluster": "tcp", "monitor": "http"}
            assert speaks.items() <= known.items()
        assert "0.0.0.0" not in file.read_text()


def test_no_pod_is_evicted_before_what_it_places() -> None:
    """1000000000 is the highest value that Kubernetes lets users give."""
    for file in FILES:
        (priority,) = documents(file, "PriorityClass")
        assert priority["value"] == 10**9
        assert {spec["priorityClassName"] for _, spec in pods(file)} == {priority["metadata"]["name"]}


def test_every_pod_has_a_network_policy_and_every_replicated_one_a_budget() -> None:
    for file in FILES:
        policies = documents(file, "NetworkPolicy")
        budgets = [each["spec"]["selector"]["matchLabels"] for each in documents(file, "PodDisruptionBudget")]
        for each in documents(file, *WORKLOADS):
            labels = each["spec"]["selector"]["matchLabels"]
            assert [one for one in policies if one["spec"]["podSelector"]["matchLabels"] == labels], labels
            assert (labels in budgets) is (each["spec"]["replicas"] > 1)


def test_a_replica_that_is_never_ready_does_not_stop_a_drain_for_ever() -> None:
    """Kubernetes 1.27 or newer, as all of these files need 1.30. Servers that are not ready may be the majority."""
    budgets = [each for file in FILES for each in documents(file, "PodDisruptionBudget")]
    assert len(budgets) > 10
    assert {each["spec"]["maxUnavailable"] for each in budgets} == {1}
    assert {
        (each["metadata"]["name"] == "tas-nats", each["spec"].get("unhealthyPodEvictionPolicy")) for each in budgets
    } == {
        (False, "AlwaysAllow"),
        (True, None),
    }


def test_without_somebody_who_is_named_no_pod_reaches_the_monitoring_port_of_nats() -> None:
    """It shows the JWTs of users. Kubernetes lets the kubelet of the node in, whatever a NetworkPolicy says."""
    for file in FILES:
        (policy,) = (
            each["spec"] for each in documents(file, "NetworkPolicy") if each["metadata"]["name"] == "tas-nats"
        )
        assert policy["policyTypes"] == ["Ingress"]
        assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == [4222, 6222]
        assert all(rule["from"] for rule in policy["ingress"])


def test_the_limits_of_all_streams_fit_a_nats_server_and_its_volume() -> None:
    """Otherwise the server refuses to create some of them."""
    needed = sum(each.max_bytes for each in ALL)
    for file in FILES:
        (config,) = (
            each["data"]["nats.conf"] for each in documents(file, "ConfigMap") if each["metadata"]["name"] == "tas-nats"
        )
        (server,) = documents(file, "StatefulSet")
        (claim,) = server["spec"]["volumeClaimTemplates"]
        volume = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) << 30
        found = re.search(r"max_file_store: (\d+)MiB$", config, re.MULTILINE)
        assert found is not None, config
        assert needed <= int(found[1]) << 20 <= volume * 3 // 4


def test_a_nats_server_collects_its_garbage_before_its_limit_of_memory() -> None:
    for file in FILES:
        (server,) = documents(file, "StatefulSet")
        (container,) = server["spec"]["template"]["spec"]["containers"]
        limit = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
        (value,) = (each["value"] for each in container["env"] if each["name"] == "GOMEMLIMIT")
        assert value == f"{limit * 9 // 10}B"


@pytest.mark.parametrize("kind", SourceKind)
def test_the_schema_takes_each_kind_of_source(kind: SourceKind) -> None:
    pattern = SCHEMA["properties"]["collect"]["properties"]["sources"]["items"]["pattern"]
    valid = []
    for text in (f"{kind}", f"edge:{kind}=http://prometheus:9090", f"{kind}=0.0.0.0:9091"):
        with suppress(ValueError):
            valid.append(str(*parse_sources(text)))
    assert valid
    assert [text for text in valid if not re.search(pattern, text)] == []


def test_the_schema_knows_every_value() -> None:
    def check(values: dict[str, Any], schema_of: dict[str, Any], path: str) -> None:
        for key, value in values.items():
            assert key in schema_of["properties"], f"{path}.{key}"
            described = schema_of["properties"][key]
            if "$ref" in described:
                described = SCHEMA["definitions"][described["$ref"].rpartition("/")[2]]
            if isinstance(value, dict) and "properties" in described:
                check(value, described, f"{path}.{key}")

    check(VALUES, SCHEMA, "")
