"""A command imports only what it needs: imports are most of its start time, and much of the memory of a worker.

The modules of a process are counted, not its time, which depends on the machine and its load.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import click
import pytest

from cli import COMMANDS, cli
from cli.groups import LazyGroup
from workers.names import NAMES
from workers.registry import with_commands

ROOT = Path(__file__).parents[3]

OURS = frozenset({"bus", "cli", "lab", "tas", "workers"})

TERMINAL = frozenset({"click", "workers.process"})
RECORDS = frozenset({"msgspec", "typing_extensions"})
SETTINGS = (
    TERMINAL | RECORDS | {f"workers.{each}" for each in ("http", "names", "registry", "samples", "settings", "spec")}
)
FOLDERS = frozenset(f"workers.{name}" for name in NAMES)
BUS = SETTINGS | {"asyncio", "nats", "structlog", "uvloop", "workers.discovery"}
TABLES = BUS | {"rich"}
EXPLAIN = TABLES | {"orjson", "workers.following"}
HTTP = frozenset(
    {"aiohappyeyeballs", "aiohttp", "aiosignal", "attr", "frozenlist", "idna", "multidict", "propcache", "yarl"}
)
WORKER = BUS | HTTP | {"prometheus_client", "workers.context", "workers.runtime"}
CLUSTER = WORKER | {"six", "urllib3", "workers.kubernetes", "yaml"}


class Start(NamedTuple):
    """What a command may import: the packages beside those of the standard library, and how many modules of them.

    Of our packages the folders of `workers` are named, and of the standard library asyncio. The limit is a little more
    than what is imported now: whoever needs a higher one says why in the commit.
    """

    packages: frozenset[str]
    modules: int


STARTS = {
    "--version": Start(TERMINAL, 25),
    "--help": Start(TERMINAL, 25),
    "crd": Start(TERMINAL | RECORDS | {"workers.kubernetes"}, 71),
    "files": Start(TERMINAL, 25),
    "runbook TasWorkerMissing": Start(TERMINAL, 26),
    "docs --help": Start(SETTINGS, 110),
    "policy lint --json deploy/policies/demo-policy.yaml": Start(TERMINAL | RECORDS | {"yaml"}, 75),
    "run --help": Start(SETTINGS | FOLDERS, 115),
    "run all --help": Start(SETTINGS | FOLDERS, 115),
    "run extender --help": Start(SETTINGS | {"workers.extender"}, 94),
    "run labels --help": Start(SETTINGS | {"workers.labels"}, 94),
    "bus --help": Start(SETTINGS | {"workers.discovery"}, 96),
    "bus url": Start(SETTINGS | {"workers.discovery"}, 95),
    "bus init --help": Start(SETTINGS | FOLDERS | {"cryptography", "workers.discovery", "workers.roles"}, 183),
    "bus check --help": Start(BUS | FOLDERS | {"cryptography", "workers.following", "workers.roles"}, 291),
    "publish --help": Start(SETTINGS, 106),
    "publish node-1 a=1": Start(BUS, 237),
    "get nodes": Start(TABLES | {"workers.following"}, 293),
    "events": Start(BUS, 238),
    "explain --help": Start(EXPLAIN, 330),
    "explain node node-1": Start(EXPLAIN, 329),
    "explain pod pod-1": Start(EXPLAIN | HTTP, 414),
    "trace node-1 a": Start(EXPLAIN, 291),
    "pause": Start(BUS, 234),
    "status": Start(BUS | {"workers.following"}, 255),
    "dismiss labels": Start(BUS | {"workers.following"}, 236),
    "support --help": Start(BUS | {"workers.following"}, 251),
    "doctor --help": Start(BUS | {"workers.following"}, 255),
    "certs --help": Start(TERMINAL | RECORDS | {"cryptography", "workers.http"}, 101),
    "configure --help": Start(TERMINAL | RECORDS | {"cryptography", "workers.http", "yaml"}, 167),
    "top --help": Start(BUS, 232),
}

WHOLE = {
    "import cli.top.top cli.top.running": Start(TABLES | {"workers.following"}, 303),
    "import cli.doctor.doctor cli.doctor.examination": Start(
        BUS | HTTP | {"orjson", "workers.following", "workers.kubernetes"}, 376
    ),
    "import cli.support cli.support_archive": Start(
        BUS | HTTP | {"orjson", "workers.following", "workers.kubernetes"}, 383
    ),
}
"""What these commands import in all: the second module after the bus has answered, or nobody has for some seconds.

