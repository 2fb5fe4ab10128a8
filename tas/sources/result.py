"""The result of one poll of a source, or of one remote write request: samples of nodes, and refused values.

Values are accepted or refused one by one, so a wrong value of one node costs no other node its samples. Refused values
are counted by reason, with one example for each reason.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from enum import StrEnum
from typing import TypeVar

import msgspec

from tas.errors import InvalidInputError, line_of
from tas.samples.freshness import time_fault
from tas.samples.sample import Scrape
from tas.sources.nodes import ANY_NODE, NodeNames
from tas.values.blanks import ANY, SMALL_BLANKS, ValueRules, has_small_blanks, is_plain, refusal_of
from tas.values.quantity import Quantity, QuantityError, format_quantity, parse_quantity

MAX_METRICS_PER_SCRAPE = 500
"""The most metrics of a node in one scrape: with names of any length they fit into one message on SAMPLES."""

MAX_ITEMS = 100_000
"""The most series or nodes in one answer: a cluster of 15,000 nodes with 6 series each."""

MAX_VALUES = 2_000_000
"""The most JSON values in one answer, as its commas: even an empty value takes 60 bytes when it is decoded."""

MAX_EXAMPLES = 3
"""The most examples of one reason in a result: of labels that mean no node."""

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of decoding: other JSON than expected, invalid UTF-8, or too deep nesting."""

_R = TypeVar("_R", bound=StrEnum)
_T = TypeVar("_T")


class RefusalReason(StrEnum):
    """Why a value was refused."""

    SHAPE = "shape"
    """The answer, or one item of it, cannot be decoded."""
    NODE = "node"
    """The value belongs to no node: to a pod, to no name at all, or to a name that no node can have."""
    METRIC = "metric"
    """The value is of another metric than the requested one."""
    VALUE = "value"
    """The value is no quantity: NaN, an infinity, text, a number that means NaN, one beyond `min` or `max`."""
    TIME = "time"
    """The time cannot be decoded, is in the future, or is more than an hour ago."""
    DUPLICATE = "duplicate"
    """The answer has several values of this metric for one node, and no rule chooses one: all are refused."""


class SuspectReason(StrEnum):
    """Why a value that was accepted may be none."""

    BLANK = "blank"
    """It is a blank of GPU exporters, of a metric for which the blanks are valid values (`tas.values.blanks`)."""
    JUMP = "jump"
    """For one scrape it was orders of magnitude above the values before and after it (`tas.sources.jumps`)."""


class Sample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The value of one metric of one node.

    `metric` is the name that policies use. `measured` is in seconds since 1970; None if the source gives no time: then
    the time of the request counts. `window` is the span in seconds over which the value was measured, if known. `ends`
    is when the value becomes stale because its series has ended (`Scrape.ends`).
    """

    node: str
    metric: str
    value: Quantity
    measured: float | None = None
    window: float | None = None
    ends: float | None = None


class RefusalCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of values refused or suspect for one reason, with one example: its object, field and value."""

    count: int
    example: str


class SourceResult(msgspec.Struct, frozen=True, kw_only=True):
    """The samples and refusals of one poll or one remote write request.

    `samples` has each metric of a node at most once. `missing` gives for each metric without any value the reason: the
    source does not know the metric, or failed for this metric alone. Of those in `warming` a value comes by itself once
    the window of the statistic is covered. Those in `without_turn` were not read, since other metrics came first: the
    result says nothing of their nodes. `refused_now` has why a value is refused, by node and metric, if the source
    knows all its values at any time. `suspect` counts accepted values that may be none.
    """

    samples: tuple[Sample, ...] = ()
    refusals: Mapping[RefusalReason, RefusalCount] = {}
    missing: Mapping[str, str] = {}
    warming: Set[str] = frozenset()
    without_turn: Set[str] = frozenset()
    refused_now: Mapping[str, Mapping[str, str]] = {}
    suspect: Mapping[SuspectReason, RefusalCount] = {}


def excess_of(body: bytes) -> str | None:
    """Why an answer must not be decoded: it has too many values. None if it may."""
    commas = body.count(b",")
    return f"{commas} values in {len(body)} bytes: must be at most {MAX_VALUES}" if commas > MAX_VALUES else None


