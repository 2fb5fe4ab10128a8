"""A KubeSchedulerConfiguration as kube-scheduler decodes it: strictly, by the published types of its version.

A scheduler exits if a field has another type than published, or is not published at all (facts.md c72).
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import isfinite

from tas.configuring.published import FIELDS, NEWEST, POINTS
from tas.configuring.versions import GROUP
from tas.errors import InvalidInputError
from tas.values.duration import DurationError, parse_duration

Object = Mapping[str, object]
Types = Mapping[str, Mapping[str, str]]
"""The fields of each type, with their kinds."""

NOT_SHOWN = "(not shown)"
"""In place of a value that may be a secret: errors are printed and logged."""

_RANGES = {"int32": 1 << 31, "int64": 1 << 63}


@dataclass(frozen=True, slots=True)
class StartProblem:
    """Something with which a kube-scheduler does not start.

    Attributes:
        place: The field, `profiles[0].plugins`.
        unknown: Whether a version newer than the newest published one may know the field or the plugin.
    """

    place: str
    value: object
    reason: str
    unknown: bool = False


def covers(span: str, minor: int) -> bool:
    """Whether a minor version is in a range of `published`: `22-27`, or `25-`."""
    first, _, last = span.partition("-")
    return int(first) <= minor <= int(last or max(minor, NEWEST))


def points_of(plugin: str, minor: int) -> set[str] | None:
    """The extension points of a plugin of a stock kube-scheduler; None: it does not have this plugin."""
    spans = POINTS.get(plugin, {"": "1-1"})
    if not covers(spans[""], minor):
        return None
    return {point for point, span in spans.items() if point and covers(span, minor)}


@cache
def types_of(form: str, minor: int) -> Types:
    """What a scheduler of this minor version reads in this form of the configuration; it must read the form."""
    found: dict[str, dict[str, str]] = {}
    for name, fields in FIELDS.items():
        for field, text in fields.items():
            kind, span, *forms = text.split()
            if covers(span, minor) and form in (forms or (form,)):
                found.setdefault(name, {})[field] = kind
    return found


def decoded(document: Object, form: str, minor: int) -> Iterator[StartProblem]:
    """What a kube-scheduler of this minor version does not decode.

    Args:
        document: As in JSON.
        form: The version in its `apiVersion`, for example `v1`.
        minor: The minor version of the scheduler, which reads this form.
    """
    types = types_of(form, minor)
    yield from _value(types, minor, "KubeSchedulerConfiguration", document, "")
    for at, profile in objects(document, "profiles"):
        for index, each in objects(profile, "pluginConfig"):
            name = f"{each.get('name')}Args"
            if name in types:
                place, args = f"profiles[{at}].pluginConfig[{index}].args", each.get("args")
                yield from _value(types, minor, name, args, place)
                for field, wanted in (("kind", name), ("apiVersion", f"{GROUP}/{form}")):
                    if isinstance(args, Mapping) and (args.get(field) or wanted) != wanted:
                        yield StartProblem(f"{place}.{field}", args[field], f"must be {wanted}")


def objects(parent: Object, key: str) -> Iterator[tuple[int, Object]]:
    """The mappings in a list of a mapping, each with its position; what has another type is left out."""
    value = parent.get(key)
    for at, each in enumerate(value if isinstance(value, list) else []):
        if isinstance(each, Mapping):
            yield at, each


def mapping_at(subject: str, value: object, place: str, *, optional: bool = False) -> dict[str, object]:
    """A mapping of a document as decoded; `optional`: empty for None. Raises InvalidInputError for another value."""
    if optional and value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInputError(subject, place, value, "must be a mapping")
    return value


def list_at(subject: str, value: object, place: str) -> list[object]:
    """A list of a document as decoded; empty for None. Raises InvalidInputError for another value."""
    if value is not None and not isinstance(value, list):
        raise InvalidInputError(subject, place, value, "must be a list")
    return value or []


def number(parent: Object, key: str, default: int) -> float:
    """A number of a mapping; `default` without one."""
    value = parent.get(key)
    return value if isinstance(value, (int, float)) else default


def _value(types: Types, minor: int, kind: str, value: object, place: str) -> Iterator[StartProblem]:
    """Problems of a value of a kind of `FIELDS`. As in Go, null is the same as no value."""
    if value is None or kind == "any":
        return
    if kind in types:
        yield from _fields(types, minor, kind, value, place)
    elif kind[0] == "[":
        if not isinstance(value, list):
            yield StartProblem(place, _shown(value), "must be a list")
            return
        for at, each in enumerate(value):
            yield from _value(types, minor, kind[1:-1], each, f"{place}[{at}]")
    elif kind[0] == "{":
        if not isinstance(value, Mapping):
            yield StartProblem(place, _shown(value), "must be a mapping")
            return
        for key, each in value.items():
            yield from _value(types, minor, kind[1:-1], each, f"{place}[{key}]")
    elif reason := _simple(kind, value):
        yield StartProblem(place, NOT_SHOWN if kind == "bytes" else value, reason)


def _fields(types: Types, minor: int, kind: str, value: object, place: str) -> Iterator[StartProblem]:
    if not isinstance(value, Mapping):
        yield StartProblem(place, _shown(value), "must be a mapping")
        return
    for field, each in value.items():
        inner = f"{place}.{field}" if place else str(field)
        if (known := types[kind].get(str(field))) is not None:
            yield from _value(types, minor, known, each, inner)
            continue
        same = {name for name in FIELDS[kind] if name.lower() == str(field).lower() and name != field}
        spelled = next(iter(same & types[kind].keys()), None)
        reason = f"is spelled {spelled}" if spelled else f"is no field that kube-scheduler 1.{minor} has here"
        # No version has a field with other capitals than another version.
        yield StartProblem(inner, _shown(each), reason, unknown=not same)


def _shown(value: object) -> object:
    """A value of another type or name than published: it may have a private key, keyData in another place."""
    return value if isinstance(value, (bool, int, float)) else NOT_SHOWN


def _simple(kind: str, value: object) -> str | None:
    """Why a value is not one of a simple kind; None: it is."""
    if kind in _TEXTS:
        is_kind, reason = _TEXTS[kind]
        return None if is_kind(value) else reason
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        return "must be a number"
    if kind in _RANGES and not (value == int(value) and -_RANGES[kind] <= value < _RANGES[kind]):
        return f"must be a whole number of {kind[3:]} bits"
    return None


def _is_duration(text: str) -> bool:
    try:
        parse_duration(text)
    except DurationError:
        return False
    return True


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


_TEXTS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "bool": (lambda value: isinstance(value, bool), "must be true or false"),
    "string": (lambda value: isinstance(value, str), "must be a string"),
    "duration": (lambda value: isinstance(value, str) and _is_duration(value), 'must be such as "30s"'),
    "bytes": (lambda value: isinstance(value, str) and _is_base64(value), "must be base64"),
}
"""Whether a value is of a kind that is no number, and what is wrong else."""
