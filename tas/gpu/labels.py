"""Values that are longer than one label value (facts.md g1), and what is wrong with labels."""

import re
from collections.abc import Mapping

import msgspec

from tas.errors import line_of, shortened
from tas.gpu.names import GPU_NUMBERS, NUMA_MAP, PCI_GROUPS, XE_LINKS
from tas.values.nouns import counted

MAX_VALUE = 63
"""The longest label value that Kubernetes accepts."""

MAX_PARTS = 64
"""The most labels over which one value is split: 512 cards need 32."""

MAX_PROBLEMS = 50
"""The most problems of a node that are listed."""

_SPLIT = re.compile(rf"({'|'.join(map(re.escape, (GPU_NUMBERS, PCI_GROUPS, XE_LINKS, NUMA_MAP)))})([0-9]{{1,4}})?")


class LabelProblem(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A label, an amount or an annotation that cannot be read, or names what the node does not have."""

    field: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field} = {self.value}: {self.reason}"


class Problems:
    """Collects problems."""

    def __init__(self) -> None:
        self._found: list[LabelProblem] = []

    def add(self, field: str, value: str, reason: str) -> None:
        """Adds a problem; texts of any size are shortened."""
        self._found.append(LabelProblem(field=line_of(field), value=shortened(value), reason=line_of(reason)))

    def listed(self) -> tuple[LabelProblem, ...]:
        """At most `MAX_PROBLEMS` problems, sorted; if there are more, the last one says how many."""
        found = sorted(self._found)
        if len(found) > MAX_PROBLEMS:
            others = counted(len(found) - MAX_PROBLEMS + 1, "more problem")
            found[MAX_PROBLEMS - 1 :] = [LabelProblem(field="…", value="…", reason=f"and {others}")]
        return tuple(found)


def split_values(labels: Mapping[str, str], problems: Problems) -> dict[str, str]:
    """The values of the labels that may be split over several: `name`, `name2`, `name3` and so on.

    Each label after the first begins with `Z`, which is no part of the value. If a label is missing, too long or
    without its `Z`, the whole value is missing: a part of it would mean something else.
    """
    parts: dict[str, dict[int, str]] = {}
    for key, value in labels.items():
        match = _SPLIT.fullmatch(key)
        if match is not None and match[2] != "1" and not (match[2] or "").startswith("0"):
            parts.setdefault(match[1], {})[int(match[2] or 1)] = value
    values: dict[str, str] = {}
    for name, numbered in parts.items():
        missing = next((number for number in range(1, len(numbered) + 1) if number not in numbered), None)
        if missing is not None:
            absent = name if missing == 1 else f"{name}{missing}"
            last = max(numbered)
            problems.add(f"{name}{last}", numbered[last], f"{absent} is missing, so the whole value cannot be read")
        elif len(numbered) > MAX_PARTS:
            problems.add(name, numbered[1], f"is split over {len(numbered)} labels: at most {MAX_PARTS} are read")
        elif not _report_part(name, numbered, problems):
            values[name] = numbered[1] + "".join(numbered[number][1:] for number in range(2, len(numbered) + 1))
    return values


def _report_part(name: str, numbered: Mapping[int, str], problems: Problems) -> bool:
    """Adds a problem of the first part that is invalid, if any; returns whether there is one."""
    for number, value in sorted(numbered.items()):
        key = name if number == 1 else f"{name}{number}"
        if len(value) > MAX_VALUE:
            problems.add(key, value, f"is longer than {MAX_VALUE} characters")
            return True
        if number > 1 and not value.startswith("Z"):
            problems.add(key, value, f"must begin with Z, as it continues {name}: the whole value cannot be read")
            return True
    return False
