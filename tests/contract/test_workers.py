"""Every worker of the registry has what an installation needs to run it."""

import re
from collections.abc import Iterator
from functools import cache

import click
import yaml
from chart_workers import FILE, rendered

from cli.run import run, run_all
from tas.diagnosis.processes import WITHOUT
from tests.installed import ROOT
from workers.names import ALL_WORKERS, run_by, workers_of
from workers.registry import WORKERS
from workers.roles import ROLES
from workers.spec import WorkerSpec


@cache
def text(path: str) -> str:
    return (ROOT / path).read_text()


def missing(spec: WorkerSpec) -> Iterator[str]:
    """What a worker needs beside its entry and its class, and does not have."""
    name = spec.name
    if spec.in_all is not None and spec.port is not None and name not in re.findall(r"\w+", run_all().help or ""):
        yield f"cli/run.py: {name} in the help of `tas run all`"
    if spec.port is not None:
        yield from missing_of_command(spec)


def missing_of_command(spec: WorkerSpec) -> Iterator[str]:
    name = spec.name
    if name not in {*WITHOUT, "machine"}:
        yield f"tas/diagnosis/processes.py: what is lost without {name}"
    if f"\n### tas run {name}\n" not in text("docs/reference/commands.md"):
        yield f"docs/reference/commands.md: tas run {name} (make docs)"
    if not re.search(rf"`(tas-)?{name}`", text("docs/reference/accounts.md")):
        yield f"docs/reference/accounts.md: the account of {name}, or that it needs none"
    # The Procfile has the form for a cluster: its policies come from `watch`.
    if name != "policies" and not re.search(rf"^{name}: exec tas run {name} ", text("Procfile"), re.MULTILINE):
        yield f"Procfile: {name}"
    if spec.in_cluster:
        yield from missing_in_chart(spec)
    if spec.needs_kubernetes and not spec.account:
        yield f"workers/{name}/__init__.py: the rights of tas-{name} in account"
    if spec.needs_kubernetes:
        files = (f"deploy/rbac/{name}.yaml", f"deploy/chart/files/rbac/{name}.yaml")
        yield from (file for file in files if not (ROOT / file).exists())


def missing_in_chart(spec: WorkerSpec) -> Iterator[str]:
    name = spec.name
    if name not in yaml.safe_load(text("deploy/chart/values.yaml"))["processes"]:
        yield f"deploy/chart/values.yaml: processes.{name}"
    if not re.search(rf'^        "{name}": \{{"\$ref": "#/definitions/process"\}}', text(SCHEMA), re.MULTILINE):
        yield f"{SCHEMA}: {name}"


SCHEMA = "deploy/chart/values.schema.json"


def test_no_worker_lacks_a_part() -> None:
    assert [part for spec in WORKERS.values() for part in missing(spec)] == []


def test_the_chart_has_of_each_worker_what_its_folder_says() -> None:
    assert FILE.read_text() == rendered(), "run: python release/chart_workers.py"


def test_a_folder_is_named_as_its_worker_and_each_has_a_role_a_command_and_a_port_of_its_own() -> None:
    assert {name: spec.name for name, spec in WORKERS.items()} == {name: name for name in WORKERS}
    with_specs = {path.parent.name for path in ROOT.glob("workers/*/__init__.py") if "SPEC = " in path.read_text()}
    assert with_specs == {*WORKERS}
    commands = {name for name, spec in WORKERS.items() if spec.port is not None}
    assert set(run.list_commands(click.Context(run))) == {"all", "bus", *commands}
    assert {role for role, each in ROLES.items() if each.workers} == {ALL_WORKERS, *commands} - {"machine"}
    assert workers_of("watch") == run_by("watch") == ("watch", "status")
    assert workers_of("status") == workers_of("machine") == workers_of("reader") == ()
    ports = [spec.port for spec in WORKERS.values() if spec.port is not None]
    assert len({*ports}) == len(ports)