def decoded(subject: str, decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """The JSON of an answer. Raises InvalidInputError."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise InvalidInputError(subject, "body", body[:200].decode(errors="replace"), str(error)) from error


class _List(msgspec.Struct, kw_only=True):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_list_decoder = msgspec.json.Decoder(_List)


def items_of(subject: str, kind: str, body: bytes) -> list[msgspec.Raw]:
    """The items of a list of the Kubernetes API. Raises InvalidInputError if it is of another kind, or too large."""
    if (excess := excess_of(body)) is not None:
        raise InvalidInputError(subject, "body", f"{len(body)} bytes", excess)
    answer = decoded(subject, _list_decoder, body)
    if answer.kind != kind:
        raise InvalidInputError(subject, "kind", answer.kind, f"must be {kind}")
    items = answer.items or []
    if len(items) > MAX_ITEMS:
        raise InvalidInputError(subject, "items", f"{len(items)} items", f"must be at most {MAX_ITEMS}")
    return items


class ResultBuilder:
    """Collects the values of an answer into a `SourceResult`, for the decoders of all sources.

    Attributes:
        nodes: The nodes that may have values.
    """

    def __init__(self, nodes: NodeNames = ANY_NODE) -> None:
        self.nodes = nodes
        self._samples: dict[tuple[str, str], Sample] = {}
        self._duplicates: set[tuple[str, str]] = set()
        self._refusals: dict[RefusalReason, RefusalCount] = {}
        self._suspect: dict[SuspectReason, RefusalCount] = {}
        self._unknown: dict[str, None] = {}  # texts that mean no node
        self._missing: dict[str, str] = {}
        self._warming: set[str] = set()
        self._without_turn: set[str] = set()

    def add(
        self,
        *,
        node: str,
        metric: str,
        value: str,
        measured: float | None = None,
        window: float | None = None,
        rules: ValueRules = ANY,
    ) -> None:
        """Adds a value of `metric`, given as the text of the source; refuses an unknown node or an invalid value."""
        found = self.nodes.find(node)
        if found is None:
            self.refuse_node(metric, "node", node, lambda: self.nodes.why_not(node))
            return
        node = found
        try:
            quantity = parse_quantity(value)
        except QuantityError as error:
            self.refuse(RefusalReason.VALUE, f"{metric} of {node}", "value", value, str(error))
            return
        if is_plain(quantity, rules) or self.is_value(
            quantity, f"{metric} of {node}", rules, small=has_small_blanks(metric)
        ):
            self.add_sample(Sample(node=node, metric=metric, value=quantity, measured=measured, window=window))

    def is_value(self, value: Quantity, subject: str, rules: ValueRules, *, small: bool) -> bool:
        """Whether a number is a value (`refusal_of`); else it is refused."""
        if is_plain(value, rules):
            return True
        why = refusal_of(value, rules, small=small)
        if why is not None and not self.counted(RefusalReason.VALUE):
            self.refuse(RefusalReason.VALUE, subject, "value", format_quantity(value), why)
        return why is None

    def add_sample(self, sample: Sample) -> None:
        """Adds a sample with a valid node name and quantity.

        Several values of one node and metric are all refused, the first one included: none is more right than another.
        """
        key = (sample.node, sample.metric)
        if key not in self._samples and key not in self._duplicates:
            self._samples[key] = sample
            if sample.value in SMALL_BLANKS:
                self._suspect_blank(sample)
            return
        before = self._samples.pop(key, None)
        self._duplicates.add(key)
        reason = "must be the only value of this metric for the node" + (
            "" if before is None else ", but there is another: neither counts"
        )
        subject, value = f"{sample.metric} of {sample.node}", format_quantity(sample.value)
        self.refuse(RefusalReason.DUPLICATE, subject, "value", value, reason, count=1 if before is None else 2)

    def _suspect_blank(self, sample: Sample) -> None:
        before = self._suspect.get(SuspectReason.BLANK)
        subject, reason = (
            f"{sample.metric} of {sample.node}",
            "is a number of bytes, or a blank of GPU exporters (DCGM)",
        )
        error = InvalidInputError(subject, "value", format_quantity(sample.value), reason)
        self._suspect[SuspectReason.BLANK] = (
            RefusalCount(count=1, example=line_of(str(error)))
            if before is None
            else msgspec.structs.replace(before, count=before.count + 1)
        )

    def refuse(
        self, category: RefusalReason, subject: str, field: str, value: object, reason: str, *, count: int = 1
    ) -> None:
        """Counts a refused value, or `count` of them; the first one of each category is the example."""
        before = self._refusals.get(category)
        self._refusals[category] = (
            RefusalCount(count=count, example=line_of(str(InvalidInputError(subject, field, value, reason))))
            if before is None
            else msgspec.structs.replace(before, count=before.count + count)
        )

    def counted(self, category: RefusalReason) -> bool:
        """Counts a refused value of a category that has an example. False if it has none: then call `refuse`.

        For values of which a stranger may send millions: to format an example takes longer than to decode a value.
        """
        before = self._refusals.get(category)
        if before is None:
            return False
        self._refusals[category] = msgspec.structs.replace(before, count=before.count + 1)
        return True

    def refuse_node(self, subject: str, field: str, text: str, reason: Callable[[], str]) -> None:
        """Counts a value whose label `field` means no node; the first few different texts are all examples."""
        before = self._refusals.get(RefusalReason.NODE)
        if before is not None and (text in self._unknown or len(self._unknown) >= MAX_EXAMPLES):
            self.counted(RefusalReason.NODE)
            return
        self._unknown[text] = None
        why = line_of(str(InvalidInputError(subject, field, text, reason())))
        self._refusals[RefusalReason.NODE] = (
            RefusalCount(count=1, example=why)
            if before is None
            else RefusalCount(count=before.count + 1, example=f"{before.example}; {why}")
        )

    def add_missing(self, metric: str, reason: str, *, warming: bool = False, without_turn: bool = False) -> None:
        """Notes that the source gave no value of `metric`.

        `warming`: only because its window is not covered yet. `without_turn`: only because other metrics came first.
        """
        self._missing[metric] = reason
        if warming:
            self._warming.add(metric)
        if without_turn:
            self._without_turn.add(metric)

    def result(self) -> SourceResult:
        """All that was added, samples in the order in which they were added."""
        return SourceResult(
            samples=tuple(self._samples.values()),
            refusals=self._refusals,
            missing=self._missing,
            warming=self._warming,
            without_turn=self._without_turn,
            suspect=self._suspect,
        )


def combined(results: Iterable[SourceResult]) -> SourceResult:
    """One result of several that have no metric in common, as of one request for each metric."""
    samples: list[Sample] = []
    refusals: dict[RefusalReason, RefusalCount] = {}
    missing: dict[str, str] = {}
    warming: set[str] = set()
    without_turn: set[str] = set()
    suspect: dict[SuspectReason, RefusalCount] = {}
    for result in results:
        samples += result.samples
        _count_in(refusals, result.refusals)
        missing |= result.missing
        warming |= result.warming
        without_turn |= result.without_turn
        _count_in(suspect, result.suspect)
    return SourceResult(
        samples=tuple(samples),
        refusals=refusals,
        missing=missing,
        warming=warming,
        without_turn=without_turn,
        suspect=suspect,
    )


def _count_in(counts: dict[_R, RefusalCount], more: Mapping[_R, RefusalCount]) -> None:
    for category, refusal in more.items():
        before = counts.get(category)
        count = refusal.count + (before.count if before else 0)
        counts[category] = RefusalCount(count=count, example=(before or refusal).example)


def with_suspect(result: SourceResult, suspect: Mapping[SuspectReason, RefusalCount]) -> SourceResult:
    """`result` with values that were found suspect when it was published."""
    if not suspect:
        return result
    counts = dict(result.suspect)
    _count_in(counts, suspect)
    return msgspec.structs.replace(result, suspect=counts)


def with_refusals(result: SourceResult, refusals: Mapping[RefusalReason, RefusalCount]) -> SourceResult:
    """`result` with more refused values."""
    counts = dict(result.refusals)
    _count_in(counts, refusals)
    return msgspec.structs.replace(result, refusals=counts)


def with_valid_times(result: SourceResult, *, now: float) -> SourceResult:
    """`result` without the samples whose time is invalid: `materialize` would refuse them as well (facts.md n52)."""
    times = {sample.measured for sample in result.samples}  # often one for all
    if all(_time_fault(time, now) is None for time in times):
        return result
    builder = ResultBuilder()
    kept: list[Sample] = []
    for sample in result.samples:
        fault = _time_fault(sample.measured, now)
        if fault is None:
            kept.append(sample)
        else:
            subject = f"{sample.metric} of {sample.node}"
            builder.refuse(RefusalReason.TIME, subject, "measured", sample.measured, fault)
    return with_refusals(msgspec.structs.replace(result, samples=tuple(kept)), builder.result().refusals)


def _time_fault(measured: float | None, now: float) -> str | None:
    return None if measured is None else time_fault(measured, now)


def scrapes(samples: Iterable[Sample], *, source: str, requested_at: float) -> Iterator[tuple[str, Scrape]]:
    """Each node's samples as scrapes: one scrape for all samples of the same time, window and end.

    `requested_at` is when the request was sent, in seconds since 1970: the time of samples without a time of their own.
    """
    together: dict[tuple[str, float, float | None, float | None], dict[str, Quantity]] = {}
    for sample in samples:
        measured = requested_at if sample.measured is None else sample.measured
        together.setdefault((sample.node, measured, sample.window, sample.ends), {})[sample.metric] = sample.value
    for (node, measured, window, ends), metrics in together.items():
        names = list(metrics)
        for start in range(0, len(names), MAX_METRICS_PER_SCRAPE):
            some = {name: metrics[name] for name in names[start : start + MAX_METRICS_PER_SCRAPE]}
            yield (
                node,
                Scrape(
                    source=source,
                    measured=measured,
                    arrived=measured,
                    sequence=0,
                    window=window,
                    ends=ends,
                    metrics=some,
                ),
            )
