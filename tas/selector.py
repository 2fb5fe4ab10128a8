"""Label selectors of nodes, as `metav1.LabelSelector` means them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, assert_never

import msgspec

from tas.errors import TasError, shortened
from tas.names import is_label_key, is_label_value

MAX_MATCH_LABELS = 100
"""The most `matchLabels`: the API server checks each key's syntax only where their number has a bound."""


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
        """Whether `labels` fulfil it. A label that is absent is in no set, so `NotIn` holds."""
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
        """As kubectl writes it: `zone in (a,b)`, `gpu`, `!spot`."""
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
        """As kubectl writes it; empty if it selects every node."""
        return ",".join(map(str, self.requirements))


class SelectorError(TasError, ValueError):
    """A value that is no label selector; the message says where and why."""


class _WireRequirement(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    operator: SelectorOperator
    values: list[str] = []


class _WireSelector(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    match_labels: dict[str, str] = {}
    match_expressions: list[_WireRequirement] = []


def parse_selector(found: object) -> LabelSelector:
    """The selector that a value decoded from JSON or YAML means: `{"matchLabels": …, "matchExpressions": […]}`.

    Raises:
        SelectorError: for anything that the API server would not take, and for unknown fields: to ignore a mistyped
            `matchLabels` would select every node.
    """
    try:
        wire = msgspec.convert(found, _WireSelector)
    except msgspec.ValidationError as error:
        raise SelectorError(str(error)) from error
    if len(wire.match_labels) > MAX_MATCH_LABELS:
        raise SelectorError(f"{len(wire.match_labels)} matchLabels: at most {MAX_MATCH_LABELS} can be given")
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
            raise SelectorError(f"{shortened(each.key)} is no label's key")
        for value in sorted(each.values):
            if not is_label_value(value):
                raise SelectorError(f"{shortened(value)} is no value of label {each.key}")
        if bool(each.values) is not (each.operator in (SelectorOperator.IN, SelectorOperator.NOT_IN)):
            raise SelectorError(f"{each.key} {each.operator}: values are for In and NotIn, and needed there")
    return LabelSelector(requirements=tuple(requirements))


def selector_spec(selector: LabelSelector) -> dict[str, Any]:
    """The selector as plain JSON types, so that `parse_selector` gives it back."""
    return {
        "matchExpressions": [
            {"key": each.key, "operator": each.operator.value}
            | ({"values": sorted(each.values)} if each.values else {})
            for each in selector.requirements
        ]
    }
