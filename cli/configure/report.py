"""What a run of `tas configure` did or would do, for people and as JSON."""

from collections.abc import Sequence
from typing import Any

from cli.configure.certificates import shown
from cli.configure.files import Step
from cli.output import diff_lines, echo, print_diff


def change_of(step: Step) -> str:
    """What a step does to its file, in one word."""
    if not step.changes:
        return "unchanged"
    if step.content is None:
        return "deleted"
    return "created" if step.before is None else "changed"


def files_json(steps: Sequence[Step], *, diffs: bool) -> list[dict[str, Any]]:
    """Each file with what happens to it; a private key only as its fingerprint."""
    files: list[dict[str, Any]] = []
    for step in steps:
        file: dict[str, Any] = {"path": str(step.path), "change": change_of(step)}
        if diffs:
            file["diff"] = diff_lines(str(step.path), *_texts(step))
        files.append(file)
    return files


def print_diffs(steps: Sequence[Step]) -> None:
    """The diff of each file, for people."""
    for step in steps:
        print_diff(str(step.path), *_texts(step))


def print_notices(notices: Sequence[str]) -> None:
    """Each notice as a line of the error stream."""
    for notice in notices:
        echo(f"note: {notice}", err=True)


def _texts(step: Step) -> tuple[str, str]:
    before = step.before.content if step.before is not None else None
    return shown(step.path.name, before), shown(step.path.name, step.content)
