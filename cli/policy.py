"""`tas policy`: checks manifests of TASPolicy before they are applied, and what they would do."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from cli import policy_lint
from cli.as_json import JSON_OPTION, print_json
from cli.groups import LazyCommand, LazyGroup
from cli.output import echo
from cli.policy_lint import Finding, Linted, Severity, same_names
from tas.values.nouns import counted
from workers.process.manifests import MAX_BYTES, SUFFIXES

STDIN = "-"


COMMANDS = {
    "lint": LazyCommand("cli.policy", "Check the policies in each FILE."),
    "impact": LazyCommand("cli.queries.impact", "Show what the policies in FILE would do now, and change nothing."),
}
"""Only `impact` reads the bus."""


@click.group("policy", cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def policy() -> None:
    """Check manifests of TASPolicy, and what they would do."""


def check(files: tuple[str, ...], *, strict: bool, as_json: bool) -> int:
    """Check the policies in each FILE.

    FILE is a manifest, a directory of manifests, or - for standard input.

    The rules are those of the CRD. An error: the API server rejects the policy. A warning: the API server accepts the
    policy, but a part of the policy has no effect.

    Exit codes: 0 no problems, or only warnings; 1 errors (with --strict: or warnings); 2 a file cannot be read.
    """
    linted: dict[str, Linted] = {}
    for name in files:
        for file in _files(name):
            linted[file] = policy_lint.lint(file, content(file))
    findings = [finding for file in linted.values() for finding in file.findings]
    findings = sorted([*findings, *same_names(linted)], key=lambda finding: (finding.file, finding.line))
    if as_json:
        print_json([msgspec.to_builtins(finding) for finding in findings])
    else:
        _print(findings, linted.values())
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    return int(bool(findings) if strict else errors > 0)


lint = click.Command(
    "lint",
    callback=check,
    help=check.__doc__,
    params=[
        click.Argument(["files"], metavar="FILE...", nargs=-1, required=True),
        click.Option(["--strict"], is_flag=True, help="Exit with 1 also for warnings."),
        JSON_OPTION,
    ],
)


def _files(name: str) -> Iterator[str]:
    path = Path(name)
    if name == STDIN or not path.is_dir():
        yield name
        return
    found = sorted(str(file) for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    if not found:
        raise click.UsageError(f"FILE = {name}: the directory contains no {', '.join(SUFFIXES)} file")
    yield from found


def content(file: str) -> bytes:
    """The bytes of a file or of standard input, at most one more than a manifest may have. Raises click.UsageError."""
    try:
        if file == STDIN:
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with Path(file).open("rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # a ValueError: the name has a null character
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise click.UsageError(f"FILE = {file}: {reason}") from error


def _print(findings: list[Finding], linted: Iterable[Linted]) -> None:
    for finding in findings:
        echo(finding)
    files = list(linted)
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    others = sum(file.others for file in files)
    checked = f"{counted(len(files), 'file')}, {counted(sum(len(file.policies) for file in files), 'policy')}"
    if others:
        checked += f" ({counted(others, 'object')} of other kinds skipped)"
    echo(f"{checked}: {counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}", err=True)
