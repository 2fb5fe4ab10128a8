"""The names in the sections `Attributes:` and `Args:` of docstrings exist in the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("tas", "bus", "workers", "cli", "lab")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def section_names(docstring: str, section: str) -> list[str]:
    """The names before the colons in a section of a docstring."""
    found = re.search(rf"^{section}:\n((?:    .*\n?|\n)*)", docstring, re.MULTILINE)
    return [] if found is None else re.findall(r"^ {4}(\w+):", found[1], re.MULTILINE)


def parameters(function: Function) -> set[str]:
    args = function.args
    return {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg) if arg}


def attributes(node: ast.ClassDef) -> set[str]:
    """The fields and properties of a class, and the attributes that its methods set on `self`."""
    found = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    for method in (each for each in node.body if isinstance(each, Function)):
        if any(isinstance(each, ast.Name) and each.id.endswith("property") for each in method.decorator_list):
            found.add(method.name)
        found |= {
            each.attr
            for each in ast.walk(method)
            if isinstance(each, ast.Attribute)
            and isinstance(each.ctx, ast.Store)
            and isinstance(each.value, ast.Name)
            and each.value.id == "self"
        }
    return found


def wrong_names(tree: ast.AST) -> Iterator[str]:
    """Each documented name that does not exist, with its class or function."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef | Function):
            continue
        docstring = ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef):
            constructors = [each for each in node.body if isinstance(each, Function) and each.name == "__init__"]
            existing = {"Attributes": attributes(node), "Args": set[str]().union(*map(parameters, constructors))}
        else:
            existing = {"Args": parameters(node)}
        for section, names in existing.items():
            for name in section_names(docstring, section):
                if name not in names:
                    yield f"{node.name}: {section}: {name}"


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.ci
def test_a_docstring_names_only_existing_attributes_and_parameters(package: str) -> None:
    paths = sorted((ROOT / package).rglob("*.py"))
    wrong = {str(path): names for path in paths if (names := list(wrong_names(ast.parse(path.read_text()))))}
    assert paths
    assert wrong == {}


def test_a_wrong_name_is_found() -> None:
    tree = ast.parse(
        '''
class Box:
    """A box.

    Attributes:
        width: In metres.
            Continued: not a name.
        depth: In metres.
        height: In metres.
        area: In square metres.
    """

    width: float

    def __init__(self, height: float) -> None:
        self.height = height

    @property
    def area(self) -> float: ...

def fill(box: Box, *, most: float) -> None:
    """Fills a box.

    Args:
        box: The box.
        least: In litres.
        most: In litres.
    """
'''
    )
    assert list(wrong_names(tree)) == ["Box: Attributes: depth", "fill: Args: least"]
