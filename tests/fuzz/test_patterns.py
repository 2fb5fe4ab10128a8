"""Every regular expression of the product takes time that grows linearly with the text, whatever the text is.

A pattern is tried with the methods that the product calls on it, on texts that repeat one to three of the characters
of the pattern, after each of the starts of the pattern's own matches.
"""

import ast
import importlib
import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from tests.fuzz.decoders import ROOT, clock
from tests.unit.growth import is_within

pytestmark = [pytest.mark.seeded, pytest.mark.ci]

PACKAGES = ("tas", "bus", "workers", "cli")
LENGTH = 5_000
GROWTH = 8
"""A linear expression takes 4 times as long for 4 times the text, and a quadratic one 16 times."""

NOTICEABLE = 5e-3
"""Seconds for `4 * LENGTH` characters: what takes less is not compared. A quadratic expression takes 100 ms or more."""


class Expression(NamedTuple):
    """A regular expression of the product, and a method that the product calls on it."""

    place: str
    pattern: re.Pattern[Any]
    method: str

    def __str__(self) -> str:
        return f"{self.place}.{self.method}"


def _expressions() -> Iterator[Expression]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from _of_module(path)


def _of_module(path: Path) -> Iterator[Expression]:
    tree = ast.parse(path.read_text())
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, method = node.func.value, node.func.attr
        if not isinstance(owner, ast.Name):
            continue
        if owner.id == "re" and method in {"match", "search", "fullmatch", "sub", "findall", "finditer", "split"}:
            assert isinstance(node.args[0], ast.Constant), f"{module}: a pattern that is not a constant"
            yield Expression(f"{module}:{node.lineno}", re.compile(node.args[0].value), method)
        elif isinstance(pattern := _global(module, owner.id), re.Pattern):
            yield Expression(f"{module}.{owner.id}", pattern, method)


def _global(module: str, name: str) -> object:
    if not name.isupper() and not name.startswith("_"):
        return None
    return getattr(importlib.import_module(module), name, None)


def _texts(pattern: re.Pattern[Any]) -> Iterator[str]:
    """The hostile texts of a length of 1, to be repeated, each after a start."""
    source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    special = {"d": "0", "w": "a", "s": " "}
    characters = {special.get(each, each) for each in re.findall(r"[a-zA-Z0-9\"'./ =\[\]\\:,_@*%-]", source)}
    letters = sorted({"a" if each.isalpha() else "1" if each.isdigit() else each for each in characters} | {" ", "a"})
    starts = [start for start in ("", '"', "//", 'a="', "1.", "[") if set(start) <= {*letters, "a", "1"}]
    starts += ["2026-01-01T00:00:00Z [info] "] if "T" in source else []
    for count in (1, 2):
        for unit in itertools.product(letters, repeat=count):
            for start in starts:
                yield f"{start}\0{''.join(unit)}"


def _run(expression: Expression) -> Callable[[Any], object]:
    call = getattr(expression.pattern, expression.method)
    if expression.method == "sub":
        empty: Any = b"" if isinstance(expression.pattern.pattern, bytes) else ""
        return lambda text: call(empty, text)
    if expression.method == "finditer":
        return lambda text: list(call(text))
    return cast("Callable[[Any], object]", call)


def _seconds(work: Callable[[], object]) -> float:
    started = clock()
    work()
    return clock() - started


def _text(template: str, length: int, *, as_bytes: bool) -> str | bytes:
    start, unit = template.split("\0")
    text = start + unit * (length // len(unit)) + "\x01"  # which nothing matches, so that the end fails
    return text.encode() if as_bytes else text


def _growth(expression: Expression) -> str | None:
    """The hostile text for which the time grows more than linearly."""
    run, as_bytes = _run(expression), isinstance(expression.pattern.pattern, bytes)
    for template in _texts(expression.pattern):
        long, short = (partial(run, _text(template, length, as_bytes=as_bytes)) for length in (4 * LENGTH, LENGTH))
        if _seconds(long) >= NOTICEABLE and not is_within(GROWTH, lambda: long, lambda: short):  # noqa: B023
            return f"{expression}: {template!r}"
    return None


def test_the_time_of_every_expression_grows_linearly() -> None:
    # Not a parameter: every process that runs tests would parse the product to collect the expressions.
    expressions = list(dict.fromkeys(_expressions()))
    assert len(expressions) > 25
    assert {"fullmatch", "sub", "findall", "match"} <= {each.method for each in expressions}
    assert [found for each in expressions if (found := _growth(each))] == []


def test_a_quadratic_expression_is_detected() -> None:
    assert _growth(Expression("x", re.compile(r"a+b"), "sub")) is not None
