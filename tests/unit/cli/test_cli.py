"""Commands without a bus: help, and invalid arguments."""

import importlib
import re
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from cli import cli, main
from cli.loading import every_setting
from workers.registry import WORKERS, with_commands
from workers.settings import variable


def tas(*arguments: str) -> Result:
    """Runs the command line in this process, without TAS variables of the environment."""
    return CliRunner(env={variable(name): None for name, _ in every_setting()}).invoke(cli, arguments, prog_name="tas")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("publish", "Node_1", "m=1"), ["NODE = 'Node_1'"]),
        (("publish", "n"), ["Missing argument 'METRIC=VALUE...'"]),
        (("run", "nothing"), ["No such command 'nothing'"]),
        (("pubish", "n", "m=1"), ["No such command 'pubish'. Did you mean 'publish'?"]),
        (("zzz",), ["No such command 'zzz'.\n"]),
        (("run", "all", "--nothing"), ["No such option"]),
        (("run", "all"), ["tas run all: --policies (TAS_POLICIES): must be given"]),
        (("run", "policies", "--policies", "/nowhere"), ["--policies (TAS_POLICIES) = '/nowhere'"]),
        (("run", "materialize", "--bus", "http://h"), ["--bus (TAS_BUS) = 'http://h': must be embedded"]),
        (("run", "collect", "--source", "a:prometheus=http://h", "--source", "b"), ["must be one of custom-metrics"]),
        (("run", "collect", "--source", "prometheus=http://h", "--source", "prometheus=http://h"), ["given twice"]),
        (("run", "all", "--policies", ".", "--source", "metrics-server"), ["needs --kubeconfig"]),
        (("publish", "n", "m"), ["'m': expected METRIC=VALUE"]),
        (("publish", "n", "m=NaN", "o=1e400", "p=", "=1"), ["m = 'NaN'", "o = '1e400'", "p = ''"]),
        (("publish", "n", "=1"), ["metrics = ''"]),
        (("publish", "n", "a.b=1", "c d=1"), ["metrics = 'a.b'", "metrics = 'c d'"]),
        (("publish", "n", "m=1", "m=2"), ["the metric is given twice"]),
        (("publish", "n", "m=1", "--source", "A_b"), ["--source = 'A_b'"]),
        (("publish", "n", "m=1", "--measured", "yesterday"), ["--measured = 'yesterday'"]),
        (("publish", "n", "m=1", "--measured", "2026-01-01T00:00:00"), ["must have a zone"]),
        (("publish", "n", "m=1", "--measured", "-2h"), ["--measured = '-2h': must be at most 3600 s ago"]),
        (("publish", "n", "m=1", "--measured", "nan"), ["seconds since 1970"]),
        (("publish", "n", "m=1", "--measured", str(time.time() + 9999)), ["at most 10 s ahead"]),
        (("publish", "n", "m=1", "--window", "-1s"), ["--window = '-1s': must be more than 0"]),
        (("publish", "n", "m=1", "--window", "soon"), ["--window = 'soon'"]),
        (("explain", "node", "No_Node"), ["NAME = 'No_Node'"]),
        (("explain", "policy", "Mine"), ["NAME = 'Mine': must be NAME or NAMESPACE/NAME, lowercase"]),
        (("demo", "memory", "--within", "0s"), ["'--within': '0s' must be a duration"]),
    ],
)
def test_an_invalid_argument_is_refused_before_anything_is_done(arguments: tuple[str, ...], words: list[str]) -> None:
    result = tas(*arguments)
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    for fragment in words:
        assert fragment in result.stderr
    assert "Traceback" not in result.stderr


def test_a_variable_holds_several_values_separated_by_commas() -> None:
    environment = {"TAS_SOURCE": "edge:prometheus=http://a,edge:prometheus=http://b"}
    result = CliRunner(env=environment).invoke(cli, ["run", "collect"], prog_name="tas")
    assert result.exit_code == 2
    assert "--source (TAS_SOURCE)" in result.stderr
    assert "two sources are called edge" in result.stderr


