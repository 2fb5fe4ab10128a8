"""A command imports only what it needs: imports are most of its start time, and much of the memory of a worker.

The modules of a new process are counted, not its time, which depends on the machine and its load.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from cli import COMMANDS, cli
from cli.groups import LazyGroup

ROOT = Path(__file__).parents[3]

OURS = frozenset({"bus", "cli", "sandbox", "tas", "workers"})

TERMINAL = frozenset({"click", "workers.process"})
RECORDS = frozenset({"msgspec", "typing_extensions"})
SETTINGS = TERMINAL | RECORDS | {"workers.ingest"}
BUS = SETTINGS | {"asyncio", "nats", "orjson", "structlog", "uvloop"}
TABLES = BUS | {"attr", "pygments", "rich"}  # which structlog makes rich load
EXPLAIN = TABLES | {"workers.following"}
HTTP = frozenset(
    {"aiohappyeyeballs", "aiohttp", "aiosignal", "attr", "frozenlist", "idna", "multidict", "propcache", "yarl"}
)
WORKER = BUS | HTTP | {"prometheus_client"}
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
    "crd": Start(TERMINAL | RECORDS | {"workers.kubernetes"}, 70),
    "files": Start(TERMINAL, 25),
    "docs --help": Start(SETTINGS | {"orjson"}, 121),
    "policy lint --json deploy/policies/demo-policy.yaml": Start(
        TERMINAL | RECORDS | {"orjson", "workers.watching", "yaml"}, 75
    ),
    "run --help": Start(SETTINGS, 101),
    "run all --help": Start(SETTINGS, 101),
    "run extender --help": Start(SETTINGS, 101),
    "run labels --help": Start(SETTINGS, 101),
    "bus --help": Start(SETTINGS, 107),
    "bus url": Start(SETTINGS, 106),
    "bus init --help": Start(SETTINGS | {"cryptography"}, 180),
    "bus check --help": Start(BUS | HTTP | {"cryptography", "workers.kubernetes", "yaml"}, 386),
    "publish --help": Start(SETTINGS | {"orjson"}, 117),
    "publish node-1 a=1": Start(BUS, 241),
    "get nodes": Start(TABLES, 326),
    "events": Start(BUS, 242),
    "explain --help": Start(EXPLAIN, 357),
    "explain node node-1": Start(EXPLAIN, 356),
    "explain pod pod-1": Start(EXPLAIN | HTTP, 427),
    "trace node-1 a": Start(TABLES, 325),
    "pause": Start(BUS, 236),
    "status": Start(BUS | HTTP | {"workers.kubernetes", "yaml"}, 400),
    "dismiss labels": Start(BUS, 242),
    "support --help": Start(BUS | HTTP | {"cryptography", "prometheus_client", "workers.kubernetes", "yaml"}, 470),
    "doctor --help": Start(BUS | HTTP | {"cryptography", "prometheus_client", "workers.kubernetes", "yaml"}, 462),
    "certs --help": Start(TERMINAL | {"cryptography", "orjson"}, 95),
    "configure --help": Start(TERMINAL | RECORDS | {"cryptography", "orjson", "yaml"}, 160),
    "top --help": Start(EXPLAIN | HTTP | {"prometheus_client"}, 465),
}

WORKERS = {
    "materialize": Start(WORKER | {"workers.following"}, 381),
    "policies --policies DIR": Start(
        WORKER | {"anyio", "watchfiles", "workers.following", "workers.watching", "yaml"}, 432
    ),
    "evaluate": Start(WORKER | {"workers.enforcing", "workers.following"}, 395),
    "events": Start(WORKER | {"workers.following", "workers.publishing"}, 381),
    "keeper": Start(WORKER, 362),
    "machine --node node-1": Start(WORKER | {"psutil"}, 340),
    "windows": Start(WORKER | {"fastdigest", "numpy", "workers.following"}, 481),
    "extender --listen 127.0.0.1:0": Start(WORKER | {"workers.following", "workers.serving"}, 409),
    "agents --listen 127.0.0.1:0": Start(WORKER | {"numpy", "workers.following", "workers.serving", "yaml"}, 542),
    "collect --source prometheus=http://127.0.0.1:1": Start(WORKER | {"workers.following", "yaml"}, 417),
    "collect --source metrics-server --kubeconfig DIR/kubeconfig": Start(CLUSTER | {"workers.following"}, 460),
    "notify --sinks DIR/sinks": Start(WORKER | {"workers.publishing", "yaml"}, 411),
    "watch --kubeconfig DIR/kubeconfig": Start(CLUSTER | {"workers.following", "workers.watching"}, 452),
    "labels --kubeconfig DIR/kubeconfig": Start(CLUSTER | {"workers.enforcing", "workers.following"}, 462),
    "marks --kubeconfig DIR/kubeconfig": Start(CLUSTER | {"workers.enforcing", "workers.following"}, 455),
    "resources --kubeconfig DIR/kubeconfig": Start(CLUSTER | {"workers.enforcing"}, 446),
    "inventory --kubeconfig DIR/kubeconfig": Start(
        CLUSTER | {"workers.enforcing", "workers.following", "workers.watching"}, 479
    ),
    "evictions --kubeconfig DIR/kubeconfig": Start(CLUSTER | {"workers.enforcing", "workers.following"}, 447),
    "gpu --kubeconfig DIR/kubeconfig --listen 127.0.0.1:0": Start(
        CLUSTER | {"workers.following", "workers.serving"}, 469
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

STARTED = """
import sys