Only with certificates, files of a scheduler or a kubeconfig more is imported, and `top` when its first view is drawn.
"""

WORKERS = {
    "materialize": Start(WORKER | {"workers.following", "workers.materialize"}, 377),
    "policies --policies DIR": Start(
        WORKER | {"anyio", "watchfiles", "workers.following", "workers.policies", "yaml"}, 430
    ),
    "evaluate": Start(WORKER | {"workers.evaluate", "workers.following", "workers.reconcile"}, 396),
    "events": Start(WORKER | {"workers.events", "workers.following"}, 380),
    "keeper": Start(WORKER | {"workers.keeper"}, 360),
    "machine --node node-1": Start(WORKER | {"psutil", "workers.machine"}, 332),
    "windows": Start(WORKER | {"fastdigest", "numpy", "workers.following", "workers.windows"}, 474),
    "extender --listen 127.0.0.1:0": Start(
        WORKER | {"orjson", "workers.extender", "workers.following", "workers.scheduler"}, 412
    ),
    "agents --listen 127.0.0.1:0": Start(
        WORKER | {"numpy", "orjson", "workers.agents", "workers.following", "workers.scheduler", "yaml"}, 545
    ),
    "collect --source prometheus=http://127.0.0.1:1": Start(
        WORKER | {"workers.collect", "workers.following", "yaml"}, 418
    ),
    "collect --source metrics-server --kubeconfig DIR/kubeconfig": Start(
        CLUSTER | {"workers.collect", "workers.following"}, 465
    ),
    "notify --sinks DIR/sinks": Start(WORKER | {"workers.notify", "yaml"}, 410),
    "watch --kubeconfig DIR/kubeconfig": Start(CLUSTER | {"workers.following", "workers.status", "workers.watch"}, 456),
    "labels --kubeconfig DIR/kubeconfig": Start(
        CLUSTER | {"workers.following", "workers.labels", "workers.reconcile"}, 466
    ),
    "marks --kubeconfig DIR/kubeconfig": Start(
        CLUSTER | {"workers.following", "workers.marks", "workers.reconcile"}, 459
    ),
    "resources --kubeconfig DIR/kubeconfig": Start(CLUSTER | {"workers.reconcile", "workers.resources"}, 450),
    "inventory --kubeconfig DIR/kubeconfig": Start(CLUSTER | {"workers.following", "workers.inventory"}, 484),
    "evictions --kubeconfig DIR/kubeconfig": Start(
        CLUSTER | {"workers.evictions", "workers.following", "workers.reconcile"}, 451
    ),
    "gpu --kubeconfig DIR/kubeconfig --listen 127.0.0.1:0": Start(
        CLUSTER | {"orjson", "workers.following", "workers.gpu", "workers.scheduler"}, 477
    ),
}
"""Each worker with the flags that it demands, until it works without the bus that it waits for."""

NO_BUS = "nats://127.0.0.1:1"
"""Nothing listens there: a command that reads the bus ends with an error, after it has imported all for its start."""

KUBECONFIG = """
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
SINKS = "sinks: {alerts: {type: alertmanager, urls: [http://127.0.0.1:1]}}"

FORKED = """
import importlib, json, os, sys

from cli import main

for name in sys.argv[1:]:
    importlib.import_module(name)

for line in sys.stdin:
    words = json.loads(line)
    if (pid := os.fork()) == 0:
        print(os.getpid(), file=sys.stderr, flush=True)
        sys.argv = ["tas", *words]
        try:
            if words[0] == "import":
                for name in words[1:]:
                    importlib.import_module(name)
                sys.exit()
            main()
        finally:
            imported = [name for name, module in sys.modules.items() if module is not None]
            print("imported:", *imported, file=sys.stderr, flush=True)
    _, status = os.waitpid(pid, 0)
    print("ended:", os.waitstatus_to_exitcode(status), file=sys.stderr, flush=True)
"""


def environment(folder: Path) -> dict[str, str]:
    """That of a user for whom no bus is announced."""
    return {"PATH": "", "TAS_BUS": NO_BUS, "XDG_RUNTIME_DIR": str(folder)}


