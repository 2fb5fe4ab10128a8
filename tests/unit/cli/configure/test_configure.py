"""`tas configure` and its files: all are written or none, and each error has its exit status."""

import datetime as dt
import errno
import fcntl
import json
import os
import re
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click import Abort
from click.testing import CliRunner

from cli import cli
from cli.configure.certificates import checked
from cli.configure.errors import SomeNotRestoredError
from cli.configure.files import FilesError, NotRestoredError, Step, stored, undone, write_all
from cli.configure.liveness import Sight
from tests.certificates import Authority, Pair
from tests.unit.cli.configure.node import AUTHORITY, CLIENT, Node, code, message, mode, tas
from tests.unit.tas.configuring.hostile import EDITED
from tests.unit.tas.configuring.samples import KUBEADM
from workers.process.manifests import read_yaml, read_yaml_tree
from workers.process.version import product_version


def test_facts_K22_K23_a_run_writes_all_files_and_a_backup(node: Node) -> None:
    before = node.manifest.read_bytes()
    result = node.configure()
    assert code(result) == 0, message(result)
    assert mode(node.manifest) == 0o600
    assert f"--config={node.config}" in node.manifest.read_text()
    assert read_yaml_tree(node.config.read_text()).value
    assert (node.certs / "client.key").read_bytes() == CLIENT.key
    assert (node.certs / "client.crt").read_bytes() == CLIENT.certificate
    assert (node.certs / "ca.crt").read_bytes() == AUTHORITY.certificate
    assert [mode(node.certs / name) for name in ("client.key", "client.crt", "ca.crt")] == [0o600, 0o644, 0o644]
    (backup,) = node.backups()
    assert f"backup: {backup}" in result.stdout
    assert mode(backup) == 0o700
    assert (backup / "kube-scheduler.yaml").read_bytes() == before
    assert {mode(path) for path in backup.iterdir()} == {0o600}
    assert [path.name for path in node.manifest.parent.iterdir()] == ["kube-scheduler.yaml"]


def test_facts_K17_a_second_run_writes_nothing(node: Node) -> None:
    node.configure()
    before = node.state()
    times = {path: Path(path).stat().st_mtime_ns for path in before}
    result = node.configure()
    assert code(result) == 0
    assert "no changes needed" in result.stdout
    assert node.state() == before
    assert {path: Path(path).stat().st_mtime_ns for path in before} == times


@pytest.mark.parametrize("form", ["-dry-run", "--dry-run=true"])
def test_facts_K15_a_dry_run_shows_a_diff_and_touches_nothing(node: Node, form: str) -> None:
    before = node.state()
    result = node.configure(form)
    assert code(result) == 0
    assert f"+    - --config={node.config}" in result.stdout
    (line,) = (each for each in result.stdout.splitlines() if each.startswith("+") and "system:kube-scheduler" in each)
    assert re.fullmatch(r"\+.*system:kube-scheduler.*, expires \d{4}-\d\d-\d\d, sha256:[0-9a-f]{64}", line)
    assert "BEGIN CERTIFICATE" not in result.stdout
    assert "PRIVATE KEY" not in result.stdout
    assert node.state() == before
    assert code(node.configure(form, "--exit-code")) == 3
    node.configure()
    assert code(node.configure(form, "--exit-code")) == 0


def test_a_diff_is_red_and_green_on_a_terminal(node: Node) -> None:
    flags = [word for pair in node.flags.items() for word in pair]
    result = CliRunner().invoke(cli, ["configure", *flags, "-dry-run"], color=True, standalone_mode=False)
    assert f"\x1b[32m+    - --config={node.config}\x1b[0m" in result.stdout


def test_facts_K24_no_backup(node: Node) -> None:
    result = node.configure("-b", "/dev/null")
    assert code(result) == 0
    assert node.backups() == []
    assert "backup" not in result.stdout.replace(str(node.folder), "")


@pytest.mark.parametrize(("dashes", "separator"), [("-", None), ("--", None), ("-", "="), ("--", "=")])
def test_facts_K42_flags_of_the_original_have_one_dash_or_two(node: Node, dashes: str, separator: str | None) -> None:
    words: list[str] = []
    for name, value in node.flags.items():
        flag = f"{dashes}{name.lstrip('-')}" if name != "--cacert" else name
        words += [f"{flag}={value}"] if separator else [flag, value]
    assert code(tas("configure", *words)) == 0
    assert node.certs.exists()


@pytest.mark.parametrize("extenders", [["telemetry"], ["gpu"], ["telemetry", "gpu"]])
def test_the_extenders_are_those_of_the_flags(node: Node, extenders: list[str]) -> None:
    assert code(node.configure(*(word for each in extenders for word in ("--extender", each)))) == 0
    document = read_yaml_tree(node.config.read_text()).value
    assert isinstance(document, dict)
    verbs = {"telemetry": "preemptVerb", "gpu": "bindVerb"}
    assert [verbs[each] in entry for each, entry in zip(extenders, document["extenders"], strict=True)] == [
        True for _ in extenders
    ]


def test_each_agent_of_a_file_gets_an_entry_and_a_second_run_changes_nothing(node: Node) -> None:
    file = node.folder / "agents.yaml"
    file.write_text("agents: {safe-overload: , safe-balance: {weight: 10}}")
    flags = ("--extender", "agents", "--agents", str(file))
    assert code(node.configure(*flags)) == 0
    document = read_yaml_tree(node.config.read_text()).value
    assert isinstance(document, dict)
    assert [(entry.get("filterVerb"), entry["prioritizeVerb"], entry["weight"]) for entry in document["extenders"]] == [
        ("predicates/safe-overload", "priorities/safe-overload", 1),
        (None, "priorities/safe-balance", 10),
    ]
    before = node.files()
    assert code(node.configure(*flags)) == 0
    assert node.files() == before


def test_a_file_of_agents_and_the_extender_need_each_other_and_a_mistake_is_named(node: Node) -> None:
    before = node.files()
    assert "--extender agents and --agents FILE need each other" in str(
        node.configure("--extender", "agents").exception
    )
    file = node.folder / "agents.yaml"
    file.write_text("agents: {foo: {weight: 0}}")
    result = node.configure("--extender", "agents", "--agents", str(file))
    assert (code(result), "agents.foo.weight = 0: " in str(result.exception)) == (1, True)
    assert node.files() == before


def test_facts_K14_the_template_may_be_the_destination(node: Node) -> None:
    node.config.write_text("kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/XVERSIONX # v\n")
    assert code(node.configure("-f", str(node.config))) == 0
    assert node.config.read_text().startswith(
        "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1 # v\n"
    )


