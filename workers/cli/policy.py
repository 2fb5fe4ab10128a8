"""`tas policy`: manifests of TASPolicy, looked at before anybody applies them."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from workers.cli.asking import JSON_OPTION, print_json
from workers.policies import SUFFIXES
from workers.policy_lint import Finding, Linted, Severity, lint, same_names

STDIN = "-"


@click.group("policy", no_args_is_help=True)
def policy() -> None:
    """Look at manifests of TASPolicy."""


def check(files: tuple[str, ...], *, strict: bool, as_json: bool) -> int:
    """Tell what is wrong with the policies in each FILE: a manifest, a folder of them, or - for standard input.

    By the rules of the CRD. An error is what the API server would not take; a warning is what it takes although a
    part of it will not count.

    Exit codes: 0 nothing wrong, or only warnings; 1 errors (with --strict: or warnings); 2 a file cannot be read.
    """
    linted: dict[str, Linted] = {}
    for name in files:
        for file in _files(name):
            linted[file] = lint(file, _content(file))
    findings = [finding for each in linted.values() for finding in each.findings]
    findings = sorted([*findings, *same_names(linted)], key=lambda finding: (finding.file, finding.line))
    if as_json:
        print_json([msgspec.to_builtins(finding) for finding in findings])
    else:
        _print(findings, linted.values())
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    return int(bool(findings) if strict else errors > 0)


policy.add_command(
    click.Command(
        "lint",
        callback=check,
        help=check.__doc__,
        params=[
            click.Argument(["files"], metavar="FILE...", nargs=-1, required=True),
            click.Option(["--strict"], is_flag=True, help="A warning is as bad as an error."),
            JSON_OPTION,
        ],
    )
)


def _files(name: str) -> Iterator[str]:
    path = Path(name)
    if name == STDIN or not path.is_dir():
        yield name
        return
    found = sorted(str(each) for each in path.rglob("*") if each.suffix in SUFFIXES and each.is_file())
    if not found:
        raise click.UsageError(f"FILE = {name}: the folder holds no {', '.join(SUFFIXES)} file")
    yield from found


def _content(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        raise click.UsageError(f"FILE = {file}: {error.strerror}") from error


def _print(findings: list[Finding], linted: Iterable[Linted]) -> None:
    for finding in findings:
        click.echo(finding)
    each = list(linted)
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    others = sum(one.others for one in each)
    told = f"{_count(len(each), 'file')}, {_count(sum(len(one.policies) for one in each), 'policy')}"
    if others:
        told += f" ({_count(others, 'object')} of other kinds left out)"
    click.echo(f"{told}: {_count(errors, 'error')}, {_count(len(findings) - errors, 'warning')}", err=True)


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun.removesuffix('y')}ies" if noun.endswith("y") else f"{number} {noun}s"
