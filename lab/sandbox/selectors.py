"""Parses label and field selectors of a query."""

import re
from collections.abc import Callable
from typing import Any

from lab.sandbox.errors import StatusError
from lab.sandbox.resources import Object, Resource

Matches = Callable[[Object], bool]

EQUALITY = re.compile(r"([^\s!=(),]+)\s*(==|=|!=)\s*([^\s=!(),]*)")
MEMBERSHIP = re.compile(r"([^\s!=(),]+)\s+(in|notin)\s*\(([^()]*)\)")
PRESENCE = re.compile(r"(!?)\s*([^\s!=(),]+)")
# Commas between requirements, not those between the values of one.
BETWEEN = re.compile(r",(?![^(]*\))")


def parse_selectors(resource: Resource, *, labels: str, fields: str) -> Matches:
    """A function that tests an object against both selectors; an empty selector matches all objects.

    Raises StatusError: 400, if a selector is invalid or its field cannot be selected by.
    """
    matches = [_label_requirement(text.strip()) for text in BETWEEN.split(labels)] if labels.strip() else []
    matches += [_field_requirement(resource, text.strip()) for text in fields.split(",") if text.strip()]
    return lambda candidate: all(match(candidate) for match in matches)


def _label_requirement(text: str) -> Matches:
    if match := EQUALITY.fullmatch(text):
        key, operator, value = match.groups()
        if operator == "!=":  # also matches objects without the label
            return lambda candidate: _labels(candidate).get(key) != value
        return lambda candidate: _labels(candidate).get(key) == value
    if match := MEMBERSHIP.fullmatch(text):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        return lambda candidate: (_labels(candidate).get(key) in values) == (operator == "in")
    if match := PRESENCE.fullmatch(text):
        negated, key = match.groups()
        return lambda candidate: (key in _labels(candidate)) != bool(negated)
    raise StatusError(400, f"unable to parse requirement: {text!r}")


def _field_requirement(resource: Resource, text: str) -> Matches:
    match = EQUALITY.fullmatch(text)
    if match is None:
        raise StatusError(400, f"invalid selector: {text!r}; can't understand {text!r}")
    path, operator, value = match.groups()
    if path not in resource.selectable | {"metadata.name", "metadata.namespace"}:
        raise StatusError(400, f"field label not supported: {path}")
    return lambda candidate: (_field(candidate, path) == value) == (operator != "!=")


def _field(candidate: Object, path: str) -> str:
    value: Any = candidate
    for key in path.split("."):
        value = value.get(key, {})
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else ""


def _labels(candidate: Object) -> dict[str, str]:
    labels: dict[str, str] = candidate["metadata"].get("labels", {})
    return labels
