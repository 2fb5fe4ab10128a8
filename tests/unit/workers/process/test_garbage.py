"""Garbage collection in steps: when what is collected, and that garbage goes away without Python's own collections."""

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.servers import eventually
from workers.process.garbage import (
    BURST,
    FULL_APART_SECONDS,
    FULL_SECONDS,
    LONGEST_SECONDS,
    MIDDLE_EVERY,
    SHORTEST_SECONDS,
    SPARE_BLOCKS,
    STEP_SECONDS,
    Steps,
    collected_in_steps,
)

PATIENCE = 120.0
KEPT = 200_000
"""Objects that live on: each new one replaces an old one, as the samples of a node do."""


in_steps = pytest.mark.skipif(sys.version_info[:2] >= (3, 14), reason="Python collects in pieces of its own")


class _Ring:
    """An object that only a collection of garbage frees."""

    def __init__(self) -> None:
        self.itself = self


def test_the_next_step_comes_sooner_after_one_that_took_long() -> None:
    steps = Steps(full_at=0.0, blocks=0)
    assert steps.wait(10 * STEP_SECONDS) == pytest.approx(LONGEST_SECONDS / 10)
    assert steps.wait(STEP_SECONDS) == pytest.approx(LONGEST_SECONDS / 10)
    assert steps.wait(STEP_SECONDS / 2) == pytest.approx(LONGEST_SECONDS / 5)
    assert steps.wait(0) == LONGEST_SECONDS
    assert steps.wait(1000 * STEP_SECONDS) == SHORTEST_SECONDS


def test_all_objects_are_collected_when_the_process_has_grown_but_not_again_at_once() -> None:
    steps = Steps(full_at=0.0, blocks=1_000_000)
    grown = 1_250_000 + SPARE_BLOCKS + 1
    assert steps.generation(grown, FULL_APART_SECONDS - 1) < 2
    assert steps.generation(grown - 1, FULL_APART_SECONDS) < 2
    assert steps.generation(grown, FULL_APART_SECONDS) == 2

    steps.note_full(grown, FULL_APART_SECONDS)
    assert steps.generation(grown, 2 * FULL_APART_SECONDS) < 2
    assert steps.generation(2 * grown, 2 * FULL_APART_SECONDS) == 2


def test_all_objects_are_collected_after_some_time_and_else_only_the_young_ones() -> None:
    steps = Steps(full_at=0.0, blocks=1_000_000)
    found = [steps.generation(1_000_000, 1.0) for _ in range(2 * MIDDLE_EVERY)]
    assert found == 2 * ([0] * (MIDDLE_EVERY - 1) + [1])
    assert steps.generation(1_000_000, FULL_SECONDS) == 2


@in_steps
@pytest.mark.parametrize("survived", [0, 2])
async def test_garbage_is_collected_although_python_hardly_collects_any(survived: int) -> None:
    async with collected_in_steps():
        await eventually(_are_rare, within=PATIENCE)
        ring = _Ring()
        freed = weakref.ref(ring)
        with _young_at_collections() as steps:
            await eventually(lambda: len(steps) >= survived, within=PATIENCE)
        del ring
        assert freed() is not None
        await eventually(lambda: freed() is None, within=PATIENCE)
    assert gc.get_threshold()[0] < BURST
    assert gc.get_freeze_count() == 0


async def _are_rare() -> bool:
    return gc.get_threshold()[0] == BURST


@in_steps
async def test_objects_that_replace_others_do_not_wait_until_they_are_many() -> None:
    objects = _Objects()
    objects.replace(3 * KEPT)
    assert len(gc.get_objects(0)) > KEPT / 2  # Python's next collection would look at all of these

    async with collected_in_steps(), asyncio.timeout(PATIENCE):
        await eventually(_are_rare, within=PATIENCE)
        with _young_at_collections() as young:
            while len(young) < 5 or max(young[-5:]) > KEPT / 2:
                objects.replace(500)
                await asyncio.sleep(0.001)


class _Objects:
    """Objects of which each is replaced in its turn, as the samples of a node are."""

    def __init__(self) -> None:
        self._replaced = 0
        self._objects: dict[int, list[int]] = {number: [number] for number in range(KEPT)}
        gc.collect()

    def replace(self, count: int) -> None:
        for _ in range(count):
            self._replaced += 1
            self._objects[self._replaced % KEPT] = [self._replaced]


@contextmanager
def _young_at_collections() -> Iterator[list[int]]:
    """How many young objects there were at the beginning of each collection."""
    young: list[int] = []

    def note(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            young.append(len(gc.get_objects(0)))

    gc.callbacks.append(note)
    try:
        yield young
    finally:
        gc.callbacks.remove(note)
