"""The labels that policies mean for a node, from the published samples and the objects of the API server.

Nothing here uses the rules of the product. A policy is its raw `spec`, samples are those that the test sent, times are
seconds since 1970. The model has only what the histories use, for example whole targets.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Any

from tests.integration.removal.spans import ALWAYS, Span, intersection, union

PREFIX = "telemetry.aware.scheduling."
VIOLATING = "violating"

REPLACEABLE = (VIOLATING, "", "null")
"""The values of a label without prefix that the product may replace; any other value belongs to somebody else."""

SOURCES = ("agent", "probe")
"""The sources of every node."""

Spec = Mapping[str, Any]
Key = tuple[str, str]
"""A policy's namespace and name."""


@dataclass(slots=True)
class Sample:
    """A sample that was sent at `sent`, and has perhaps not arrived.

    Attributes:
        measured: The time in the message, by the clock of the source.
        acked: When the bus had acknowledged the message.
        in_table: Whether the message was a table.
    """

    value: int
    measured: float
    sent: float
    source: str = SOURCES[0]
    acked: float = inf
    in_table: bool = False

    @property
    def is_ahead(self) -> bool:
        """Whether the source's clock was ahead: then the time of arrival counts, between `sent` and `acked`."""
        return self.measured > self.sent

    @property
    def earliest(self) -> float:
        """The earliest time that may count."""
        return min(self.measured, self.sent)

    @property
    def latest(self) -> float:
        """The latest time that may count."""
        return min(self.measured, self.acked)


@dataclass
class Samples:
    """All sent samples, and those that were seen in NODES.

    Attributes:
        sent: By node and metric.
        lives: The start of each epoch, and when a sample of this source and time was first seen in it, by node and
            metric.
    """

    sent: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    lives: list[tuple[float, dict[tuple[str, str], dict[tuple[str, int], float]]]] = field(
        default_factory=lambda: [(-inf, {})]
    )

    def sending(self, node: str, metric: str, sample: Sample) -> None:
        self.sent.setdefault((node, metric), []).append(sample)

    def wiped(self, at: float) -> None:
        self.lives.append((at, {}))

    def seen(self, life: int, node: str, metric: str, *, source: str, measured: float, at: float) -> None:
        self.lives[life][1].setdefault((node, metric), {}).setdefault((source, _microseconds(measured)), at)

    def readable(self, node: str, metric: str, source: str | None = None) -> Iterator[tuple[Sample, Span]]:
        """Each sample, with the time in which it may have been the newest: until a newer one is known to be stored.

        With `source`, only samples of this source count. A sample of an earlier epoch may or may not be stored in the
        next one.
        """
        sent = [sample for sample in self.sent.get((node, metric), []) if source in (None, sample.source)]
        for number, (began, stored) in enumerate(self.lives):
            ended = self.lives[number + 1][0] if number + 1 < len(self.lives) else inf
            here = stored.get((node, metric), {})
            seen = sorted(
                (sample.earliest, here[name])
                for sample in sent
                if (name := (sample.source, _microseconds(sample.measured))) in here
            )
            times = [earliest for earliest, _ in seen]
            first = list(accumulate((at for _, at in reversed(seen)), min, initial=inf))[::-1]
            for sample in sent:
                replaced = first[bisect_right(times, sample.latest)]
                span = (max(began, sample.sent), min(ended, replaced))
                if span[0] <= span[1]:
                    yield sample, span


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def seconds(text: str) -> float:
    """The seconds of `500ms` or `2s`, the two forms of the histories."""
    return int(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1])


def is_violated(rule: Mapping[str, Any], value: int) -> bool:
    target = int(rule["target"])
    return {"GreaterThan": value > target, "LessThan": value < target, "Equals": value == target}[rule["operator"]]


def series(rule: Mapping[str, Any]) -> str:
    """The metric of a rule, with its source if the rule names one."""
    return f"{rule['metricname']}@{rule['source']}" if "source" in rule else str(rule["metricname"])


def is_silent(spec: Spec) -> bool:
    return bool(spec.get("suspend") or spec.get("dryRun"))


@dataclass(frozen=True, slots=True)
class Label:
    """A label of a policy: the rules that have it, and the rules that decide it."""

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
    """Every label of a policy of this name."""
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
    selector = spec.get("nodeSelector", {}).get("matchLabels", {})
    return all(labels.get(key) == value for key, value in selector.items())


