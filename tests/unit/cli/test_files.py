"""`tas files`."""

import os
import re
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
    assert without_pages(tree(to)) == without_pages(shipped())
    assert tree(to).keys() == shipped().keys()
    assert any(executable for _, executable in tree(to).values())
    assert not any(path.is_symlink() for path in to.rglob("*"))


def without_pages(files: dict[str, tuple[bytes, bool]]) -> dict[str, tuple[bytes, bool]]:
    return {name: file for name, file in files.items() if not name.endswith(".md")}


def test_each_link_of_a_written_page_leads_to_a_written_file(tmp_path: Path) -> None:
    """In the repository `deploy/` is beside `docs/`, and some pages link to files that are in neither."""
    tas("--to", str(tmp_path))
    links = [
        (page, path)
        for page in tmp_path.rglob("*.md")
        for path in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if not re.match(r"[a-z]+:", path)
    ]
    assert len(links) > 700
    assert {(page, path) for page, path in links if not (page.parent / path).exists()} == set()
    index = (tmp_path / "docs" / "README.md").read_text()
    assert "[deploy/examples](../examples/README.md)" in index
    assert "[an example](../examples/gpu/README.md)" in index
    assert "change the code | CONTRIBUTING (`CONTRIBUTING.md` of the repository)" in index
    assert "](../../docs/" in (tmp_path / "examples" / "gpu" / "README.md").read_text()


def test_a_package_that_may_only_be_read_is_copied_with_its_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, to = tmp_path / "package", tmp_path / "to"
    for page in ("deploy/README.md", "pages/how-to/a.md"):
        (package / page).parent.mkdir(parents=True, exist_ok=True)
        (package / page).write_text("[root](../..), [sinks](../../deploy/README.md), [gone](../../x)\n")
    monkeypatch.setattr("cli.files.FOLDERS", {Path(): package / "deploy", Path("docs"): package / "pages"})
    for path in (*package.rglob("*"), package):
        path.chmod(path.stat().st_mode & ~0o222)
    written: list[str] = []  # root may write everything: so the modes before each writing are asserted, too
    write = Path.write_bytes

    def noted(path: Path, data: bytes) -> int:
        assert not path.exists(), "written a second time"
        assert all(each.stat().st_mode & 0o200 for each in path.parents if each.is_relative_to(to))
        written.append(path.name)
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", noted)
    try:
        result = tas("--to", str(to))
        assert (result.exit_code, result.output) == (0, f"2 files in {to}\n")
        assert written == ["a.md", "README.md"]
        copied = to / "docs" / "how-to" / "a.md"
        assert copied.read_text() == (
            "root (`.` of the repository), [sinks](../../README.md), gone (`x` of the repository)\n"
        )
        assert not copied.stat().st_mode & 0o222
    finally:
        for path in (*tmp_path.rglob("*"), tmp_path):
            path.chmod(path.stat().st_mode | 0o200)


def test_only_links_of_a_page_change(tmp_path: Path) -> None:
    tas("--to", str(tmp_path))
    for page in ("docs/reference/metrics.md", "docs/how-to/gpu.md", "examples/gpu/README.md"):
        before = ROOT / page if page.startswith("docs/") else ROOT / "deploy" / page
        of_repository = re.compile(r"\[([^][]+)\]\([^)]*\)")
        assert of_repository.sub(r"\1", before.read_text()) == re.sub(
            r" \(`[\w./-]+` of the repository\)", "", of_repository.sub(r"\1", (tmp_path / page).read_text())
        )


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
