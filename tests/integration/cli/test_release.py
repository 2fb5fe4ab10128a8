"""`tas release`: by the clock of the bus, and only a node that there is."""

import time
from datetime import datetime, timedelta, tzinfo

import pytest

from bus.buckets import NODES
from bus.connection import Bus
from bus.kinds import NODE_FACTS, NODE_RELEASES
from bus.records.nodes import NodeFacts
from cli.release import release_node
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server


async def test_a_node_of_which_nothing_is_known_is_not_released(tas: Tas, server: Server, bus: Bus) -> None:
    """A name with a typing error: the node that was meant is still rejected."""
    tas.environment["TAS_BUS"] = server.url
    done = await tas("release", "nod-1")
    assert (done.code, done.out) == (1, "")
    assert "node nod-1: the bus has neither samples nor labels of this node" in done.err
    assert not (await NODE_RELEASES.get(bus, "nod-1")).present


class Behind:
    """`datetime` on a machine whose clock is an hour behind."""

    fromtimestamp = staticmethod(datetime.fromtimestamp)

    @staticmethod
    def now(zone: tzinfo | None = None) -> datetime:
        """An hour ago."""
        return datetime.now(zone) - timedelta(hours=1)


async def test_the_clock_of_the_bus_says_since_when_values_count(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is behind, the last known value would count on, though the command says otherwise."""
    await NODE_FACTS.put(bus, "node-1", NodeFacts(uid="u", labels={}), revision=0, read_at=time.monotonic())
    before = (await bus.epoch(NODES)).now
    monkeypatch.setattr("cli.release.datetime", Behind)
    assert await release_node(bus, "node-1") == 0
    stored = await NODE_RELEASES.get(bus, "node-1")
    record = stored.readable()
    assert record is not None
    assert before <= record.time.timestamp() + 0.001
    assert record.time.timestamp() <= stored.created + 0.001
