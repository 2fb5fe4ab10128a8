"""The files of `deploy/rbac` agree with each other, with the policies of `deploy/`, and with what each worker is."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from account_of_all import ACCOUNT, FILE, FOLDER, NAMESPACE, PARTS, rendered

from cli.doctor.cluster_facts import accounts
from tas.diagnosis.rights import CUSTOM_METRICS, ORIGINAL, rights_in
from workers.registry import WORKERS

DEPLOY = FOLDER.parent
PAGE = DEPLOY.parent / "docs" / "reference" / "accounts.md"
FILES = sorted(FOLDER.glob("*.yaml"))


def documents(path: Path, *kinds: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] in kinds]


def metrics(document: object) -> Iterator[str]:
    """The metrics of the rules, anywhere in a document."""
    if isinstance(document, dict):
        if isinstance(name := document.get("metricname"), str):
            yield name
        for below in document.values():
            yield from metrics(below)
    elif isinstance(document, list):
        for below in document:
            yield from metrics(below)


def test_the_account_of_run_all_has_the_rights_of_its_parts_and_no_other() -> None:
    assert FILE.read_text() == rendered(), "run: python release/account_of_all.py"


def test_run_all_has_each_worker_that_uses_the_api_server() -> None:
    alone = {name for name, spec in WORKERS.items() if spec.needs_kubernetes and spec.in_all is None}
    assert {f"tas-{part}" for part in PARTS} | {f"tas-{worker}" for worker in alone} | {ACCOUNT} == accounts().keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_binds_its_own_account_and_nobody_else(path: Path) -> None:
    (account,) = documents(path, "ServiceAccount")
    name = account["metadata"]["name"]
    assert account["metadata"]["namespace"] == NAMESPACE
    assert name == (ORIGINAL if path.stem == "original" else f"tas-{path.stem}")
    for binding in documents(path, "ClusterRoleBinding", "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]
        assert binding["roleRef"]["kind"] == binding["kind"].removesuffix("Binding")
    assert len(list(yaml.safe_load_all(path.read_text()))) == sum(
        len(documents(path, kind))
        for kind in ("ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding")
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_right_has_a_wildcard_or_is_one_to_gain_others(path: Path) -> None:
    rules = [rule for role in documents(path, "ClusterRole", "Role") for rule in role["rules"]]
    assert rules or path.stem == "original"
    for rule in rules:
        assert rule.keys() == {"apiGroups", "resources", "verbs"}
        assert "*" not in str(rule)
        assert set(rule["verbs"]) <= {"get", "list", "watch", "create", "patch"}
        assert not {"secrets", "serviceaccounts", "serviceaccounts/token"} & set(rule["resources"])
        assert "rbac.authorization.k8s.io" not in rule["apiGroups"]


def test_the_page_has_the_rights_of_each_account() -> None:
    rows = dict(re.findall(r"^\| `(tas-[a-z]+)` \| ([^|`]*: [^|`]*) \|$", PAGE.read_text(), re.MULTILINE))
    assert rows.keys() == accounts().keys() - {"tas-collect", ACCOUNT}
    for account, text in rows.items():
        assert set(rights_in(text)) == set(accounts()[account]), account


def test_collect_may_read_the_metrics_of_the_example_policies_and_no_other() -> None:
    (role,) = documents(FOLDER / "collect.yaml", "ClusterRole")
    rule = role["rules"][0]
    assert rule["apiGroups"] == [CUSTOM_METRICS]
    files = [*(DEPLOY / "policies").glob("*.yaml"), *(DEPLOY / "examples").rglob("policy.yaml")]
    used = {
        metric for path in files for document in documents(path, "TASPolicy") for metric in metrics(document["spec"])
    }
    assert len(used) > 10
    assert rule["resources"] == sorted(f"nodes/{metric}" for metric in used)
    (together,) = documents(FILE, "ClusterRole")
    assert together["rules"][0] == rule, "docs/how-to/sources.md adds a metric to the first rule of either role"
