"""`tas files`."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli import cli

ROOT = Path(__file__).parents[3]


def tas(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["files", *arguments], prog_name="tas")


def tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """The content of each file below a folder, and whether it can be executed."""
    paths = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return {str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK)) for path in paths}


def shipped() -> dict[str, tuple[bytes, bool]]:
    return tree(ROOT / "deploy") | {f"docs/{name}": file for name, file in tree(ROOT / "docs").items()}


def test_every_file_of_deploy_and_every_page_is_listed() -> None:
    listed = tas().stdout.splitlines()
    assert listed == sorted(shipped(), key=Path)
    some = {"crd/taspolicies.telemetry.intel.com.yaml", "policies/demo-policy.yaml", "docs/how-to/tls.md"}
    assert some <= set(listed)


def test_the_files_are_written_with_their_rights_and_without_links(tmp_path: Path) -> None:
    to = tmp_path / "a" / "b"
    result = tas("--to", str(to))
    assert (result.exit_code, result.stdout) == (0, f"{len(shipped())} files in {to}\n")
    assert tree(to) == shipped()
    assert any(executable for _, executable in tree(to).values())
    assert not any(path.is_symlink() for path in to.rglob("*"))


def test_an_empty_folder_is_filled_and_any_other_stays(tmp_path: Path) -> None:
    assert tas("--to", str(tmp_path)).exit_code == 0
    before = tree(tmp_path)
    (tmp_path / "crd" / "mine").touch()
    refused = tas("--to", str(tmp_path))
    assert (refused.exit_code, refused.stderr) == (1, f"Error: --to: {tmp_path} is not empty\n")
    assert tree(tmp_path) == before | {"crd/mine": (b"", False)}


@pytest.mark.parametrize("below", ["", "folder"])
def test_a_file_in_the_way_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    result = tas("--to", str(tmp_path / "file" / below))
    assert result.exit_code == 1
    assert f"Error: --to: {tmp_path / 'file'}" in result.stderr
    assert "Not a directory" in result.stderr
