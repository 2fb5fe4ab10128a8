"""What a policy means for a node's labels, read anew from what was published and what the API server held.

Nothing here asks the product. Policies are their raw `spec`, samples are what the test sent, times are seconds since
1970. Only what the histories use is known here: `GreaterThan` and `LessThan`, whole targets, one source.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

PREFIX = "telemetry.aware.scheduling."
VIOLATING = "violating"

Spec = Mapping[str, Any]
Key = tuple[str, str]
"""A policy's namespace and name."""
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was sent at `sent`, perhaps in vain."""

    value: int
    measured: float
    sent: float


@dataclass
class Samples:
    """All that was sent, and what of it was seen to stand on the bus.

    Attributes:
        sent: By node and metric.
        stood: When a sample of this time was first seen in the present life of the bus, by node and metric.
        wiped: When the bus last lost what it knew.
    """

    sent: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    stood: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    wiped: float = inf

    def sending(self, node: str, metric: str, sample: Sample) -> None:
        self.sent.setdefault((node, metric), []).append(sample)

    def seen(self, node: str, metric: str, measured: float, at: float) -> None:
        self.stood.setdefault((node, metric), {}).setdefault(_microseconds(measured), at)

    def readable(self, node: str, metric: str) -> Iterator[tuple[Sample, float]]:
        """Each sample, with the time from which something newer is known to stand in its place."""
        stood = self.stood.get((node, metric), {})
        for sample in self.sent.get((node, metric), []):
            order = _microseconds(sample.measured)
            yield sample, min((at for measured, at in stood.items() if measured > order), default=inf)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def seconds(text: str) -> float:
    """A duration as the histories write it: `500ms` or `2s`."""
    return int(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1])


def is_violated(rule: Mapping[str, Any], value: int) -> bool:
    target = int(rule["target"])
    return value > target if rule["operator"] == "GreaterThan" else value < target


def is_silent(spec: Spec) -> bool:
    return bool(spec.get("suspend") or spec.get("dryRun"))


@dataclass(frozen=True, slots=True)
class Label:
    """One label of a policy: the rules that carry it, and those that count for it."""

    strategy: Mapping[str, Any]
    carrying: Sequence[Mapping[str, Any]]
    counting: Sequence[Mapping[str, Any]]

    @property
    def any_of(self) -> bool:
        return bool(self.strategy.get("logicalOperator", "anyOf") == "anyOf")

    @property
    def on_stale(self) -> str:
        return str(self.strategy.get("onStale", "hold"))


def labels_of(name: str, spec: Spec) -> dict[str, Label]:
    """Every label that a policy of this name speaks of."""
    found: dict[str, Label] = {}
    strategies = spec["strategies"]
    if rules := strategies.get("deschedule", {}).get("rules"):
        found[name] = Label(strategies["deschedule"], rules, rules)
    labeling = strategies.get("labeling", {})
    for rule in labeling.get("rules", []):
        for text in rule["labels"]:
            label = f"{PREFIX}{name}/{text.partition('=')[0]}"
            carrying = (*(found[label].carrying if label in found else ()), rule)
            found[label] = Label(labeling, carrying, carrying)
    for label, each in found.items():
        if not each.any_of:
            found[label] = Label(each.strategy, each.carrying, each.strategy["rules"])
    return found


def selects(spec: Spec, labels: Mapping[str, str]) -> bool:
    wanted = spec.get("nodeSelector", {}).get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items())


def keeps(spec: Spec, name: str, label: str) -> bool:
    """Whether a policy that the API server has is a reason to leave a label of its name alone."""
    return is_silent(spec) or label in labels_of(name, spec)


def confirms(
    spec: Spec,
    name: str,
    label: str,
    *,
    node: str,
    labels: Mapping[str, str],
    samples: Samples,
    default_stale_after: float,
    window: Span,
) -> bool:
    """Whether at some moment of `window` this policy said, by samples or by its own words, that a label goes.

    `labels` are those of the node before it went.
    """
    found = labels_of(name, spec).get(label)
    if found is None or is_silent(spec):
        return False
    if not selects(spec, labels):
        return True
    stale_after = seconds(spec["staleAfter"]) if "staleAfter" in spec else default_stale_after
    spans = [
        _met(rule, found.on_stale, node=node, samples=samples, stale_after=stale_after, window=window)
        for rule in found.counting
    ]
    if not found.any_of:
        return any(spans)
    moments = [start for each in spans for start, _ in each]
    return any(all(any(start <= at <= end for start, end in each) for each in spans) for at in moments)


def _met(
    rule: Mapping[str, Any], on_stale: str, *, node: str, samples: Samples, stale_after: float, window: Span
) -> list[Span]:
    """When in `window` somebody may have read samples by which the rule is met."""
    spans: list[Span] = []
    for sample, replaced in samples.readable(node, rule["metricname"]):
        stale = sample.measured + stale_after
        if not is_violated(rule, sample.value):
            spans.append((sample.sent, min(stale, replaced)))
        if on_stale == "clear":
            spans += [(max(stale, sample.sent), replaced), (samples.wiped, inf)]
    cut = [(max(start, window[0]), min(end, window[1])) for start, end in spans]
    return [span for span in cut if span[0] <= span[1]]


@dataclass(frozen=True, slots=True)
class Expected:
    """What is to stand in the end: `value` (None: nothing); anything if a policy holds it."""

    value: str | None
    free: bool = False


def expected(policies: Mapping[Key, Spec], labels: Mapping[str, str], values: Mapping[str, int]) -> dict[str, Expected]:
    """Every label that some policy speaks of, where all metrics are known and fresh."""
    found: dict[str, Expected] = {}
    for (_, name), spec in sorted(policies.items()):
        for label, each in labels_of(name, spec).items():
            value = None if is_silent(spec) or not selects(spec, labels) else _value(label, each, values)
            mine = Expected(value, free=is_silent(spec))
            before = found.get(label, Expected(None))
            if before.value is None:  # set beats hold beats absent; of two values that of the first namespace stands
                found[label] = mine if mine.value is not None else Expected(None, before.free or mine.free)
    return found


def _value(label: str, each: Label, values: Mapping[str, int]) -> str | None:
    violated = [is_violated(rule, values[rule["metricname"]]) for rule in each.counting]
    if not (any(violated) if each.any_of else all(violated)):
        return None
    if "/" not in label:
        return VIOLATING
    # The histories give the rules of one label one metric and one operator, so the first one that is violated wins.
    winner = next(rule for rule in each.carrying if is_violated(rule, values[rule["metricname"]]))
    key = label.rpartition("/")[2]
    return str(dict(text.split("=") for text in winner["labels"])[key])
