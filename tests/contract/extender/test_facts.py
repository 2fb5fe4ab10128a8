"""The facts c1 to c36 of docs/background/facts.md, the extender protocol: each has a test with its id in the name.

Facts about our answers are tested without a control plane, facts about the scheduler with a real one in `tests/e2e`.
`python -m tests.contract.extender.test_facts` prints the tests of each fact.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from re import findall, search

import pytest

TESTS = Path(__file__).parents[2]
FACTS = tuple(f"c{number}" for number in range(1, 37))
OUR_ANSWERS = (
    *("c1", "c2", "c3", "c4", "c5"),  # requests, and answers with an error
    *("c13", "c14", "c15", "c16", "c17", "c19", "c20", "c21"),  # filter
    *("c22", "c25", "c26", "c28"),  # prioritize
    *("c30", "c31"),  # bind and preempt
)
"""The facts about our answers."""


def named(path: Path) -> Iterator[str]:
    """The names of a file's tests, and of their cases; none of a file in which nothing looks like a fact."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if search(r"c[0-9]", text) else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name
        elif isinstance(node, ast.keyword) and node.arg == "id" and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
        elif isinstance(node, ast.Dict | ast.Tuple):
            # Tables of cases: the key, or the first element, is the name of a case.
            first = node.keys if isinstance(node, ast.Dict) else node.elts[:1]
            yield from (key.value for key in first if isinstance(key, ast.Constant) and isinstance(key.value, str))


@cache
def by_fact(*folders: str) -> Mapping[str, list[str]]:
    """By fact, the tests of these folders that have its id in their name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for path in sorted({*(TESTS / folder).rglob("test_*.py")} - {Path(__file__)}):
            for name in named(path):
                for fact in dict.fromkeys(findall(r"(?<![0-9a-z])c[0-9]+(?![0-9a-z])", name.replace("_", " "))):
                    found[fact].append(f"{path.relative_to(TESTS.parent)}::{name}")
    return found


def without_a_cluster() -> Mapping[str, list[str]]:
    return by_fact("unit", "contract", "integration")


def with_a_scheduler() -> Mapping[str, list[str]]:
    return by_fact("e2e")


@pytest.mark.parametrize("fact", FACTS)
def test_every_fact_has_a_test(fact: str) -> None:
    assert without_a_cluster().get(fact, []) + with_a_scheduler().get(fact, [])


@pytest.mark.parametrize("fact", OUR_ANSWERS)
def test_every_fact_about_our_answers_has_a_test_without_a_cluster(fact: str) -> None:
    assert without_a_cluster().get(fact)


@pytest.mark.parametrize("fact", [fact for fact in FACTS if fact not in OUR_ANSWERS])
def test_every_fact_about_the_scheduler_has_a_test_with_a_real_one(fact: str) -> None:
    assert with_a_scheduler().get(fact)


def test_no_test_names_an_unknown_fact() -> None:
    assert {*without_a_cluster(), *with_a_scheduler()} <= set(FACTS)


if __name__ == "__main__":
    for fact in FACTS:
        for test in without_a_cluster().get(fact, []) + with_a_scheduler().get(fact, []):
            print(fact, test)
