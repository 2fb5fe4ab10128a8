"""The facts c1 to c32 of docs/facts.md, the extender protocol: each is met by a test that has its id in its name.

What binds an answer of ours is held without a control plane, what a scheduler does is held against a real one in
`tests/e2e`. `python -m tests.contract.extender.test_facts` prints who holds what.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from re import findall

import pytest

TESTS = Path(__file__).parents[2]
FACTS = tuple(f"c{number}" for number in range(1, 33))
BINDING = (
    *("c1", "c2", "c3", "c4", "c5"),  # how we are asked, and that an error looks like one
    *("c13", "c14", "c15", "c16", "c17", "c19", "c20", "c21"),  # filter
    *("c22", "c25", "c26", "c28"),  # prioritize
    *("c30", "c31"),  # bind and preempt
)
"""Those that say what an answer of ours must be."""


def named(path: Path) -> Iterator[str]:
    """The names of a file's tests, and of their cases."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name
        elif isinstance(node, ast.keyword) and node.arg == "id" and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
        elif isinstance(node, ast.Dict | ast.Tuple):
            # Tables of cases: the key, or what a case begins with, is its name.
            first = node.keys if isinstance(node, ast.Dict) else node.elts[:1]
            yield from (key.value for key in first if isinstance(key, ast.Constant) and isinstance(key.value, str))


@cache
def held(*folders: str) -> Mapping[str, list[str]]:
    """By fact, the tests of these folders that have its number in their name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for path in sorted({*(TESTS / folder).rglob("test_*.py")} - {Path(__file__)}):
            for name in named(path):
                for fact in dict.fromkeys(findall(r"(?<![0-9a-z])c[0-9]+(?![0-9a-z])", name.replace("_", " "))):
                    found[fact].append(f"{path.relative_to(TESTS.parent)}::{name}")
    return found


def held_without_a_cluster() -> Mapping[str, list[str]]:
    return held("unit", "contract", "integration")


def held_against_a_scheduler() -> Mapping[str, list[str]]:
    return held("e2e")


@pytest.mark.parametrize("fact", FACTS)
def test_every_fact_is_met_by_a_test_of_its_name(fact: str) -> None:
    assert held_without_a_cluster().get(fact, []) + held_against_a_scheduler().get(fact, [])


@pytest.mark.parametrize("fact", BINDING)
def test_what_binds_our_answers_is_held_without_a_cluster(fact: str) -> None:
    assert held_without_a_cluster().get(fact)


@pytest.mark.parametrize("fact", [fact for fact in FACTS if fact not in BINDING])
def test_what_a_scheduler_does_is_held_against_a_real_one(fact: str) -> None:
    assert held_against_a_scheduler().get(fact)


def test_no_fact_is_held_that_does_not_exist() -> None:
    assert {*held_without_a_cluster(), *held_against_a_scheduler()} <= set(FACTS)


if __name__ == "__main__":
    for fact in FACTS:
        for test in held_without_a_cluster().get(fact, []) + held_against_a_scheduler().get(fact, []):
            print(fact, test)