def test_facts_K29_a_template_adds_its_extenders_to_the_configuration_of_the_scheduler(node: Node) -> None:
    """The hard case: the entry as the original has it, without a flag `--extender`; its certificates are copied."""
    node.configure("--gpu-url", "http://gas:1", "--extender", "gpu")
    assert not node.certs.exists()
    template = node.folder / "scheduler-config.yaml"
    template.write_text(
        "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/XVERSIONX\nextenders:\n"
        "- {urlPrefix: 'https://tas-service:9001', filterVerb: scheduler/filter, enableHTTPS: true,\n"
        "   tlsConfig: {certFile: /host/certs/client.crt, keyFile: /host/certs/client.key},\n"
        "   managedResources: [{name: telemetry/scheduling, ignoredByScheduler: true}]}\n"
    )
    assert code(node.configure("-f", str(template))) == 0
    assert urls(node) == ["http://gas:1/scheduler", "https://tas-service:9001"]
    assert (node.certs / "client.key").exists()
    assert code(node.configure("-f", str(template), "--replace")) == 0
    assert urls(node) == ["https://tas-service:9001"]
    assert "dnsPolicy: ClusterFirstWithHostNet" in node.manifest.read_text()


def test_a_policy_of_the_original_is_a_template_and_its_deployment_is_named(node: Node) -> None:
    """As somebody pastes the files of its guide; the file on the node has our name."""
    template = node.folder / "scheduler-extender-configmap.yaml"
    policy = (
        '{"kind": "Policy", "apiVersion": "v1", "extenders": [{"apiVersion": "v1",'
        '"urlPrefix": "https://tas-service:9001", "filterVerb": "scheduler/filter", "weight": 1,'
        '"enableHttps": true, "tlsConfig": {"insecure": false,'
        '"certFile": "/host/certs/client.crt", "keyFile": "/host/certs/client.key"}}]}'
    )
    template.write_text(f"apiVersion: v1\nkind: ConfigMap\ndata:\n  policy.cfg: |\n    {policy}\n")
    done = node.configure("-f", str(template))
    assert code(done) == 0, done.output
    assert urls(node) == ["https://tas-service:9001"]
    assert "kube-scheduler reads none since 1.23" in done.output
    assert (node.certs / "client.key").exists()
    before = {path: each for path, each in node.state().items() if path != str(template)}
    template.write_text("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: telemetry-aware-scheduling}\n")
    refused = node.configure("-f", str(template))
    assert (code(refused), "tas run all" in str(refused.exception)) == (1, True)
    assert {path: each for path, each in node.state().items() if path != str(template)} == before


def test_an_error_in_a_policy_names_its_field_in_the_config_map(node: Node) -> None:
    """The ConfigMap in the README of GAS lacks a comma, and its line is not one of the file."""
    template = node.folder / "scheduler-extender-configmap.yaml"
    template.write_text('kind: ConfigMap\ndata:\n  policy.cfg: |\n    {"kind": "Policy"\n    "extenders": []}\n')
    words = f"{template}: data.policy.cfg: no YAML: line 2, column 1: did not find expected ',' or '}}'"
    result = node.configure("-f", str(template))
    assert (code(result), message(result)) == (1, words)


def urls(node: Node) -> list[str]:
    document = read_yaml_tree(node.config.read_text()).value
    assert isinstance(document, dict)
    return [each["urlPrefix"] for each in document["extenders"]]


def test_replace_starts_from_an_empty_configuration(node: Node) -> None:
    node.config.write_text(
        "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\nprofiles: []\n"
    )
    assert code(node.configure("--replace")) == 0
    assert "profiles" not in node.config.read_text()


def test_stdout_has_both_files_and_writes_nothing(node: Node) -> None:
    before = node.state()
    result = node.configure("--stdout")
    assert node.state() == before
    config, pod = read_yaml(result.stdout.encode())
    assert isinstance(config, dict)
    assert isinstance(pod, dict)
    assert (config["kind"], pod["kind"]) == ("KubeSchedulerConfiguration", "Pod")
    assert f"# {node.manifest}" in result.stdout
    node.configure()
    assert pod["metadata"] == read_yaml(node.manifest.read_bytes())[0]["metadata"]  # type: ignore[index]


def test_json_says_what_was_done(node: Node) -> None:
    planned = json.loads(node.configure("--json", "-dry-run").stdout)
    assert planned["dry_run"] is True
    assert planned["kube_version"] == "1.28"
    assert any("--config=" in line for line in planned["files"][-1]["diff"])
    done = json.loads(node.configure("--json").stdout)
    assert [each["change"] for each in done["files"]] == ["created"] * 4 + ["changed"]
    assert done["backup"] == str(node.backups()[0])
    again = json.loads(node.configure("--json").stdout)
    assert {each["change"] for each in again["files"]} == {"unchanged"}
    assert again["manifest"] == []
    assert json.loads(node.verify("--json").stdout)["as_configured"] is True
    node.manifest.write_text(KUBEADM)
    verified = node.verify("--json")
    assert code(verified) == 3
    assert any("dnsPolicy" in each for each in json.loads(verified.stdout)["differences"])


@pytest.mark.parametrize(("flag", "status"), [("-m", 1), ("-d", 2)])
def test_facts_K40_an_error_has_its_exit_status_also_in_json(node: Node, flag: str, status: int) -> None:
    result = node.configure("--json", flag, "nowhere")
    assert code(result) == status
    found = json.loads(result.stdout)
    assert found["exit_code"] == status
    assert "nowhere" in found["error"]


@pytest.mark.parametrize("style", ["block", "flow", "quoted"])
def test_no_private_key_is_shown(node: Node, style: str) -> None:
    """The hard case: a key in the configuration, beside a line that changes."""
    secret = "U0VDUkVU"
    value = {"block": f"|\n      {secret}\n      {secret}\n", "flow": secret, "quoted": f'"{secret}"'}[style]
    tls = f"\n    keyData: {value}" if style == "block" else f"{{keyData: {value}}}"
    node.config.write_text(
        "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\nextenders:\n"
        f"- urlPrefix: https://other\n  enableHTTPS: true\n  tlsConfig: {tls}\n"
    )
    for more in (["-dry-run"], ["-dry-run", "--json"]):
        result = node.configure(*more)
        assert code(result) == 0, message(result)
        assert "sha256:" in result.stdout.partition("keyData")[2].partition("\n")[0]
        assert secret not in result.stdout
        assert "PRIVATE KEY" not in result.stdout
    node.configure()
    for more in ([], ["--json"]):
        reverted = node.revert("-dry-run", *more).stdout
        assert secret not in reverted
        assert "PRIVATE KEY" not in reverted


@pytest.mark.parametrize("name", ["c.crt", "ca.crt"])
def test_a_certificate_with_its_key_in_one_file_is_refused(node: Node, name: str) -> None:
    """Its copy is readable for all users."""
    path = node.folder / "pki" / name
    path.write_bytes(path.read_bytes() + CLIENT.key)
    before = node.state()
    assert "has a private key, too" in message(node.configure())
    assert node.state() == before