class Base:
    """A process that has imported what several commands import first, and is forked for each of them.

    All that it has imported counts for each command, so a number of modules may become too high by it, never too low.
    rich is installed here, as where TAS is tried out.
    """

    def __init__(self, folder: Path, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKED, *modules],
            cwd=ROOT,
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def imported(self, *arguments: str) -> list[str]:
        """The modules of a fork at the end of this command, without those of the standard library but asyncio."""
        lines, _ = self._run(arguments)
        return lines

    def started(self, *arguments: str) -> list[str]:
        """The modules of a fork once its workers work, as `imported` has them."""
        lines, code = self._run(("run", *arguments, "--health-listen", "127.0.0.1:0"), until='"workers_started"')
        assert code == 0, lines
        return lines

    def _run(self, words: Sequence[str], until: str | None = None) -> tuple[list[str], int]:
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stderr.readline())
        lines, modules = [], ""
        for line in self._process.stderr:
            lines.append(line)
            kind, _, rest = line.partition(": ")
            if until is not None and until in line:
                os.kill(pid, signal.SIGTERM)
            elif kind == "imported":
                modules = rest
            elif kind == "ended":
                break
        assert lines[-1].startswith("ended: "), lines
        assert not any("Traceback" in line for line in lines), lines
        return counted(modules.split()), int(rest)


def counted(modules: list[str]) -> list[str]:
    """Without the standard library, and without the names that only compiled modules and the installation leave."""
    tops = {name: name.partition(".")[0] for name in modules}
    return [
        name
        for name, top in tops.items()
        if top == "asyncio" or not (top in sys.stdlib_module_names or top.startswith("_") or top == "cython_runtime")
    ]


def packages_of(modules: list[str]) -> Counter[str]:
    """How many modules each package has, of those that `Start` names."""
    named: Counter[str] = Counter()
    for name in modules:
        top, _, rest = name.partition(".")
        if top == "workers" and rest:
            named[f"workers.{rest.partition('.')[0]}"] += 1
        elif top not in OURS:
            named[top] += 1
    return named


def excess(modules: list[str], start: Start) -> object:
    """What a command imports that it may not; None if nothing."""
    assert "click" in modules
    if extra := packages_of(modules).keys() - start.packages:
        return {name: [each for each in modules if f"{each}.".startswith(f"{name}.")][:3] for name in extra}
    return sorted(modules) if len(modules) > start.modules else None


def base_of(start: Start) -> str:
    """What a command with these packages imports first."""
    if "nats" in start.packages:
        return "bus.connection"
    return "workers.settings" if start.packages >= SETTINGS else "cli"


@pytest.mark.parametrize("base", sorted({base_of(start) for start in STARTS.values()}))
def test_a_command_imports_only_its_packages_and_few_modules(base: str, tmp_path: Path) -> None:
    starts = {command: start for command, start in (STARTS | WHOLE).items() if base_of(start) == base}
    with Base(tmp_path, base) as process:
        found = {command: excess(process.imported(*command.split()), start) for command, start in starts.items()}
    assert {command: each for command, each in found.items() if each} == {}


def test_each_worker_with_a_command_has_a_start() -> None:
    assert {command.split()[0] for command in WORKERS} == {spec.name for spec in with_commands()}


@pytest.mark.ci
def test_a_worker_imports_only_its_packages_and_few_modules(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    (tmp_path / "sinks").write_text(SINKS)
    with Base(tmp_path, "cli.wiring") as process:
        found = {
            command: excess(process.started(*command.replace("DIR", str(tmp_path)).split()), start)
            for command, start in WORKERS.items()
        }
    assert {command: each for command, each in found.items() if each} == {}


def test_help_imports_no_command(tmp_path: Path) -> None:
    with Base(tmp_path, "cli") as process:
        modules = process.imported("--help")
    assert {name for name, each in COMMANDS.items() if each.module in modules} == set()


@pytest.mark.parametrize("group", ["", "bus", "explain"])
def test_the_list_of_a_group_has_the_first_sentence_of_each_command(group: str) -> None:
    context = click.Context(cli)
    found = cli.get_command(context, group) if group else cli
    assert isinstance(found, LazyGroup)
    sentences = {}
    for name in found.lazy:
        command = found.get_command(context, name)
        assert command is not None
        sentences[name] = command.get_short_help_str(limit=1000)
    assert sentences == {name: command.help for name, command in found.lazy.items()}
