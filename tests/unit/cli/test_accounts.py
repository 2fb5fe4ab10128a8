"""The rights of each account: those in deploy/rbac, and what `tas doctor` says of one that lacks some."""

from pathlib import Path

import pytest
import yaml

from cli.doctor.cluster_facts import TOGETHER, accounts, rights_of
from tas.diagnosis.finding import Missing, Severity
from tas.diagnosis.rights import (
    CUSTOM_METRICS,
    ORIGINAL,
    SELF,
    Reviewed,
    Right,
    check_rights,
)
from tests.unit.tas.diagnosis.found import bad, one

RBAC = Path(__file__).parents[3] / "deploy" / "rbac"


def reviewed(account: str, *lacking: Right) -> Reviewed:
    return Reviewed(account=account, allowed={right: right not in lacking for right in rights_of(account)})


@pytest.mark.parametrize("account", accounts())
def test_the_rights_are_those_of_deploy_rbac(account: str) -> None:
    documents = yaml.safe_load_all((RBAC / f"{account.removeprefix('tas-')}.yaml").read_text())
    roles = [each for each in documents if each["kind"] in ("ClusterRole", "Role")]
    assert {role["metadata"]["name"] for role in roles} == {account}
    written = {
        Right(verb, resource, group, role["metadata"].get("namespace", ""))
        for role in roles
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
        if group != CUSTOM_METRICS
    }
    assert set(rights_of(account)) == written


def test_each_file_of_deploy_rbac_is_known() -> None:
    assert {path.name for path in RBAC.glob("*.yaml")} == {
        "original.yaml",
        *(f"{account.removeprefix('tas-')}.yaml" for account in accounts()),
    }


def test_the_account_of_the_original_needs_three_roles() -> None:
    together = {right for name in TOGETHER for right in accounts()[f"tas-{name}"]}
    assert set(rights_of(ORIGINAL)) == together == set(rights_of(SELF))


def test_all_rights_are_no_finding() -> None:
    assert bad(check_rights([reviewed("tas-watch"), reviewed("tas-labels")])) == {}


def test_a_missing_right_is_named_with_the_file_that_gives_it() -> None:
    lacking = reviewed("tas-marks", Right("patch", "nodes/status"), Right("list", "taspolicies", "telemetry.intel.com"))
    found = one(check_rights([lacking]), "rights.accounts")
    assert found.severity is Severity.ERROR
    assert found.what == "tas-marks may not: list taspolicies.telemetry.intel.com, patch nodes/status"
    assert found.run == "tas files --to tas-files && kubectl apply -f tas-files/rbac/marks.yaml"


def test_a_right_in_one_namespace_is_named_with_it() -> None:
    (right,) = (right for right in rights_of("tas-labels") if right.namespace)
    found = one(check_rights([reviewed("tas-labels", right)]), "rights.accounts")
    assert found.what == "tas-labels may not: create events in namespace default"


def test_the_user_of_the_kubeconfig_and_the_original_account_get_several_roles() -> None:
    own = one(check_rights([reviewed(SELF, Right("patch", "nodes"))]), "rights.accounts")
    assert own.what == "the user of the kubeconfig may not: patch nodes"
    assert own.run.endswith("&& kubectl apply -f tas-files/rbac")
    original = one(check_rights([reviewed(ORIGINAL, Right("patch", "nodes"))]), "rights.accounts")
    names = ("watch", "labels", "collect", "original")
    assert original.run.endswith(" ".join(f"-f tas-files/rbac/{name}.yaml" for name in names))


def test_without_facts_nothing_is_ok() -> None:
    assert bad(check_rights(Missing("403"))) == {"rights.accounts": Severity.UNKNOWN}