def test_keep_deletes_the_oldest_backups_and_nothing_else(node: Node) -> None:
    for weight in range(2, 5):
        node.configure("--weight", str(weight))
    first, second, third = node.backups()
    (first / "mine").write_text("")
    foreign = node.folder / "backups" / "backup_2023-01-01_1"
    foreign.mkdir()
    result = node.configure("--keep", "2", "--weight", "9")
    assert code(result) == 0
    assert not second.exists()
    assert [path.name for path in first.iterdir()] == ["mine"]
    assert foreign.exists()
    assert third.exists()
    assert f"deleted: {second}" in result.stdout
    assert code(node.revert()) == 0


def test_the_newest_backup_is_the_last_one_also_after_a_clock_has_gone_back(node: Node) -> None:
    """The hard case: a backup of a version before the numbers, from a clock that was ahead."""
    node.configure("--weight", "2")
    (first,) = node.backups()
    index = json.loads((first / "index.json").read_text())
    index.pop("number", None)
    (first / "index.json").write_text(json.dumps(index | {"created": "2999-01-01T00:00:00+00:00"}))
    second = Path(json.loads(node.configure("--weight", "3", "--json").stdout)["backup"])
    index = json.loads((second / "index.json").read_text())
    (second / "index.json").write_text(json.dumps(index | {"created": "2998-01-01T00:00:00+00:00"}))
    done = json.loads(node.configure("--weight", "4", "--keep", "2", "--json").stdout)
    third = Path(done["backup"])
    assert (done["deleted_backups"], set(node.backups())) == ([str(first)], {second, third})
    assert json.loads(node.revert("--json").stdout)["backup"] == str(third)
    assert "weight: 3 " in node.config.read_text()


@pytest.mark.parametrize("content", [b"{", b'{"created": "\xff", "files": []}', b'{"a": ' + b"[" * 100_000])
def test_a_backup_that_cannot_be_read_stops_no_run(node: Node, content: bytes) -> None:
    node.configure("--weight", "2")
    index = node.backups()[0] / "index.json"
    index.write_bytes(content)
    assert code(node.configure("--weight", "3")) == 0
    refused = node.revert()
    assert (code(refused), message(refused).partition(": ")[0]) == (1, str(index))


def test_an_index_names_no_file_outside_of_its_backup(node: Node) -> None:
    node.configure("--weight", "2")
    (backup,) = node.backups()
    index = json.loads((backup / "index.json").read_text())
    index["files"][-1]["file"] = "../../etc/scheduler-config.yaml"
    (backup / "index.json").write_text(json.dumps(index))
    assert code(node.configure("--weight", "3", "--keep", "1")) == 0
    assert node.config.exists()
    assert not (backup / "index.json").exists()


def test_the_index_of_a_backup_says_by_what_it_was_made(node: Node) -> None:
    node.configure("--weight", "7")
    index = json.loads((node.backups()[0] / "index.json").read_text())
    assert index["flags"]["weight"] == "7"
    assert index["flags"]["manifest"] == str(node.manifest)
    assert index["version"] == product_version()
    assert "gpu_url" not in index["flags"]


