"""docs/background/facts.md has each fact that code, tests and pages cite, and no other fact."""

import re
import subprocess
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "background" / "facts.md"
FOLDERS = (
    "bus",
    "deploy",
    "docs",
    "examples",
    "lab",
    "tas",
    "tests",
    "workers",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)

ID = r"[A-Za-z][0-9]{1,2}"
LISTED = re.findall(rf"^- \*\*({ID})\*\* .+$", PAGE.read_text(), re.MULTILINE)
CITED = re.compile(rf"facts\.md ({ID}(?:, {ID})*)(?![0-9A-Za-z])|(?<![a-z])facts_({ID}(?:_{ID})*)(?![0-9A-Za-z])")
"""In a comment or on a page, and in the name of a test or of a case."""

BARE = re.compile(
    rf"\((?:[bcn][0-9]{{1,2}}|D[0-9]{{1,2}})(?:, {ID})*\)"  # (c20)
    r"|\btest_(?:[bn][0-9]{1,2}|c[0-9]{1,2}|d[0-9]{1,2}|[A-Z][0-9]{1,2})_"  # test_c20_...
    r"|\bdef test_\w+(?<!_facts)_(?:[bn][0-9]{1,2}|c[0-9]{2}|D[0-9]{1,2})\("  # def test_..._c20(
    r"|\bid=f?\"(?:[A-Z]|[bcn](?=[0-9]+[-\"]))[0-9]{1,2}[-_ \"]"  # id="D45-..."
    r"|# [bcn][0-9]{1,2}\b"  # a comment that begins with an id
    r"|\bprotocol_c[0-9]|\btas_[A-Z][0-9]"  # former forms
    r"|\b(?:tas|extender-protocol|bus-facts|demand|patching|real-cluster|gas|design)\.md\b"  # pages that are not here
)
"""Citations that do not name the page."""


@cache
def texts() -> dict[str, str]:
    """The text of each tracked file that may cite a fact, by its path."""
    listed = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True)
    read = {name: ROOT / name for name in listed.stdout.splitlines() if name.endswith((".py", ".md", ".yaml", ".toml"))}
    own = (PAGE, Path(__file__))
    return {name: path.read_text() for name, path in read.items() if path not in own and path.exists()}


def citations() -> dict[str, list[str]]:
    """The files that cite each id."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, text in texts().items():
        for prose, identifier in CITED.findall(text):
            for fact in re.split(", |_", prose or identifier):
                found[fact].append(name)
    return found


def test_each_fact_that_is_cited_is_on_the_page() -> None:
    cited = citations()
    assert len(cited) > 100
    assert {fact: files for fact, files in cited.items() if fact not in LISTED} == {}


def test_each_fact_on_the_page_is_cited() -> None:
    assert sorted(set(LISTED) - citations().keys()) == []


def test_an_id_has_one_fact() -> None:
    assert [fact for fact, times in Counter(LISTED).items() if times > 1] == []


@pytest.mark.ci
def test_each_citation_names_the_page() -> None:
    bare = {name: found for name, text in texts().items() if (found := [each[0] for each in BARE.finditer(text)])}
    assert bare == {}


def test_a_citation_is_recognized_in_each_of_its_forms() -> None:
    text = "facts.md c1, D45: test_facts_n34_nothing id='facts_D51_G10-no'"
    assert CITED.findall(text) == [("c1, D45", ""), ("", "n34"), ("", "D51_G10")]
    assert [each[0] for each in BARE.finditer("(c20) test_c20_x tas.md (n17, n18) def test_x_n7()")] == [
        "(c20)",
        "test_c20_",
        "tas.md",
        "(n17, n18)",
        "def test_x_n7(",
    ]
