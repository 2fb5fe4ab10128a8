"""Every worker of the registry has what an installation needs to run it."""

import re
from collections.abc import Iterator
from functools import cache

import yaml

from bus.rights.roles import ROLES
from bus.rights.roles import WORKERS as RIGHTS
from cli.run import run, run_all
from cli.workers.registry import WORKERS, WorkerSpec, defaults_of, run_by
from tas.diagnosis.rights import ACCOUNTS
from tests.installed import ROOT


@cache
def text(path: str) -> str:
    return (ROOT / path).read_text()


def missing(spec: WorkerSpec) -> Iterator[str]:
    """What a worker needs beside its entry and its class, and does not have."""
    name = spec.name
    if name not in RIGHTS:
        yield f"bus/rights/roles.py: the rights of {name} in WORKERS"
    if (spec.role or name) not in ROLES:
        yield f"bus/rights/roles.py: the role of {name} in ROLES"
    if spec.in_all is not None and not spec.beside and name not in re.findall(r"\w+", run_all.help or ""):
        yield f"cli/run.py: {name} in the help of `tas run all`"
    if not spec.beside:
        yield from missing_of_command(spec)


def missing_of_command(spec: WorkerSpec) -> Iterator[str]:
    name = spec.name
    if f"\n### tas run {name}\n" not in text("docs/reference/commands.md"):
        yield f"docs/reference/commands.md: tas run {name} (make docs)"
    if not re.search(rf"`(tas-)?{name}`", text("docs/reference/accounts.md")):
        yield f"docs/reference/accounts.md: the account of {name}, or that it needs none"
    # The Procfile has the form for a cluster: its policies come from `watch`.
    if name != "policies" and not re.search(rf"^{name}: exec tas run {name} ", text("Procfile"), re.MULTILINE):
        yield f"Procfile: {name}"
    if spec.in_cluster:
        yield from missing_in_chart(spec)
    if spec.needs_kubernetes and f"tas-{name}" not in ACCOUNTS:
        yield f"tas/diagnosis/rights.py: the rights of tas-{name} in ACCOUNTS"
    if spec.needs_kubernetes and not (ROOT / "deploy" / "rbac" / f"{name}.yaml").exists():
        yield f"deploy/rbac/{name}.yaml"


def missing_in_chart(spec: WorkerSpec) -> Iterator[str]:
    name = spec.name
    if name not in yaml.safe_load(text("deploy/chart/values.yaml"))["processes"]:
        yield f"deploy/chart/values.yaml: processes.{name}"
    if not re.search(rf'^        "{name}": \{{"\$ref": "#/definitions/process"\}}', text(SCHEMA), re.MULTILINE):
        yield f"{SCHEMA}: {name}"
    line = re.search(rf"^{name}: (\{{.*\}})$", text(HELPERS), re.MULTILINE)
    if line is None:
        yield f"{HELPERS}: {name}"
        return
    process = yaml.safe_load(line[1])
    if spec.needs_kubernetes and process.get("account") != name:
        yield f"{HELPERS}: the account of {name}"
    listen = defaults_of("listen").get(f"run {name}", "127.0.0.1:9001")
    if spec.listens and process.get("port") != int(listen.rpartition(":")[2]):
        yield f"{HELPERS}: the port of {name}"


SCHEMA = "deploy/chart/values.schema.json"
HELPERS = "deploy/chart/templates/_helpers.tpl"


def test_no_worker_lacks_a_part() -> None:
    assert [part for spec in WORKERS.values() for part in missing(spec)] == []


def test_nothing_else_has_the_rights_of_a_worker_or_a_command() -> None:
    assert RIGHTS.keys() == WORKERS.keys()
    assert run.commands.keys() == {"all", "bus", *(name for name, spec in WORKERS.items() if not spec.beside)}
    assert run_by("watch") == ("watch", "status")
    ports = [spec.port for spec in WORKERS.values() if not spec.beside]
    assert len({*ports, None}) == len(ports) + 1, "each command has a default health port of its own"
