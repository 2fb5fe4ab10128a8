"""What a type accepts, in the words of people: for errors and pages. The library that converts has words of its own."""

import re
from enum import Enum
from typing import Any

from msgspec import inspect

_BOUNDS = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))
_LENGTHS = (("min_length", "at least"), ("max_length", "at most"))
_PATTERNS = {r"\S": " that is not empty"}
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


def bounds_of(kind: inspect.IntType | inspect.FloatType) -> str:
    """The limits of a number, as `at least 0 and at most 1`; empty without any."""
    bounds = ((words, getattr(kind, key)) for key, words in _BOUNDS)
    return " and ".join(
        f"{words} {int(bound) if bound == int(bound) else bound}" for words, bound in bounds if bound is not None
    )


def accepted(kind: inspect.Type) -> str:  # noqa: PLR0911 - one for each
    """What is accepted, as `a whole number, at least 1`; empty if that cannot be said in a few words."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            name = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            return f"{name}, {bounds}" if (bounds := bounds_of(kind)) else name
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return f"text{_lengths(kind, 'character', 'characters')}" + (
                _PATTERNS.get(kind.pattern, f" that matches {kind.pattern}") if kind.pattern else ""
            )
        case inspect.EnumType():
            return f"one of {', '.join(str(each.value) for each in kind.cls if isinstance(each, Enum))}"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, kind.values))}"
        case inspect.VarTupleType() | inspect.ListType():
            return "a list" + _lengths(kind, "entry", "entries")
        case inspect.DictType():
            return "an object"
        case inspect.StructType():
            return f"an object with the fields {', '.join(names_of(kind))}"
        case inspect.UnionType():
            texts = [accepted(each) for each in kind.types if not isinstance(each, inspect.NoneType)]
            return " or ".join(dict.fromkeys(texts)) if all(texts) else ""
    return ""


def _lengths(kind: Any, one: str, many: str) -> str:
    lengths = [(words, length) for key, words in _LENGTHS if (length := getattr(kind, key)) is not None]
    if not lengths:
        return ""
    bounds = " and ".join(f"{words} {length}" for words, length in lengths)
    return f" of {bounds} {one if lengths[-1][1] == 1 else many}"


def names_of(kind: inspect.StructType) -> list[str]:
    """The names of the fields of an object, with that of its tag."""
    tag = [] if kind.tag_field is None else [kind.tag_field]
    return sorted((*tag, *(field.encode_name for field in kind.fields)))


def kind_at(kind: inspect.Type, value: object, path: str) -> inspect.Type | None:
    """The type of the part of `value` at a path such as `.links[0].capacity`; None if that is not known.

    `value` shows which of several objects is meant, by its tag.
    """
    found: inspect.Type | None = _chosen(kind, value)
    for step in _STEP.finditer(path):
        name, index = step[1], step[2]
        match found:
            case inspect.StructType() if name:
                found = next((field.type for field in found.fields if field.encode_name == name), None)
                value = value.get(name) if isinstance(value, dict) else None
            case inspect.DictType():
                found, value = found.value_type, value.get(name) if isinstance(value, dict) and name else None
            case inspect.ListType() | inspect.VarTupleType() if index and index.isdigit():
                found, value = found.item_type, value[int(index)] if isinstance(value, list) else None
            case _:
                return None
        if found is None:
            return None
        found = _chosen(found, value)
    return found


def _chosen(kind: inspect.Type, value: object) -> inspect.Type:
    """Of a union the member that `value` is meant to be, if only one can be."""
    if not isinstance(kind, inspect.UnionType):
        return kind
    kinds = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    objects = [each for each in kinds if isinstance(each, inspect.StructType)]
    if isinstance(value, dict):
        tagged = [each for each in objects if each.tag_field and value.get(each.tag_field) == each.tag]
        objects = tagged or objects
        if len(objects) == 1:
            return objects[0]
    return kinds[0] if len(kinds) == 1 else kind