if sys.argv.pop(1) == "deployed":
    sys.modules["rich"] = None

from cli import main

sys.argv[0] = "tas"
try:
    main()
finally:
    print(*(name for name, module in sys.modules.items() if module is not None), file=sys.stderr)
"""


def environment(folder: Path) -> dict[str, str]:
    """That of a user for whom no bus is announced."""
    return {"PATH": "", "TAS_BUS": NO_BUS, "XDG_RUNTIME_DIR": str(folder)}


def imported(folder: Path, *arguments: str, tables: bool = False) -> list[str]:
    """The modules of a new process at the end of this command, without those of the standard library but asyncio.

    Only with `tables` the process has rich, as where TAS is tried out: structlog loads it wherever it is installed.
    """
    ran = subprocess.run(
        [sys.executable, "-c", STARTED, "tried" if tables else "deployed", *arguments],
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ran.stderr
    return counted(ran.stderr.splitlines()[-1].split())


def started(folder: Path, *arguments: str) -> list[str]:
    """The modules of a new process once its workers work, as `imported` has them."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTED, "deployed", "run", *arguments, "--health-listen", "127.0.0.1:0"],
        cwd=ROOT,
        env=environment(folder),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if '"workers_started"' in line:
                process.terminate()
        assert process.wait() == 0, lines
    return counted(lines[-1].split())


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


def assert_starts(modules: list[str], start: Start) -> None:
    packages = packages_of(modules)
    extra = packages.keys() - start.packages
    assert not extra, {name: [each for each in modules if f"{each}.".startswith(f"{name}.")][:3] for name in extra}
    assert len(modules) <= start.modules, sorted(modules)


@pytest.mark.parametrize("command", STARTS)
def test_a_command_imports_only_its_packages_and_few_modules(command: str, tmp_path: Path) -> None:
    modules = imported(tmp_path, *command.split(), tables="rich" in STARTS[command].packages)
    assert "click" in modules
    assert_starts(modules, STARTS[command])


@pytest.mark.parametrize("command", WORKERS)
def test_a_worker_imports_only_its_packages_and_few_modules(command: str, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    (tmp_path / "sinks").write_text(SINKS)
    modules = started(tmp_path, *(word.replace("DIR", str(tmp_path)) for word in command.split()))
    assert_starts(modules, WORKERS[command])


def test_help_imports_no_command(tmp_path: Path) -> None:
    modules = imported(tmp_path, "--help")
    assert {name for name, each in COMMANDS.items() if f"cli.{each.module}" in modules} == set()


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
