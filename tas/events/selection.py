"""Which events a reader wants: by type, node and policy."""

from typing import get_args

import msgspec

from tas.errors import InvalidInputError
from tas.events.data import (
    BreakerReset,
    BreakerTripped,
    Data,
    EpochChanged,
    EventData,
    Gap,
    LabelsPaused,
    LabelsResumed,
    Unknown,
)
from tas.values.names import is_dns_label, is_subdomain

OF_ALL = (BreakerTripped, BreakerReset, LabelsPaused, LabelsResumed, EpochChanged, Gap)
"""These may concern every node and every policy."""

TYPES: tuple[type[Data], ...] = tuple(each for each in get_args(EventData) if each is not Unknown)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Events of some types (none: all), about one node, about one policy; an empty text means any.

    `namespace` without `policy` has no meaning. A `Gap` is always selected: it says that other events are missing.
    Raises InvalidInputError.
    """

    of: tuple[type[Data], ...] = ()
    node: str = ""
    namespace: str = ""
    policy: str = ""

    def __post_init__(self) -> None:
        for field, value in (("node", self.node), ("policy", self.policy)):
            if value and not is_subdomain(value):
                raise InvalidInputError("selection", field, value, "must be a lowercase DNS subdomain (RFC 1123)")
        if self.namespace and not is_dns_label(self.namespace):
            raise InvalidInputError(
                "selection", "policy", self.namespace, "its namespace must be a DNS label (RFC 1123)"
            )

    @property
    def types(self) -> tuple[type[Data], ...]:
        """The types of which an event can be selected."""
        chosen = (*self.of, Gap) if self.of else TYPES
        return tuple(each for each in TYPES if each in chosen and self._can_be_about(each))

    def selects(self, data: Data) -> bool:
        """Whether an event with this data is selected. The data of an unknown type or version never is."""
        if isinstance(data, Gap):
            return True
        if isinstance(data, Unknown) or (self.of and not isinstance(data, self.of)):
            return False
        if isinstance(data, OF_ALL) and not getattr(data, "policy", ""):
            return True
        if self.node and getattr(data, "node", "") != self.node:
            return False
        if self.policy:
            # Labels have a policy without a namespace.
            namespace = getattr(data, "namespace", self.namespace)
            return getattr(data, "policy", "") == self.policy and self.namespace in ("", namespace)
        return True

    def _can_be_about(self, data: type[Data]) -> bool:
        fields = data.__struct_fields__
        return issubclass(data, OF_ALL) or not (
            (self.node and "node" not in fields) or (self.policy and "policy" not in fields)
        )


def parse_policy_name(text: str) -> tuple[str, str]:
    """Namespace and name of `NAMESPACE/NAME`; of `NAME`, an empty namespace. Raises InvalidInputError."""
    namespace, slash, name = text.rpartition("/")
    if not name or (slash and not namespace) or "/" in namespace:
        raise InvalidInputError("selection", "policy", text, "must be NAME or NAMESPACE/NAME")
    return namespace, name
