"""Reads a recording: the nodes of a cluster, its pods, and what they used, as lines of JSON.

The first line is `{"recording": 1, "period": "1m"}`. Each other line is a node, a pod, or what a pod used:

- `{"node": "n1", "cpu": "16", "memory": "64Gi", "network": "1.25G"}`: what it has; `network` may be absent;
- `{"pod": "default/web-1", "kind": "web", "arrives": 0, "leaves": 3600, "cpu": "500m", "memory": "1Gi"}`: `cpu` and
  `memory` are its requests; they, its limits `cpu_limit` and `memory_limit`, `kind` and `leaves` may be absent;
- `{"use": "default/web-1", "at": 60, "cpu": "250m", "memory": "300Mi", "network": "1M"}`: from this time
  on; what is absent stays as it was.

Amounts are Kubernetes quantities, times are seconds since any moment. Nothing is guessed: every mistake is an error.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, floor, inf
from typing import Any

import msgspec
import numpy as np

from lab.simulate.model.load import USES, Load, LoadPod, Node, excess_of
from tas.errors import InvalidInputError
from tas.values.duration import DurationError, parse_duration
from tas.values.quantity import NANO, QuantityError, parse_quantity

VERSION = 1

MAX_NODES = 5_000
MAX_PODS = 200_000
MAX_SECONDS = 2.0**40
"""The largest time, before or after 0."""

_FIELDS = {
    "recording": ("recording", "period"),
    "node": ("node", "cpu", "memory", "network"),
    "pod": ("pod", "kind", "arrives", "leaves", "cpu", "memory", "cpu_limit", "memory_limit"),
    "use": ("use", "at", *USES),
}
"""The fields of each kind of line; the first one names the kind."""

_UNITS = {"cpu": NANO / 1000, "memory": float(NANO), "network": float(NANO)}


@dataclass(slots=True, kw_only=True)
class _Pod:
    line: int
    kind: str
    arrives: float
    leaves: float
    cpu: float
    memory: float
    cpu_limit: float
    memory_limit: float
    times: list[float] = field(default_factory=list)
    uses: list[tuple[float, ...]] = field(default_factory=list)


def parse_recording(origin: str, lines: Iterable[bytes]) -> Load:
    """The load of a recording. `origin` is its name in errors. Raises InvalidInputError at the first mistake."""
    reader = _Reader(origin)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            reader.add(number, line)
    return reader.load()


class _Reader:
    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._at = 0
        self._period = 0.0
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, _Pod] = {}

    def add(self, number: int, line: bytes) -> None:
        """Reads one line."""
        self._at = number
        try:
            found = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._mistake("line", line.decode(errors="replace"), f"is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise self._mistake("line", found, "must be an object")
        kind = next((name for name in _FIELDS if name in found), None)
        if kind is None:
            raise self._mistake("line", found, f"must have one of the fields {', '.join(_FIELDS)}")
        for name in found:
            if name not in _FIELDS[kind]:
                raise self._mistake(name, found[name], f"must be one of {', '.join(_FIELDS[kind])}")
        if (kind == "recording") is bool(self._period):
            first = 'the first line must be {"recording": 1, "period": "1m"}, and no other line'
            raise self._mistake(kind, found[kind], first)
        {"recording": self._add_head, "node": self._add_node, "pod": self._add_pod, "use": self._add_use}[kind](found)

    def load(self) -> Load:
        """The load of all lines."""
        for kind, found in (("node", self._nodes), ("pod", self._pods)):
            if not found:
                self._at += 1
                raise self._mistake(kind, "", "a recording must have a line with a node and one with a pod")
        for name, pod in self._pods.items():
            if not pod.uses:
                self._at = pod.line
                raise self._mistake("pod", name, "has no line that says what it uses")
        begin = min(pod.arrives for pod in self._pods.values())
        ends = (max(pod.arrives, pod.times[-1]) + self._period for pod in self._pods.values())
        known = (pod.leaves for pod in self._pods.values() if pod.leaves < inf)
        end = max((*ends, *known))
        periods = ceil((end - begin) / self._period)
        cells = sum(floor((min(pod.leaves, end) - pod.arrives) / self._period) + 2 for pod in self._pods.values())
        if (excess := excess_of(pod_periods=cells, node_periods=periods * len(self._nodes))) is not None:
            self._at = 1
            raise self._mistake("period", self._period, excess)
        return Load(
            name=self._origin,
            period=self._period,
            periods=periods,
            nodes=tuple(self._nodes.values()),
            pods=tuple(self._pod(name, pod, begin, begin + periods * self._period) for name, pod in self._pods.items()),
        )

    def _pod(self, name: str, pod: _Pod, begin: float, end: float) -> LoadPod:
        arrives, leaves = pod.arrives - begin, min(pod.leaves, end) - begin
        first, last = floor(arrives / self._period), ceil(leaves / self._period)
        moments = np.arange(first, last + 1) * self._period + begin
        chosen = np.maximum(np.searchsorted(pod.times, moments, side="right") - 1, 0)
        return LoadPod(
            name=name,
            kind=pod.kind,
            arrives=arrives,
            leaves=leaves,
            cpu=round(pod.cpu),
            memory=round(pod.memory),
            cpu_limit=round(pod.cpu_limit),
            memory_limit=round(pod.memory_limit),
            use=np.array(pod.uses, dtype=np.float64)[chosen].T.copy(),
        )

    def _add_head(self, found: dict[str, Any]) -> None:
        if found["recording"] != VERSION:
            raise self._mistake("recording", found["recording"], f"must be the version {VERSION}")
        text = found.get("period")
        try:
            seconds = parse_duration(text) if isinstance(text, str) else 0.0
        except DurationError as error:
            raise self._mistake("period", text, str(error)) from error
        if not 1.0 <= seconds <= 3600.0:
            raise self._mistake("period", text, "must be a duration from 1s to 1h")
        self._period = seconds

    def _add_node(self, found: dict[str, Any]) -> None:
        name = self._name(found, "node", self._nodes, MAX_NODES)
        sizes = {use: self._amount(found, use, None if use != "network" else inf) for use in USES}
        for use, size in sizes.items():
            if size <= 0:
                raise self._mistake(use, found[use], "must be positive")
        self._nodes[name] = Node(name=name, cpu=sizes["cpu"], memory=sizes["memory"], network=sizes["network"])

    def _add_pod(self, found: dict[str, Any]) -> None:
        name = self._name(found, "pod", self._pods, MAX_PODS)
        kind = found.get("kind", name)
        if not isinstance(kind, str):
            raise self._mistake("kind", kind, "must be a text")
        arrives, leaves = self._time(found, "arrives", None), self._time(found, "leaves", inf)
        if leaves <= arrives:
            raise self._mistake("leaves", leaves, f"must be after arrives = {arrives}")
        cpu, memory, *limits = (
            self._amount(found, each, 0.0) for each in ("cpu", "memory", "cpu_limit", "memory_limit")
        )
        self._pods[name] = _Pod(
            line=self._at,
            kind=kind,
            arrives=arrives,
            leaves=leaves,
            cpu=cpu,
            memory=memory,
            cpu_limit=limits[0],
            memory_limit=limits[1],
        )

    def _add_use(self, found: dict[str, Any]) -> None:
        pod = self._pods.get(found["use"]) if isinstance(found["use"], str) else None
        if pod is None:
            raise self._mistake("use", found["use"], "must be a pod of a line before")
        at = self._time(found, "at", None)
        if pod.times and at <= pod.times[-1]:
            raise self._mistake("at", at, f"must be after the time before of this pod, {pod.times[-1]}")
        before = pod.uses[-1] if pod.uses else (0.0,) * len(USES)
        pod.uses.append(tuple(self._amount(found, use, last) for use, last in zip(USES, before, strict=True)))
        pod.times.append(at)

    def _name(self, found: dict[str, Any], kind: str, known: dict[str, Any], most: int) -> str:
        name = found[kind]
        if not isinstance(name, str) or not name or len(name) > 600:
            raise self._mistake(kind, name, "must be a text of 1 to 600 characters")
        if name in known:
            raise self._mistake(kind, name, f"is given twice: a {kind} has one line")
        if len(known) >= most:
            raise self._mistake(kind, name, f"a recording has at most {most} of them")
        return name

    def _time(self, found: dict[str, Any], name: str, default: float | None) -> float:
        value = found.get(name, default)
        if default is not None and name not in found:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_SECONDS <= value <= MAX_SECONDS:
            raise self._mistake(name, value, f"must be a number of seconds, at most {MAX_SECONDS:.0f}")
        return float(value)

    def _amount(self, found: dict[str, Any], name: str, default: float | None) -> float:
        """Millicores of cpu, bytes of memory, bytes a second of the network."""
        value = found.get(name)
        if value is None:
            if default is None or name in found:
                raise self._mistake(name, value, "must be a quantity such as 500m or 2Gi")
            return default
        try:
            quantity = parse_quantity(value if isinstance(value, str) else repr(value))
        except QuantityError as error:
            raise self._mistake(name, value, "must be a quantity such as 500m or 2Gi") from error
        amount = quantity / _UNITS[name.removesuffix("_limit")]
        if not 0 <= amount < 2**53:
            raise self._mistake(name, value, "must be from 0 to 8Pi")
        return amount

    def _mistake(self, name: str, value: object, reason: str) -> InvalidInputError:
        return InvalidInputError(f"{self._origin}:{self._at}", name, value, reason)
