"""When a replica stores what an agent has learned."""

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tas.agents.learning import Position, Step, StoredState, next_step


def at(sequence: int, since: float = 1.0) -> Position:
    return Position(sequence=sequence, since=since)


@pytest.mark.parametrize(
    ("own", "stored", "step"),
    [
        pytest.param(Position(), StoredState(revision=0, position=None), Step.NOTHING, id="nothing was learned"),
        pytest.param(
            at(5), StoredState(revision=0, position=None), Step.WRITE, id="nothing is stored, as after a wipe"
        ),
        pytest.param(at(5), StoredState(revision=9, position=None), Step.WRITE, id="of another version"),
        pytest.param(at(5), StoredState(revision=7, position=at(4)), Step.WRITE, id="more was learned"),
        pytest.param(at(5), StoredState(revision=7, position=at(5)), Step.NOTHING, id="all is stored"),
        pytest.param(at(5), StoredState(revision=8, position=at(4)), Step.NOTHING, id="another replica has written"),
        pytest.param(at(5, 2.0), StoredState(revision=7, position=at(1)), Step.RESTORE, id="older"),
        pytest.param(Position(), StoredState(revision=8, position=at(1)), Step.RESTORE, id="we know nothing"),
        pytest.param(at(5), StoredState(revision=8, position=at(6)), Step.RESTORE, id="another replica is further"),
        pytest.param(at(5), StoredState(revision=8, position=at(9, 2.0)), Step.WRITE, id="younger, whoever wrote it"),
    ],
)
def test_what_a_replica_does(own: Position, stored: StoredState, step: Step) -> None:
    assert next_step(own, stored, known_revision=7) is step


@dataclass
class Replica:
    """What it has counted, by a model of the log: event n has the time n and the sequence n + 1."""

    position: Position = field(default_factory=Position)
    counted: tuple[int, ...] = ()
    revision: int = 0

    def learn(self, until: int, first: int) -> None:
        for event in range(max(self.position.sequence, first), until):
            self.counted += (event,)
            self.position = at(event + 1, min(self.position.since, event))


class World:
    """Three replicas, what is stored, and the log: the events from `first` to `events`."""

    def __init__(self) -> None:
        self.replicas = [Replica(), Replica(), Replica()]
        self.stored = Replica()
        self.events = self.first = 0

    def event(self, number: int) -> None:
        self.events += number

    def trim(self, number: int) -> None:
        self.first = max(self.first, self.events - number)

    def start(self, number: int) -> None:
        """A replica starts again, with what is stored."""
        self.replicas[number] = Replica(self.stored.position, self.stored.counted, self.stored.revision)

    def learn(self, number: int) -> None:
        self.replicas[number].learn(self.events, self.first)

    def look(self, number: int) -> None:
        replica, stored = self.replicas[number], self.stored
        found = StoredState(revision=stored.revision, position=stored.position if stored.revision else None)
        step = next_step(replica.position, found, known_revision=replica.revision)
        if step is Step.RESTORE:
            replica.position, replica.counted = stored.position, stored.counted
        elif step is Step.WRITE:
            self.stored = Replica(replica.position, replica.counted, stored.revision + 1)
        replica.revision = self.stored.revision


STEPS = st.lists(
    st.tuples(st.sampled_from(["event", "trim", "start", "look", "learn"]), st.integers(0, 2)), max_size=60
)


@given(STEPS)
@example([("event", 1), ("learn", 0), ("event", 1), ("look", 0), ("learn", 0), ("trim", 0), ("start", 1)])
def test_replicas_come_to_know_the_same_and_count_each_event_once(steps: list[tuple[str, int]]) -> None:
    """Whenever they start and look, and whatever the log has lost."""
    world = World()
    for what, number in steps:
        getattr(world, what)(number)
        for replica in (*world.replicas, world.stored):
            assert list(replica.counted) == sorted(set(replica.counted))
            assert replica.position.since == (replica.counted[0] if replica.counted else inf)
    for what in ("look", "learn") * 4:
        for number in range(3):
            getattr(world, what)(number)
    assert len({(replica.position.since, replica.counted[-1:]) for replica in world.replicas}) == 1
