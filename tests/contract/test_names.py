"""Names in the product: a reader who searches for one finds one meaning."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("tas", "bus", "workers", "cli", "lab")
PUBLIC = re.compile(r"^class ([A-Z]\w*)", re.MULTILINE)


@pytest.mark.ci
def test_no_folder_has_two_public_classes_of_one_name() -> None:
    files: defaultdict[tuple[Path, str], list[str]] = defaultdict(list)
    for path in (each for package in PACKAGES for each in (ROOT / package).rglob("*.py")):
        for name in PUBLIC.findall(path.read_text()):
            files[path.parent, name].append(path.name)
    assert len(files) > 500
    assert {f"{folder.relative_to(ROOT)}: {name}": found for (folder, name), found in files.items() if found[1:]} == {}


def test_no_file_of_the_core_has_the_name_of_files_in_two_other_folders() -> None:
    folders: defaultdict[str, list[str]] = defaultdict(list)
    for path in (ROOT / "tas").rglob("*.py"):
        folders[path.name].append(path.parent.name)
    assert {name: found for name, found in folders.items() if len(found) > 2 and name != "__init__.py"} == {}
