"""Where an answer's time goes: the processor time of each step between a request's body and the answer's."""

import time
from collections.abc import Callable, Mapping
from itertools import cycle, islice
from statistics import median
from typing import Any

import orjson

from tas.extender.telemetry import TelemetryDecider
from tas.extender.verbs import Verb, answer_filter, answer_prioritize
from tests.bench import cluster
from tests.bench.measure import no_collection
from tests.bench.rows import Results, Size, row
from tests.bench.stand import Stand

NAME = "stages"
SIZES = (500, 5000)
NODES = 15_000
LISTS = 32
VERBS: Mapping[str, Verb[Any, Any]] = {"filter": answer_filter, "prioritize": answer_prioritize}
STAGES = ("names read", "decided", "written", "recorded, after the answer")

EVICTED = bytes(4 << 20)
"""Copied before each step, so that caches are as cold as if other requests and samples had come between."""


async def measure(stand: Stand) -> Results:
    """Each step of filter and prioritize; to read the names beside only decoding their JSON, and telling them apart."""
    names = cluster.node_names(NODES)
    now = time.time()
    decider = TelemetryDecider(cluster.filled_view(names, now))
    results = Results()
    for size in SIZES:
        lists = list(islice(cluster.lists_of_names(names, size, seed=size), LISTS))
        bodies = [cluster.names_only(number, found) for number, found in enumerate(lists)]
        repetitions = stand.some(300, 100)
        least = _medians(stand, repetitions, cycle([orjson.dumps(found) for found in lists]).__next__, _parse)
        for name, verb in VERBS.items():
            found: dict[str, list[float]] = {stage: [] for stage in STAGES}
            for _ in range(stand.rounds):
                times = _times(verb, decider, bodies, repetitions, now)
                for stage, each in zip(STAGES, times, strict=True):
                    found[stage].append(median(each) / 1000)
            for stage, medians in found.items():
                beside = least if stage == STAGES[0] else ()
                floor_name = "orjson.loads, a dict" if beside else ""
                series = f"{name} of names: {stage}"
                sized = Size(size, "names")
                results.rows.append(
                    row(series, "processor", medians, beside, unit="µs", floor_name=floor_name, size=sized)
                )
    return results


def _times(
    verb: Verb[Any, Any], decider: TelemetryDecider, bodies: list[bytes], repetitions: int, now: float
) -> list[list[int]]:
    """For each step its nanoseconds, once for each repetition."""
    times: list[list[int]] = [[] for _ in STAGES]
    clock = time.thread_time_ns
    with no_collection():
        for body in islice(cycle(bodies), repetitions):
            bytearray(EVICTED)
            began = clock()
            args = verb.decode(body)
            read = clock()
            decision = verb.decide(decider, args, now)
            decided = clock()
            _, record = verb.respond(args, decision, now)
            written = clock()
            record()
            for found, took in zip(
                times, (read - began, decided - read, written - decided, clock() - written), strict=True
            ):
                found.append(took)
    return times


def _parse(raw: bytes) -> None:
    dict.fromkeys(orjson.loads(raw))


def _medians(
    stand: Stand, repetitions: int, value: Callable[[], bytes], action: Callable[[bytes], None]
) -> list[float]:
    found = []
    with no_collection():
        for _ in range(stand.rounds):
            times = []
            for _ in range(repetitions):
                raw = value()
                bytearray(EVICTED)
                began = time.thread_time_ns()
                action(raw)
                times.append(time.thread_time_ns() - began)
            found.append(median(times) / 1000)
    return found
