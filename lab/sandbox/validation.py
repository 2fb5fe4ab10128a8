"""Validates names, labels, annotations and quantities as the API server does (apimachinery's package `validation`)."""

import re
from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal

from lab.sandbox.errors import Cause, StatusError, invalid, undecodable
from lab.sandbox.resources import DEPLOYMENTS, NODES, PODS, Object, Resource

PATTERN = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?[0-9]+)?")
SYNTAX = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"

DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
MILLI = Decimal("0.001")


def canonical(text: str) -> str:
    """The quantity as the API server stores it. Raises ValueError if the text is not a quantity."""
    match = PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(SYNTAX)
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in BINARY:
        return _binary(number * 1024 ** BINARY[suffix])
    if suffix in DECIMAL:
        return _decimal(number * Decimal(1000) ** DECIMAL[suffix], {power: name for name, power in DECIMAL.items()})
    powers = {power: f"e{3 * power}" if power else "" for power in range(-1, 7)}
    return _decimal(number * Decimal(10) ** int(suffix[1:]), powers)


def _binary(value: Decimal) -> str:
    if value != int(value):  # no binary suffix is small enough
        return canonical(f"{value.quantize(MILLI, ROUND_CEILING):f}")
    whole, power = int(value), 0
    while whole and whole % 1024 == 0 and power < len(BINARY):
        whole, power = whole // 1024, power + 1
    return f"{whole}{['', *BINARY][power]}"


def _decimal(value: Decimal, suffixes: dict[int, str]) -> str:
    milli = int(value.quantize(MILLI, ROUND_CEILING) * 1000)
    if milli == 0:
        return "0"
    power = -1
    while milli % 1000 == 0 and power + 1 in suffixes:
        milli, power = milli // 1000, power + 1
    return f"{milli}{suffixes[power]}"


NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

NAME_SYNTAX = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE_SYNTAX = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
SUBDOMAIN_SYNTAX = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


def check(resource: Resource, new: Object) -> None:
    """Raises StatusError 422 with every cause if the object is invalid. Makes quantities canonical in place."""
    metadata = new["metadata"]
    for key in ("labels", "annotations"):
        _must_map_strings(metadata.get(key, {}))
    causes = [*_name(metadata["name"]), *_labels(metadata.get("labels", {}))]
    for key in metadata.get("annotations", {}):
        # Annotation keys are validated in lower case: `Example.com/x` is valid for annotations, but not for labels.
        causes += [_invalid("metadata.annotations", key, why) for why in key_errors(key.lower())]
    if resource is NODES:
        causes += _resource_lists(new)
    if resource is PODS and not new.get("spec", {}).get("containers"):
        causes.append(Cause(field="spec.containers", message="Required value", reason="FieldValueRequired"))
    if resource is DEPLOYMENTS and (replicas := new["spec"]["replicas"]) < 0:
        causes.append(_invalid("spec.replicas", str(replicas), "must be greater than or equal to 0"))
    if causes:
        raise invalid(resource, metadata["name"], causes)


def key_errors(key: str) -> Iterator[str]:
    """The errors of a label key; empty if the key is valid."""
    parts = key.split("/")
    if len(parts) > 2:
        syntax = f"{NAME_SYNTAX} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        yield f"a valid label key {syntax}"
        return
    if len(parts) == 2:
        if not parts[0]:
            yield "prefix part must be non-empty"
        elif len(parts[0]) > 253:
            yield "prefix part must be no more than 253 bytes"
        elif not SUBDOMAIN.fullmatch(parts[0]):
            yield f"prefix part {SUBDOMAIN_SYNTAX}"
    name = parts[-1]
    if not name:
        yield "name part must be non-empty"
    elif len(name) > 63:
        yield "name part must be no more than 63 bytes"
    if not NAME.fullmatch(name):
        yield f"name part {NAME_SYNTAX}"


def _labels(labels: dict[str, str]) -> Iterator[Cause]:
    for key, value in labels.items():
        for why in key_errors(key):
            yield _invalid("metadata.labels", key, why)
        if len(value) > 63:
            yield _invalid("metadata.labels", value, "must be no more than 63 bytes")
        elif not VALUE.fullmatch(value):
            yield _invalid("metadata.labels", value, VALUE_SYNTAX)


def _name(name: str) -> Iterator[Cause]:
    if not name:
        message = "Required value: name or generateName is required"
        yield Cause(field="metadata.name", message=message, reason="FieldValueRequired")
    elif len(name) > 253:
        yield _invalid("metadata.name", name, "must be no more than 253 bytes")
    elif not SUBDOMAIN.fullmatch(name):
        yield _invalid("metadata.name", name, SUBDOMAIN_SYNTAX)


def _resource_lists(node: Object) -> Iterator[Cause]:
    """The errors of a node's capacity and allocatable: at least 0, and integers for extended resources."""
    for of in ("capacity", "allocatable"):
        quantities = node.get("status", {}).get(of, {})
        for name, quantity in quantities.items():
            field = f"status.{of}.{name}"
            try:
                quantities[name] = text = canonical(str(quantity))
            except ValueError as error:
                raise undecodable(f"{field} {quantity!r}: {error}") from error
            if text.startswith("-"):
                yield _invalid(field, text, "must be greater than or equal to 0")
            if "/" in name and text.endswith("m"):
                yield _invalid(field, text, "must be an integer")


def _must_map_strings(values: object) -> None:
    if not isinstance(values, dict):
        raise undecodable(f"{values!r}: expected a map")
    for key, value in values.items():
        if not isinstance(value, str):
            raise undecodable(f"{key}: {value!r}: expected a string")


def _invalid(field: str, value: str, why: str) -> Cause:
    return Cause(field=field, message=f'Invalid value: "{value}": {why}')


def must_be_object(value: object) -> Object:
    """The value, if it is a JSON object; raises StatusError 400 otherwise."""
    if not isinstance(value, dict):
        raise StatusError(400, f"expected a JSON object, got {type(value).__name__}")
    return value