def keeps(spec: Spec, name: str, label: str) -> bool:
    """Whether a policy in the API server keeps a label of its name."""
    return is_silent(spec) or label in labels_of(name, spec)


def claims(spec: Spec, label: str) -> bool:
    """Whether a policy takes part in who owns a label of its name: in force, and with the strategy of the label."""
    strategy = "labeling" if "/" in label else "deschedule"
    return not is_silent(spec) and bool(spec["strategies"].get(strategy, {}).get("rules"))


def clear_for(spec: Spec, name: str, label: str) -> float:
    """For how many seconds the rules of a label must be met without a break."""
    return seconds(str(labels_of(name, spec)[label].strategy.get("clearFor", "0s")))


def met(
    spec: Spec,
    name: str,
    label: str,
    *,
    node: str,
    samples: Samples,
    default_stale_after: float,
    stale_counts: bool,
    clocks: Span = (0.0, 0.0),
) -> list[Span]:
    """When a read may have given samples that meet the rules of a label, without regard to `nodeSelector`.

    A stale sample counts as met if the policy has `onStale: clear`, and with `stale_counts`. `clocks` are the lowest
    and the highest error of the replicas' clocks in seconds: for a replica whose clock is behind, a sample is fresh for
    longer.
    """
    found = labels_of(name, spec).get(label)
    if found is None:
        return []
    stale_after = seconds(spec["staleAfter"]) if "staleAfter" in spec else default_stale_after
    clears = stale_counts and found.on_stale == "clear"
    fresh = (stale_after - clocks[1], stale_after - clocks[0])
    spans = [_met(rule, clears, node=node, samples=samples, fresh=fresh) for rule in found.counting]
    if not found.any_of:
        return union(span for each in spans for span in each)
    together = [ALWAYS]
    for each in spans:
        together = intersection(together, each)
    return together


def _met(rule: Mapping[str, Any], stale_clears: bool, *, node: str, samples: Samples, fresh: Span) -> list[Span]:
    """`fresh` has the shortest and the longest time in seconds for which a sample is fresh for some replica."""
    spans: list[Span] = []
    for sample, (start, end) in samples.readable(node, rule["metricname"], rule.get("source")):
        if not is_violated(rule, sample.value):
            spans.append((start, min(sample.latest + fresh[1], end)))
        if stale_clears:
            spans.append((max(sample.earliest + fresh[0], start), end))
    return union(spans)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected value of a label (None: absent); with `free` any value, since a policy holds it."""

    value: str | None
    free: bool = False


def expected(
    policies: Mapping[Key, Spec], created: Mapping[Key, str], labels: Mapping[str, str], values: Mapping[str, int]
) -> dict[str, Expected]:
    """All labels that policies name, if all series are known and fresh. `created` is of each policy, as RFC 3339.

    `values` are those of each series: of each metric of each source, and of the newest sample of each metric.
    The oldest policy of a name that claims a label decides; of equally old ones, that of the first namespace. A label
    that only others name stays as it is, and so does one without an owner.
    """
    found: dict[str, Expected] = {}
    for name in {name for _, name in policies}:
        own = {key: spec for key, spec in policies.items() if key[1] == name}
        for label in {label for spec in own.values() for label in labels_of(name, spec)}:
            owner = (
                min((created[key], key) for key in own if claims(own[key], label))[1]
                if any(claims(spec, label) for spec in own.values())
                else None
            )
            each = None if owner is None else labels_of(name, own[owner]).get(label)
            if owner is None or each is None:
                found[label] = Expected(None, free=True)
            else:
                found[label] = Expected(_value(label, each, values) if selects(own[owner], labels) else None)
    return found


def _value(label: str, each: Label, values: Mapping[str, int]) -> str | None:
    violated = [is_violated(rule, values[series(rule)]) for rule in each.counting]
    if not (any(violated) if each.any_of else all(violated)):
        return None
    if "/" not in label:
        return VIOLATING
    # The histories give the rules of one label one series and one operator, so the first one that is violated wins.
    winner = next(rule for rule in each.carrying if is_violated(rule, values[series(rule)]))
    key = label.rpartition("/")[2]
    return str(dict(text.split("=") for text in winner["labels"])[key])
