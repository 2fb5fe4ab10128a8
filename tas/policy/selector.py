"""Label selectors of nodes, with the meaning of `metav1.LabelSelector`."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, assert_never

import msgspec

from tas.errors import TasError, shortened
from tas.values.names import is_label_key, is_label_value

MAX_REQUIREMENTS = 50
"""The most `matchLabels` and `matchExpressions` together: each is compared for each node."""

MAX_VALUES = 50
"""The most values of one requirement."""


class SelectorOperator(StrEnum):
    """How a requirement compares a label."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement on one label; `values` only for `In` and `NotIn`."""

    key: str
    operator: SelectorOperator
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` fulfil the requirement. An absent label is in no set, so `NotIn` holds."""
        value = labels.get(self.key)
        match self.operator:
            case SelectorOperator.IN:
                return value in self.values
            case SelectorOperator.NOT_IN:
                return value not in self.values
            case SelectorOperator.EXISTS:
                return value is not None
            case SelectorOperator.DOES_NOT_EXIST:
                return value is None
            case _:
                assert_never(self.operator)

    def __str__(self) -> str:
        """The notation of kubectl: `zone in (a,b)`, `gpu`, `!spot`."""
        match self.operator:
            case SelectorOperator.EXISTS:
                return self.key
            case SelectorOperator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case _:
                return f"{self.key} {self.operator.value.lower()} ({','.join(sorted(self.values))})"


class LabelSelector(msgspec.Struct, frozen=True, kw_only=True):
    """All requirements must hold; an empty selector selects every node. `matchLabels` are requirements too."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is selected."""
        return all(requirement.holds(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        """The notation of kubectl; empty if the selector selects every node."""
        return ",".join(map(str, self.requirements))


class SelectorError(TasError, ValueError):
    """A value that is not a label selector; the message gives the field and the reason."""


class _WireRequirement(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    operator: SelectorOperator
    values: list[str] = []


class _WireSelector(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    match_labels: dict[str, str] = {}
    match_expressions: list[_WireRequirement] = []


def parse_selector(found: object) -> LabelSelector:
    """The selector in a value decoded from JSON or YAML: `{"matchLabels": …, "matchExpressions": […]}`.

    Raises SelectorError for anything that the API server would reject, and for unknown fields: an ignored, mistyped
    `matchLabels` would select every node.
    """
    try:
        wire = msgspec.convert(found, _WireSelector)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: half of a surrogate pair
        raise SelectorError(str(error)) from error
    _check_size(wire)
    requirements = [
        *(
            Requirement(key=key, operator=SelectorOperator.IN, values=frozenset({value}))
            for key, value in wire.match_labels.items()
        ),
        *(
            Requirement(key=each.key, operator=each.operator, values=frozenset(each.values))
            for each in wire.match_expressions
        ),
    ]
    for each in requirements:
        if not is_label_key(each.key):
            raise SelectorError(f"{shortened(each.key)} is not a valid label key")
        for value in sorted(each.values):
            if not is_label_value(value):
                raise SelectorError(f"{shortened(value)} is not a valid value of label {each.key}")
        if bool(each.values) is not (each.operator in (SelectorOperator.IN, SelectorOperator.NOT_IN)):
            raise SelectorError(f"{each.key} {each.operator}: values must be given for In and NotIn, and only there")
    return LabelSelector(requirements=tuple(requirements))


def _check_size(wire: _WireSelector) -> None:
    bounds = (
        ("matchLabels and matchExpressions", len(wire.match_labels) + len(wire.match_expressions), MAX_REQUIREMENTS),
        *((f"values of {shortened(each.key)}", len(each.values), MAX_VALUES) for each in wire.match_expressions),
    )
    for found, count, most in bounds:
        if count > most:
            raise SelectorError(f"{count} {found}: at most {most} can be given")


def selector_spec(selector: LabelSelector) -> dict[str, Any]:
    """The selector as plain JSON types, so that `parse_selector` gives it back."""
    return {
        "matchExpressions": [
            {"key": each.key, "operator": each.operator.value}
            | ({"values": sorted(each.values)} if each.values else {})
            for each in selector.requirements
        ]
    }
