"""What the half hour under fire calls growth of memory."""

from random import Random

import pytest

from tests.e2e.fire.figures import SERVER_HEAP, Life, Memory, grown

EVERY = 9.0
MEASURED = 200


def server_heap(seed: int, *, leak: float) -> Memory:
    """A level of 130 MB that varies by 8 %, with peaks of up to 420 MB; `leak` is the growth from third to third."""
    random, memory = Random(seed), Memory()
    for number in range(MEASURED):
        size = 130e6 * random.gauss(1, 0.08) * (1 + leak * 3 * number / MEASURED)
        if random.random() < 0.2:
            size = random.uniform(size, 420e6)
        memory.sizes[Life(SERVER_HEAP, 1)].append((number * EVERY, int(size)))
    return memory


def worker(*, leak: float) -> Memory:
    memory = Memory()
    for number in range(MEASURED):
        size = 140e6 * (1 + leak * 3 * number / MEASURED)
        memory.sizes[Life("labels-1", 2)].append((number * EVERY, int(size)))
    return memory


def test_peaks_of_the_live_heap_are_no_growth_wherever_they_come() -> None:
    growth = [server_heap(seed, leak=0.0).growth(after=0.0) for seed in range(200)]
    assert all(growth)  # each was judged
    assert [each for each in growth if grown(each)] == []


def test_a_leak_of_nats_server_is_growth() -> None:
    found = [grown(server_heap(seed, leak=0.4).growth(after=0.0)) for seed in range(200)]
    assert all(found)


@pytest.mark.parametrize(("leak", "grows"), [(0.0, False), (0.01, False), (0.04, True)])
def test_a_worker_may_grow_by_two_percent(leak: float, grows: bool) -> None:
    growth = worker(leak=leak).growth(after=0.0)
    assert growth.keys() == {"labels-1 (2)"}
    assert bool(grown(growth)) is grows


def test_a_process_that_has_not_lived_long_is_not_judged() -> None:
    assert worker(leak=0.5).growth(after=0.0, lived=MEASURED * EVERY) == {}


def test_a_process_that_gets_its_first_lease_starts_up_again() -> None:
    memory = Memory()
    standby = MEASURED * EVERY / 2
    for number in range(MEASURED):
        at = number * EVERY
        memory.sizes[Life("collect-2", 3)].append((at, int(106e6 if at < standby else 127e6)))
    assert grown(memory.growth(after=0.0))
    judged = memory.growth(after=0.0, leases={"collect-2": [standby, standby + 500.0], "collect-1": [0.0]})
    assert judged.keys() == {"collect-2 (3)"}
    assert not grown(judged)


def test_a_lease_before_the_process_started_is_that_of_an_earlier_one() -> None:
    memory = worker(leak=0.04)
    assert grown(memory.growth(after=0.0, leases={"labels-1": [-1.0, MEASURED * EVERY + 1.0]}))