def test_help_shows_units_variables_and_defaults() -> None:
    result = tas("run", "all", "--help")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    for words in (
        "The bus:",
        "--stale-after DURATION",
        "[TAS_STALE_AFTER; default: 2m]",
        "--max-body BYTES",
        "[TAS_LISTEN; default: 127.0.0.1:9001]",
        "Health and logs:",
    ):
        assert words in text


@pytest.mark.parametrize(
    "arguments", [(), ("--help",), ("run",), ("get", "--help"), ("explain", "node", "--help"), ("publish", "-h")]
)
def test_every_command_has_help(arguments: tuple[str, ...]) -> None:
    assert tas(*arguments).output.startswith("Usage: tas")


def test_the_version_is_printed() -> None:
    assert re.fullmatch(r"tas, version \S+\n", tas("--version").stdout)


def completions(*words: str) -> list[str]:
    """What the shell offers for the last word."""
    *before, incomplete = words
    found = ShellComplete(cli, {}, "tas", "_TAS_COMPLETE").get_completions(before, incomplete)
    return [each.value for each in found]


def test_the_shell_completes_commands_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    assert completions("p") == ["publish", "pause", "policy"]
    assert completions("--ver") == ["--version"]
    assert imported == []


def test_the_shell_completes_subcommands_and_flags() -> None:
    assert completions("run", "mat") == ["materialize"]
    assert completions("run", "labels", "--brea") == ["--breaker", "--breaker-all"]


class WithoutRich:
    """Finds no package rich, as in an environment without it."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "rich":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({}, "Error: the package rich is not installed: pip install 'tas-on-nats[try]'\n"),
        ({"_TAS_COMPLETE": "bash_complete", "COMP_WORDS": "tas up --", "COMP_CWORD": "2"}, ""),
    ],
    ids=["command", "completion"],
)
def test_without_the_extra_a_live_view_names_what_to_install(
    environment: dict[str, str], shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with_rich = {"cli.console", "cli.top.live", "cli.top.running", "lab.up.up"}
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich" or name in with_rich]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutRich, *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["tas", "top"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr() == ("", shown)


def test_each_line_of_the_procfile_has_flags_of_its_command() -> None:
    lines = [line.split(": ", 1) for line in Path("Procfile").read_text().splitlines() if not line.startswith("#")]
    workers = [spec.name for spec in with_commands() if spec.name != "policies"]  # the cluster form, with `watch`
    assert [name for name, _ in lines[:2]] == ["bus", "cluster"]
    assert sorted(name for name, _ in lines[2:]) == sorted(workers)
    for name, command in lines:
        if name != "cluster":
            assert command.startswith(f"exec tas run {name} ")
            known = tas("run", name, "--help").stdout
            assert all(flag in known for flag in re.findall(r"--[a-z-]+", command))
            assert "--health-listen 127.0.0.1:$PORT" in command
        if name in WORKERS:
            assert ("--share-listen on" in command) == bool(WORKERS[name].listens)


def test_docs_writes_the_files_and_checks_them(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path))
    missing = tas("docs", "--check", *folder)
    assert missing.exit_code == 1
    assert "run `tas docs`" in missing.stderr
    assert tas("docs", *folder).exit_code == 0
    assert tas("docs", "--check", *folder).exit_code == 0
    page, schemas = tmp_path / "reference" / "settings.md", tmp_path / "reference" / "events" / "schemas"
    page.write_text(page.read_text().replace("2m", "3m"))
    assert tas("docs", "--check", *folder).exit_code == 1
    page.write_bytes(b"\xff")
    assert "run `tas docs`" in tas("docs", "--check", *folder).stderr
    (schemas / "gone.v1.json").write_text("{}")
    assert tas("docs", *folder).stdout == f"{page} written\n{schemas / 'gone.v1.json'} deleted\n"
    assert tas("docs", "--check", *folder).exit_code == 0
    page.unlink()
    page.mkdir()
    assert tas("docs", *folder).exit_code == 1
    assert tas("docs", "--check").exit_code == 0


def test_of_a_huge_file_lint_reads_no_more_than_a_manifest_may_have(tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no space
    assert "more than 1048576 bytes" in tas("policy", "lint", str(huge)).output
