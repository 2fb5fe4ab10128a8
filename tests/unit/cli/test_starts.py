"""A command imports only the packages that it needs: imports are most of its start time."""

import subprocess
import sys
from pathlib import Path

import click
import pytest

from cli import COMMANDS, cli

ROOT = Path(__file__).parents[3]

HEAVY = (
    "aiohttp",
    "asyncio",
    "cryptography",
    "google.protobuf",
    "kubernetes_asyncio",
    "nats",
    "numpy",
    "prometheus_client",
    "psutil",
    "rich",
    "structlog",
    "uvloop",
    "watchfiles",
)
"""Packages that take 5 ms and more to import, and that a command which only prints text does not use."""

IMPORTED = """
import sys
from contextlib import suppress

from cli import cli

with suppress(SystemExit):
    cli.main(sys.argv[1:], prog_name="tas", standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""


def imported(*arguments: str) -> set[str]:
    """The modules of a new interpreter after this command."""
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout
    return set(ran.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("crd",),
        ("files",),
        ("docs", "--help"),
        ("policy", "lint", "--json", "deploy/policies/demo-policy.yaml"),
        ("publish", "--help"),
        ("run", "all", "--help"),
        ("run", "extender", "--help"),
    ],
    ids=" ".join,
)
def test_a_command_that_only_prints_imports_no_heavy_package(arguments: tuple[str, ...]) -> None:
    modules = imported(*arguments)
    assert "click" in modules
    assert modules.isdisjoint(HEAVY)


def test_a_command_that_reads_the_bus_imports_its_client_and_no_http() -> None:
    modules = imported("get", "policies", "--help")
    assert "nats" in modules
    assert modules.isdisjoint(
        {"aiohttp", "cryptography", "kubernetes_asyncio", "numpy", "prometheus_client", "watchfiles"}
    )


def test_the_builder_of_processes_loads_no_numpy_for_workers_that_do_not_compute_statistics() -> None:
    script = "import sys, cli.wiring; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = set(ran.stdout.split())
    assert "cli.wiring" in modules
    assert "numpy" not in modules


def test_help_imports_no_command() -> None:
    modules = imported("--help")
    assert {name for name, each in COMMANDS.items() if f"cli.{each.module}" in modules} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each_command(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.get_short_help_str(limit=1000) == COMMANDS[name].help