def test_a_relative_manifest_is_restored_from_another_folder(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(node.manifest.parent)
    assert code(node.configure("-m", node.manifest.name)) == 0
    monkeypatch.chdir("/")
    assert code(node.revert()) == 0
    assert node.manifest.read_text() == KUBEADM


@pytest.mark.parametrize("flag", ["-d", "-cert-dir"])
def test_the_folder_of_the_manifests_is_refused_also_by_a_link(node: Node, flag: str) -> None:
    link = node.folder / "link"
    link.symlink_to(node.manifest.parent)
    assert code(node.configure(flag, str(link))) == 2
    assert code(node.configure(flag, str(node.manifest.parent) + "/")) == 2


def test_facts_K28_the_deployments_of_the_original_are_not_rewritten(node: Node) -> None:
    result = node.configure("-tas-depl", "/nowhere", "-gas-depl=x")
    assert code(result) == 0
    assert "no effect" in result.stderr


# Bad input


def symbolic_link(node: Node) -> None:
    target = node.folder / "elsewhere.yaml"
    node.manifest.rename(target)
    node.manifest.symlink_to(target)


def folder(node: Node) -> None:
    node.manifest.unlink()
    node.manifest.mkdir()


def certificate_folder(node: Node) -> None:
    (node.folder / "pki" / "c.crt").unlink()
    (node.folder / "pki" / "c.crt").mkdir()


BAD_FILES: dict[str, tuple[Callable[[Node], object], str]] = {
    "a manifest that is no YAML": (lambda node: node.manifest.write_text("a: ["), "kube-scheduler.yaml: no YAML"),
    "a manifest in another encoding": (lambda node: node.manifest.write_bytes(b"a: \xff"), "UTF-8"),
    "half a manifest": (lambda node: node.manifest.write_text(KUBEADM[:310]), "manifest: spec.containers[0].image"),
    "another pod": (lambda node: node.manifest.write_text(KUBEADM.replace("kube-scheduler", "etcd")), "exactly one"),
    "no manifest": (lambda node: node.manifest.unlink(), "run this on a control plane node, or give -m FILE"),
    "a symbolic link": (symbolic_link, "is a symbolic link to"),
    "a folder": (folder, "is no regular file"),
    "no version": (lambda node: node.manifest.write_text(KUBEADM.replace(":v1.28.3", ":latest")), "--kube-version"),
    "an old version": (lambda node: node.manifest.write_text(KUBEADM.replace("v1.28", "v1.18")), "at least 1.19"),
    "no key": (lambda node: (node.folder / "pki" / "c.key").unlink(), "missing: "),
    "an unreadable key": (lambda node: (node.folder / "pki" / "c.key").write_text("x"), "no private key in PEM"),
    "an unreadable certificate": (lambda node: (node.folder / "pki" / "c.crt").write_text("x"), "no certificates"),
    "a key of another certificate": (
        lambda node: (node.folder / "pki" / "c.key").write_bytes(AUTHORITY.client("other").key),
        "is not the key of",
    ),
    "an expired certificate": (
        lambda node: node.pki(AUTHORITY.client("old", lives=dt.timedelta(hours=-1))),
        "has expired",
    ),
    "an unreadable authority": (lambda node: (node.folder / "pki" / "ca.crt").write_text("x"), "no certificates"),
    "a folder as certificate": (certificate_folder, "directory"),
    "a configuration that the pod does not mount": (
        lambda node: node.manifest.write_text(KUBEADM.replace("--leader-elect=true", "--config=/elsewhere")),
        "--replace",
    ),
    "a configuration of another kind": (lambda node: node.config.write_text("kind: Pod\n"), "scheduler configuration"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_input_changes_nothing(node: Node, name: str) -> None:
    spoil, words = BAD_FILES[name]
    spoil(node)
    before = node.state()
    for more in ([], ["-dry-run"]):
        result = node.configure(*more)
        assert code(result) == 1
        assert words in message(result)
        assert node.state() == before


UNEDITABLE = {
    "a script of a shell": ("    - kube-scheduler\n", "    - sh\n    - -c\n    - kube-scheduler --v=2\n"),
    "a volume with our name": ("  volumes:\n", "  volumes:\n  - {name: tas-certs, emptyDir: {}}\n"),
}


@pytest.mark.parametrize("name", UNEDITABLE)
def test_what_cannot_be_edited_is_refused_with_the_lines_to_write_by_hand(node: Node, name: str) -> None:
    """The lines are those that the same flags write in a manifest that can be edited."""
    edited = node.configure("-dry-run")
    assert KUBEADM.count(UNEDITABLE[name][0]) == 1
    node.manifest.write_text(KUBEADM.replace(*UNEDITABLE[name]))
    before = node.state()
    refused = node.configure()
    assert (code(refused), node.state()) == (1, before)
    error, manifest, config = re.split(r"\n\n(?:By hand|and this to)[^\n]*:\n\n", message(refused))
    assert error.startswith("manifest: ")
    added = [line[1:].strip() for line in edited.output.splitlines() if line.startswith("+ ")]
    (container,) = read_yaml_tree(manifest).value["containers"]  # type: ignore[index]
    assert f"- {container['command'][0]}" in added
    assert "dnsPolicy: ClusterFirstWithHostNet" in manifest
    assert {each["name"] for each in container["volumeMounts"]} == {"tas-scheduler-config", "tas-certs"}
    config, _, copied = config.rpartition("\n\n")
    assert copied == f"and copy client.crt, client.key and ca.crt to {node.certs}"
    assert all(f"+{line}" in edited.output.splitlines() for line in config.splitlines() if "kubeconfig" not in line)


def test_facts_K16_every_missing_file_is_named_at_once(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("m", "f", "c", "k")]
    words = [word for pair in zip(("-m", "-f", "-cert", "-key"), paths, strict=True) for word in pair]
    result = tas("configure", *words, "--extender", "gpu", "-d", "/d")
    assert code(result) == 1
    assert all(path in message(result) for path in paths)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "more",
    [
        ["dry-run"],
        ["-dry-run=maybe"],
        ["--nothing"],
        ["-cert-dir", "certs"],
        ["-d", "etc"],
        ["--weight", "0"],
        ["--http-timeout", "soon"],
        ["--telemetry-url", "tas-service:9001"],
        ["--kube-version", "28"],
        ["--policy-configmap"],
        ["--policy-configmap", "-f", "x"],
        ["--policy-configmap", "--replace"],
        ["--stdout", "-dry-run"],
        ["--stdout", "--json"],
        ["--wait", "1m", "-dry-run"],
        ["--wait", "soon"],
        ["--wait", "0s"],
        ["--keep", "1", "-b", "/dev/null"],
        ["--keep", "0"],
        ["--keep", "1", "--stdout"],
        ["verify"],
    ],
)
def test_facts_K36_K41_flags_that_contradict_or_do_not_exist_are_usage_errors(node: Node, more: list[str]) -> None:
    before = node.state()
    assert code(node.configure(*more)) == 2
    assert node.state() == before


@pytest.mark.parametrize(("flag", "status"), [("-b", 2), ("-d", 2)])
def test_facts_K37_nothing_is_written_into_the_folder_of_the_manifests(node: Node, flag: str, status: int) -> None:
    before = node.state()
    assert code(node.configure(flag, str(node.manifest.parent))) == status
    assert node.state() == before


def test_facts_K25_a_missing_folder_for_backups_is_an_error_before_any_write(node: Node) -> None:
    before = node.state()
    result = node.configure("-b", str(node.folder / "nowhere"))
    assert code(result) == 1
    assert node.state() == before


def test_the_key_of_an_authority_is_copied_only_on_demand(node: Node) -> None:
    """The defaults of the original are the certificate and the key of the cluster's authority."""
    name = "authority"
    key_pair = authority_pair(name)
    node.pki(key_pair)
    before = node.state()
    assert "--allow-ca-key" in message(node.configure())
    assert node.state() == before
    result = node.configure("--allow-ca-key")
    assert code(result) == 0
    assert "can sign for the cluster" in result.stderr


@pytest.mark.parametrize("look", ["-dry-run", "--stdout", "verify"])
def test_looking_needs_no_right_to_write_no_folder_for_backups_and_no_allowance(node: Node, look: str) -> None:
    node.pki(authority_pair("kubernetes"))
    node.manifest.chmod(0o400)
    (node.folder / "backups").rmdir()
    before = node.state()
    result = node.verify() if look == "verify" else node.configure(look)
    assert code(result) == (3 if look == "verify" else 0), message(result)
    assert result.stderr.startswith("note: --key ")
    assert "so this is only shown. Give a certificate of the scheduler" in result.stderr.splitlines()[0]
    assert node.state() == before
    assert "--allow-ca-key" in message(node.configure("-b", "/dev/null"))


@pytest.mark.parametrize("more", ["metadata: {name: x}\n", "extenders: [{urlPrefix: http://a, weigth: 1}]\n"])
def test_what_the_scheduler_would_not_read_is_refused_before_the_first_write(node: Node, more: str) -> None:
    template = node.folder / "template.yaml"
    template.write_text(f"kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\n{more}")
    before = node.state()
    result = node.configure("-f", str(template))
    assert code(result) == 1
    assert "is no field that kube-scheduler 1.28 has here" in message(result)
    assert node.state() == before


def test_a_plugin_of_this_scheduler_is_allowed_by_its_name(node: Node) -> None:
    template = node.folder / "template.yaml"
    profile = "{schedulerName: a, plugins: {multiPoint: {enabled: [{name: Coscheduling}]}}}"
    template.write_text(f"kind: KubeSchedulerConfiguration\nprofiles: [{profile}]\n")
    before = node.state()
    assert "give --allow-plugin Coscheduling" in message(node.configure("-f", str(template)))
    assert node.state() == before
    result = node.configure("-f", str(template), "--allow-plugin", "Coscheduling")
    assert code(result) == 0
    # And a template needs no version.
    assert "has no apiVersion: kubescheduler.config.k8s.io/v1" in result.stderr
    (written,) = read_yaml((node.config.parent / "template.yaml").read_bytes())
    assert isinstance(written, dict)
    assert written["apiVersion"] == "kubescheduler.config.k8s.io/v1"


def authority_pair(name: str) -> Pair:
    from tests.certificates import private_pem

    authority = Authority(name)
    return Pair(certificate=authority.certificate, key=private_pem(authority._key))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of more bytes can be written: a full disk, without one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("backup", [False, True])
def test_facts_K34_a_write_that_fails_half_way_leaves_every_file_as_it_was(node: Node, *, backup: bool) -> None:
    """The hard case: certificates and configuration are written before the manifest, which is too large."""
    node.manifest.write_text(KUBEADM + "# long\n" * 20_000)
    node.config.write_text("kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\n")
    node.config.chmod(0o640)
    before = node.state()
    with largest_file(100_000):
        result = node.configure(*([] if backup else ["-b", "/dev/null"]))
    assert code(result) == 1
    assert "as before" in message(result)
    assert ("no backup" in message(result)) is backup
    assert node.state() == before
    assert code(node.configure()) == 0


def test_a_run_that_fails_leaves_no_backup_so_that_revert_takes_the_one_before(node: Node) -> None:
    """The hard case: the backup is small, and a certificate that is written is too large."""
    assert code(node.configure()) == 0
    kept = node.backups()
    authority = node.folder / "pki" / "ca.crt"
    authority.write_bytes(AUTHORITY.certificate + b"\n" * 20_000)
    with largest_file(10_000):
        assert message(node.configure()).endswith("ca.crt: File too large; every file is as before")
    assert node.backups() == kept
    assert code(node.revert()) == 0
    assert node.manifest.read_text() == KUBEADM


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_that_a_person_ends_leaves_a_backup_only_if_not_all_files_are_as_before(
    node: Node, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The second time while the files are restored."""
    node.config.write_text("kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\n")
    before = node.files()
    rename = Path.rename
    ended: list[Path] = []

    def ends(path: Path, target: Path) -> Path:
        if target == node.manifest or 0 < len(ended) < times:
            ended.append(target)
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", ends)
        assert isinstance(node.configure().exception, Abort)
    assert ended == [node.manifest, node.config][:times]
    assert (node.files() == before) is (times == 1)
    assert len(node.backups()) == times - 1
    assert times == 1 or code(node.revert()) == 0
    assert node.files() == before


def test_a_run_that_a_person_ends_while_it_waits_leaves_the_backup(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: object, **__: object) -> float:
        raise KeyboardInterrupt

    before = node.files()
    monkeypatch.setattr("cli.configure.configure.look_before", lambda _: Sight(None, None))
    monkeypatch.setattr("cli.configure.configure.wait_for_restart", ends)
    assert isinstance(node.configure("--wait", "60s").exception, Abort)
    assert node.files() != before
    assert code(node.revert()) == 0
    assert node.files() == before


def two_files(folder: Path, content: bytes) -> list[Step]:
    """A long file that becomes short, then a new one."""
    (folder / "first").write_text("x" * 50)
    return [
        Step(path=folder / "first", before=stored(folder / "first"), content=b"y"),
        Step(path=folder / "second", before=None, content=content),
    ]


def test_no_file_is_replaced_before_all_contents_are_on_the_disk(tmp_path: Path) -> None:
    steps = two_files(tmp_path, b"z" * 50)
    inode = (tmp_path / "first").stat().st_ino
    with largest_file(10), pytest.raises(FilesError, match=r"second: File too large; every file is as before"):
        write_all(steps)
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    assert (tmp_path / "first").stat().st_ino == inode


def test_status_4_names_the_files_that_cannot_be_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def fails_for_second(path: Path, target: Path) -> Path:
        if target.name == "second":
            raise OSError(errno.EPERM, "not permitted")
        return rename(path, target)

    steps = two_files(tmp_path, b"z")
    monkeypatch.setattr(Path, "rename", fails_for_second)
    with largest_file(10), pytest.raises(NotRestoredError, match=r"second: not permitted; not restored: .*first"):
        write_all(steps)
    assert SomeNotRestoredError.exit_code == 4
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    assert (tmp_path / "first").read_text() == "y"


def test_a_disk_that_becomes_read_only_half_way_leaves_the_files_of_the_other_disk_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hard case: what waits on the disk that failed cannot be deleted either."""
    rename, unlink = Path.rename, Path.unlink
    is_read_only = False

    def refused(path: Path) -> bool:
        return is_read_only and path.parent.name == "failed"

    def renamed(path: Path, target: Path) -> Path:
        nonlocal is_read_only
        is_read_only = is_read_only or target.name == "second"
        if refused(target):
            raise OSError(errno.EROFS, "Read-only file system")
        return rename(path, target)

    def unlinked(path: Path, *, missing_ok: bool = False) -> None:
        if refused(path):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        unlink(path, missing_ok=missing_ok)

    (tmp_path / "failed").mkdir()
    first, second = tmp_path / "first", tmp_path / "failed" / "second"
    for path in (first, second):
        path.write_text("before")
    steps = [Step(path=path, before=stored(path), content=b"ours") for path in (first, second)]
    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(Path, "unlink", unlinked)
    with pytest.raises(FilesError, match="second: Read-only file system; every file is as before"):
        write_all(steps)
    assert [path.read_text() for path in (first, second)] == ["before", "before"]


def test_of_two_writers_in_a_folder_one_fails(tmp_path: Path) -> None:
    steps = two_files(tmp_path, b"z")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(FilesError, match="another process is writing there; every file is as before"):
            write_all(steps)
        assert [path.read_text() for path in tmp_path.iterdir()] == ["x" * 50]
    finally:
        os.close(descriptor)
    write_all(steps)
    assert (tmp_path / "second").read_text() == "z"


def test_a_file_that_changes_between_plan_and_write_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("planned")
    step = Step(path=path, before=stored(path), content=b"ours")
    path.write_text("kubeadm")
    with pytest.raises(Exception, match="has changed meanwhile"):
        write_all([step])
    assert path.read_text() == "kubeadm"


def test_a_file_that_is_gone_half_way_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1")
    second.write_text("2")
    steps = [Step(path=path, before=stored(path), content=b"ours") for path in (first, second)]
    second.unlink()
    with pytest.raises(FilesError, match="second: has changed meanwhile"):
        write_all(steps)
    assert first.read_text() == "1"
    assert not second.exists()


def test_what_another_has_written_since_is_not_undone(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1")
    steps = [Step(path=path, before=stored(path), content=b"ours") for path in (first, second)]
    write_all(steps)
    second.write_text("theirs")
    with pytest.raises(NotRestoredError, match="second has changed since"):
        undone(steps)
    assert second.read_text() == "theirs"
    second.write_text("ours")
    undone(steps)
    assert first.read_text() == "1"
    assert not second.exists()


@pytest.mark.parametrize("suffix", ["tas-new", "tas-interim"])
@pytest.mark.parametrize("reverts", [False, True])
def test_what_a_killed_run_left_does_not_stop_the_next_which_deletes_it(
    node: Node, suffix: str, *, reverts: bool
) -> None:
    """The hard case: a run that was killed before it replaced a file, and a `revert` that has nothing to restore."""
    if reverts:
        assert code(node.configure()) == 0
        assert code(node.revert()) == 0
    (node.manifest.parent / f".kube-scheduler.yaml.{suffix}").write_text("half")
    assert code(node.revert() if reverts else node.configure()) == 0
    assert [path.name for path in node.manifest.parent.iterdir()] == ["kube-scheduler.yaml"]


def test_a_full_disk_stops_a_revert_before_the_first_file(node: Node) -> None:
    node.manifest.write_text(KUBEADM + "# long\n" * 20_000)
    node.configure()
    before = node.state()
    with largest_file(100_000):
        result = node.revert()
    assert (code(result), "File too large; every file is as before" in message(result)) == (1, True)
    assert node.state() == before
    assert code(node.revert()) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to others")
def test_the_owner_of_a_file_stays(node: Node) -> None:
    os.chown(node.manifest, 1234, 1235)
    for run in (node.configure, node.revert):
        assert code(run()) == 0
        assert (node.manifest.stat().st_uid, node.manifest.stat().st_gid) == (1234, 1235)


def test_a_key_that_everybody_can_read_is_named(node: Node) -> None:
    """Another tool has left the file, with its mode: the new key in it would be no secret."""
    node.certs.mkdir()
    key = node.certs / "client.key"
    key.write_text("of another tool")
    key.chmod(0o644)
    note = f"note: {key}: keeps its mode 644, for every user to read: chmod 600 {key}\n"
    for run in (node.configure, node.configure, node.verify):
        assert note in run().stderr
    key.chmod(0o600)
    assert str(key) not in node.configure().stderr


def test_a_file_of_an_owner_that_cannot_be_kept_changes_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for somebody who is not root; certificates and configuration are written before the manifest."""

    def refuse(descriptor: int, uid: int, gid: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    before = node.state()
    result = node.configure("-b", "/dev/null")
    assert message(result) == f"{node.manifest}: Operation not permitted; every file is as before"
    assert (code(result), node.state()) == (1, before)


def test_the_access_list_of_a_file_stays(node: Node) -> None:
    """As the label of SELinux, which is an attribute of the file, too."""
    entry = struct.Struct("<HHI")
    some, other = (0x01, 0x02, 0x04, 0x10, 0x20), 4321  # owner, a user, group, mask, others
    entries = [entry.pack(tag, 6 if tag == 0x01 else 4, other if tag == 0x02 else 0xFFFFFFFF) for tag in some[:-1]]
    listed = b"".join([struct.pack("<I", 2), *entries, entry.pack(some[-1], 0, 0xFFFFFFFF)])
    name = "system.posix_acl_access"
    try:
        os.setxattr(node.manifest, name, listed)
    except OSError as error:
        pytest.skip(f"no access lists in {node.folder}: {error.strerror}")
    before = mode(node.manifest)
    assert code(node.configure()) == 0
    assert (os.getxattr(node.manifest, name), mode(node.manifest)) == (listed, before)
    assert code(node.revert()) == 0
    assert (os.getxattr(node.manifest, name), mode(node.manifest)) == (listed, before)


def test_the_authority_of_the_cluster_is_not_replaced_by_that_of_the_extender(node: Node) -> None:
    """The hard case: the folder of the cluster's own certificates, in which the original wrote no ca.crt."""
    node.certs.mkdir()
    for name in ("ca.crt", "ca.key"):
        (node.certs / name).write_text(f"{name} of the cluster")
    before = node.state()
    words = f"{node.certs}/ca.crt may be that of others, as ca.key beside it: give a folder of its own with -cert-dir"
    assert words in node.configure("-dry-run").stderr
    refused = node.configure()
    assert (code(refused), message(refused), node.state()) == (1, words, before)
    (node.certs / "ca.crt").write_bytes(AUTHORITY.certificate)  # the one of the cluster for both: nothing is replaced
    assert code(node.configure()) == 0


def test_a_renewed_certificate_replaces_that_of_the_scheduler_also_beside_keys_of_others(node: Node) -> None:
    """The hard case: the folder of the cluster's own certificates, which a run before has taken."""
    node.certs.mkdir()
    (node.certs / "apiserver.key").write_text("of the cluster")
    (node.certs / "ca.crt").write_bytes(AUTHORITY.certificate)
    (node.certs / "client.crt").write_text("of others, as long as the scheduler does not mount it")
    before = node.state()
    words = f"{node.certs}/client.crt may be that of others, as apiserver.key beside it"
    refused = node.configure()
    assert (code(refused), node.state()) == (1, before)
    assert message(refused).startswith(words)
    (node.certs / "client.crt").unlink()
    assert code(node.configure()) == 0
    renewed = AUTHORITY.client("system:kube-scheduler")
    node.pki(renewed)
    again = node.configure()
    assert code(again) == 0, message(again)
    assert (node.certs / "client.crt").read_bytes() == renewed.certificate
    assert (node.certs / "client.key").read_bytes() == renewed.key
    node.pki(renewed, renewed.certificate + AUTHORITY.certificate)
    assert message(node.configure()).startswith(f"{node.certs}/ca.crt may be that of others")


def test_a_file_of_another_kind_is_not_replaced(node: Node) -> None:
    """The hard case: -f has the name of the scheduler's kubeconfig, and the file takes this name."""
    kubeconfig = node.config.with_name("scheduler.conf")
    kubeconfig.write_text("apiVersion: v1\nkind: Config\n")
    template = node.folder / kubeconfig.name
    template.write_text("kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\n")
    before = node.state()
    refused = node.configure("-f", str(template), "--replace", "--extender", "telemetry")
    assert message(refused).startswith(f"{kubeconfig}: is a Config, and no KubeSchedulerConfiguration")
    assert (code(refused), node.state()) == (1, before)


def test_a_configuration_that_somebody_writes_meanwhile_is_not_overwritten(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\n"
    node.config.write_text(head)

    def checked_slowly(*arguments: Any, **more: Any) -> Any:
        node.config.write_text(f"{head}parallelism: 8\n")
        return checked(*arguments, **more)

    monkeypatch.setattr("cli.configure.planning.checked", checked_slowly)
    assert message(node.configure()) == f"{node.config}: has changed meanwhile; every file is as before"
    assert node.config.read_text() == f"{head}parallelism: 8\n"
    assert node.manifest.read_text() == KUBEADM


@pytest.mark.parametrize("mode_before", [0o600, 0o640, 0o644])
@pytest.mark.parametrize("is_template", [False, True])
def test_a_copy_of_a_configuration_is_for_everybody_only_if_the_configuration_is(
    node: Node, mode_before: int, *, is_template: bool
) -> None:
    """It may have a private key, keyData."""
    own = node.folder / "own.yaml"
    own.write_text(
        "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\n"
        "extenders: [{urlPrefix: 'https://o:1', filterVerb: f, tlsConfig: {keyData: U0VDUkVU, certData: U0VD}}]\n"
    )
    own.chmod(mode_before)
    if not is_template:
        mounts, volumes = "    volumeMounts:\n", "  volumes:\n"
        node.manifest.write_text(
            KUBEADM.replace("--leader-elect=true", f"--config={own}")
            .replace(mounts, f"{mounts}    - {{name: own, mountPath: {own}}}\n")
            .replace(volumes, f"{volumes}  - {{name: own, hostPath: {{path: {own}, type: File}}}}\n")
        )
    result = node.configure(*(["-f", str(own)] if is_template else []))
    assert code(result) == 0, message(result)
    copy = node.config.with_name(own.name if is_template else node.config.name)
    assert "U0VDUkVU" in copy.read_text()
    assert mode(copy) == (0o644 if mode_before == 0o644 else 0o600)
    if is_template:
        to = str(node.folder / "kubeadm")
        assert code(tas("configure", "kubeadm", "--kube-version", "1.31", "--to", to, "-f", str(own))) == 0
        assert mode(node.folder / "kubeadm" / own.name) == mode(copy)


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
def test_new_files_and_folders_have_the_same_modes_with_each_umask(node: Node, umask: int) -> None:
    """A scheduler that is not root must get into the folder of its certificates, also where root makes nothing for
    others.
    """
    node.certs = node.folder / "new" / "certs"
    previous = os.umask(umask)
    try:
        assert code(node.configure()) == 0
        (backup,) = node.backups()
        found = {path: mode(path) for path in (node.certs, node.certs.parent, backup, *backup.iterdir())}
        assert [found.pop(path) for path in (node.certs, node.certs.parent, backup)] == [0o755, 0o755, 0o700]
        assert set(found.values()) == {0o600}
        assert [mode(node.certs / name) for name in ("client.key", "client.crt", "ca.crt")] == [0o600, 0o644, 0o644]
        assert mode(node.config) == 0o644
        node.pki(AUTHORITY.client("system:kube-scheduler"))
        assert code(node.configure()) == 0
        shutil.rmtree(node.certs.parent)
        assert code(node.revert("--backup", str(node.backups()[-1]))) == 0
        assert [mode(path) for path in (node.certs, node.certs.parent)] == [0o755, 0o755]
    finally:
        os.umask(previous)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
@pytest.mark.parametrize("place", ["pod", "container"])
def test_a_scheduler_that_is_not_root_can_read_its_key(node: Node, place: str) -> None:
    """As with RootlessControlPlane of kubeadm: a scheduler that cannot read its key exits (facts.md c74)."""
    old, new = {
        "pod": ("  securityContext:\n", "  securityContext:\n    runAsUser: 4321\n"),
        "container": ("    resources:\n", "    securityContext: {runAsUser: 4321}\n    resources:\n"),
    }[place]
    assert KUBEADM.count(old) == 1
    node.manifest.write_text(KUBEADM.replace(old, new))
    assert code(node.configure()) == 0
    key = node.certs / "client.key"
    assert (mode(key), key.stat().st_uid) == (0o600, 4321)
    assert (node.certs / "client.crt").stat().st_uid == 0
    os.chown(key, 0, 0)
    node.pki(AUTHORITY.client("system:kube-scheduler"))
    before = node.state()
    words = f"{key}: the scheduler runs as user 4321, and cannot read it: chown 4321 {key}"
    assert words in node.configure("-dry-run").stderr
    refused = node.configure()
    assert (code(refused), message(refused), node.state()) == (1, words, before)
    os.chown(key, 4321, 0)
    assert code(node.configure()) == 0
    assert (mode(key), key.stat().st_uid) == (0o600, 4321)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a folder that another user cannot enter")
def test_a_folder_that_a_scheduler_who_is_not_root_cannot_enter_is_refused(node: Node) -> None:
    """It would not start. The folder of an earlier run with a umask of 077 is such a one."""
    node.manifest.write_text(KUBEADM.replace("  securityContext:\n", "  securityContext:\n    runAsUser: 4321\n"))
    node.certs.mkdir(mode=0o700)
    words = f"{node.certs}: the scheduler runs as user 4321, and cannot read what is in it: chmod 755 {node.certs}"
    before = node.state()
    assert words in node.configure("-dry-run").stderr
    refused = node.configure()
    assert (code(refused), message(refused), node.state()) == (1, words, before)
    os.chown(node.certs, 4321, 0)
    assert code(node.configure("-dry-run")) == 0
    os.chown(node.certs, 0, 0)
    assert code(node.configure("--telemetry-url", "http://tas:9001")) == 0, "without certificates nobody reads it"
    node.certs.chmod(0o711)
    assert code(node.configure()) == 0


def test_a_policy_need_not_be_readable_for_the_scheduler(node: Node) -> None:
    """Who applies it reads it; the scheduler reads it from the API server."""
    policy = node.config.with_name("scheduler-extender-policy.yaml")
    policy.write_text("")
    policy.chmod(0o600)
    of_another = KUBEADM.replace("  securityContext:\n", "  securityContext:\n    runAsUser: 4321\n")
    node.manifest.write_text(of_another.replace(":v1.28.3", ":v1.22.3"))
    done = node.configure("--policy-configmap", "--telemetry-url", "http://tas:9001")
    assert code(done) == 0, message(done)
    assert "kind: ConfigMap" in policy.read_text()


def test_a_file_that_this_user_may_not_look_for_is_an_error_of_one_line(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists

    def refused(path: Path) -> bool:
        if path == node.manifest:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", refused)
    result = node.configure("-dry-run")
    assert (code(result), message(result)) == (1, f"{node.manifest}: Permission denied")


@pytest.mark.parametrize("name", ["config", "certificate", "template", "backup"])
def test_a_symbolic_link_is_refused_wherever_a_file_is_read_or_written(node: Node, name: str) -> None:
    """The hard case: a file of a backup that has become one since."""
    configuration = "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\n"
    elsewhere = node.folder / "elsewhere.yaml"
    elsewhere.write_text(configuration)
    template = node.folder / "template.yaml"
    link = {
        "config": node.config,
        "certificate": node.certs / "client.key",
        "template": template,
        "backup": node.config,
    }
    if name == "backup":
        node.configure()
        node.config.unlink()
    link[name].parent.mkdir(exist_ok=True)
    link[name].symlink_to(elsewhere)
    before = node.state()
    result = (
        node.revert() if name == "backup" else node.configure(*(["-f", str(template)] if name == "template" else []))
    )
    assert message(result).startswith(f"{link[name]}: is a symbolic link to {elsewhere}: give the file itself")
    assert (code(result), node.state()) == (1, before)


def test_a_folder_of_manifests_may_be_a_symbolic_link(node: Node) -> None:
    folder = node.folder / "static"
    node.manifest.parent.rename(folder)
    node.manifest.parent.symlink_to(folder)
    assert code(node.configure()) == 0
    assert f"--config={node.config}" in (folder / node.manifest.name).read_text()
    assert code(node.revert()) == 0
    assert node.manifest.read_text() == KUBEADM


def test_a_read_only_manifest_is_refused(node: Node) -> None:
    node.manifest.chmod(0o400)
    before = node.state()
    assert "is read-only" in message(node.configure())
    assert node.state() == before


# Revert, verify


def test_revert_restores_every_file_and_deletes_what_did_not_exist(node: Node) -> None:
    before = {path: found for path, found in node.state().items() if "backups" not in path}
    node.configure()
    node.manifest.chmod(0o644)
    assert code(node.revert("-dry-run")) == 0
    assert node.config.exists()
    result = node.revert()
    assert code(result) == 0, message(result)
    after = {path: found for path, found in node.state().items() if "backups" not in path}
    assert {path: found for path, found in after.items() if path != str(node.certs)} == before
    assert "deleted" in result.stdout
    assert code(node.revert()) == 0


@pytest.mark.parametrize(
    "name", ["a byte order mark and line ends of Windows", "no line end at the end", "JSON", "an alias of the command"]
)
def test_revert_gives_back_each_byte_of_an_odd_manifest(node: Node, name: str) -> None:
    content = EDITED[name].encode()
    node.manifest.write_bytes(content)
    assert code(node.configure()) == 0
    assert node.manifest.read_bytes() != content
    assert code(node.revert()) == 0
    assert node.manifest.read_bytes() == content


def test_revert_does_not_overwrite_what_an_upgrade_has_written(node: Node) -> None:
    """The hard case: the backup has the manifest of the version before the upgrade."""
    node.configure()
    node.manifest.write_text(KUBEADM.replace("v1.28.3", "v1.29.0"))
    before = node.state()
    result = node.revert()
    assert code(result) == 1
    assert str(node.manifest) in message(result)
    assert node.state() == before
    assert "is lost" in node.revert("-dry-run").stderr
    assert code(node.revert("--backup", str(node.backups()[0]))) == 0
    assert node.manifest.read_text() == KUBEADM


def test_a_backup_of_another_user_is_none(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder such as /tmp everybody could make the newest backup, and so choose what root writes."""
    node.configure()
    before = node.state()
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    text = f"{node.folder / 'backups'}: has no backup of this user; --backup DIR takes any"
    assert (code(node.revert()), message(node.revert())) == (1, text)
    assert node.state() == before


def test_revert_takes_the_newest_backup_or_the_named_one(node: Node) -> None:
    node.configure()
    node.configure("--weight", "20")
    first, second = node.backups()
    assert str(second) in node.revert("-dry-run").stdout
    assert code(node.revert("--backup", str(second))) == 0
    assert "weight: 5 " in node.config.read_text()
    assert code(node.revert("--backup", str(first))) == 0
    assert node.manifest.read_text() == KUBEADM


@pytest.mark.parametrize("fault", ["none", "no index", "half an index", "a changed file", "a missing file"])
def test_an_incomplete_backup_restores_nothing(node: Node, fault: str) -> None:
    if fault != "none":
        node.configure()
        (backup,) = node.backups()
        if fault == "no index":
            (backup / "index.json").unlink()
        elif fault == "half an index":
            (backup / "index.json").write_text('{"created"')
        elif fault == "a changed file":
            (backup / "kube-scheduler.yaml").write_text("x")
        else:
            (backup / "kube-scheduler.yaml").unlink()
    before = node.state()
    assert code(node.revert()) == 1
    assert node.state() == before


def test_facts_K39_verify_reports_what_an_upgrade_of_kubeadm_has_lost(node: Node) -> None:
    node.configure()
    assert code(node.verify()) == 0
    node.manifest.write_text(KUBEADM)
    result = node.verify()
    assert code(result) == 3
    for words in ("--config=", "volumeMounts", "volumes", "dnsPolicy"):
        assert words in result.stdout
    assert code(node.configure()) == 0
    assert code(node.verify()) == 0


def test_a_copy_of_the_manifest_in_its_folder_is_a_finding(node: Node) -> None:
    """The kubelet runs it as a second scheduler. The hard cases: a file with a dot, and another pod."""
    (node.manifest.parent / ".kube-scheduler.yaml.old").write_text(KUBEADM)
    (node.manifest.parent / "other.yaml").write_text("kind: Pod\nspec: {containers: [{name: etcd}]}\n")
    (node.manifest.parent / "notes.txt").write_text("{no yaml")
    assert "has a scheduler" not in node.configure().stderr
    copy = node.manifest.with_name("kube-scheduler.yaml.bak")
    copy.write_text(KUBEADM)
    found = [line for line in node.configure("-dry-run").stderr.splitlines() if "has a scheduler" in line]
    assert found == [f"note: {copy}: has a scheduler, too: the kubelet runs each file of this folder"]
    result = node.verify()
    assert code(result) == 3
    assert f"{copy}: is a second scheduler" in result.stdout
    copy.unlink()
    assert code(node.verify()) == 0
    elsewhere = node.folder / "elsewhere.yaml"
    elsewhere.write_text(KUBEADM)
    copy.symlink_to(elsewhere)
    assert f"{copy}: is a second scheduler" in node.verify().stdout


def test_profiles_survive_a_manifest_that_kubeadm_wrote_anew(node: Node) -> None:
    node.config.write_text(
        "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\nprofiles: [{schedulerName: p}]\n"
    )
    node.configure("-f", str(node.config), "--extender", "telemetry")
    node.manifest.write_text(KUBEADM)
    node.configure()
    assert "profiles: [{schedulerName: p}]" in node.config.read_text()


# Other outputs


def test_the_files_for_kubeadm(node: Node) -> None:
    to = node.folder / "kubeadm"
    assert code(tas("configure", "kubeadm", "--to", str(to), "--kube-version", "1.31", "-d", "/d")) == 0
    assert sorted(str(path.relative_to(to)) for path in to.rglob("*.yaml")) == [
        "cluster-configuration.yaml",
        "init-phase.yaml",
        "patches/kube-scheduler+strategic.yaml",
        "scheduler-config.yaml",
    ]
    assert "value: /d/scheduler-config.yaml" in (to / "cluster-configuration.yaml").read_text()
    assert code(tas("configure", "kubeadm", "--to", str(to), "--kube-version", "x")) == 2


def test_a_second_scheduler_is_printed() -> None:
    result = tas("configure", "deployment", "--image", "r/kube-scheduler:v1.30.4", "--name", "second")
    assert code(result) == 0
    assert "schedulerName: second" in result.stdout
    assert code(tas("configure", "deployment", "--image", "r/kube-scheduler:latest")) == 1
    assert code(tas("configure", "deployment", "--image", "r/k:v1.30.4", "--name", "default-scheduler")) == 2
    assert result.stderr == ""
    itself = tas("configure", "deployment", "--image", "r/k:v1.30.4", "--telemetry-url", "http://127.0.0.1:9001")
    assert "note: http://127.0.0.1:9001 is the pod of this scheduler itself: add a container" in itself.stderr
