"""The allocation of a node as `tas explain node` prints it, from a record on a real bus."""

import time

import pytest

from bus.buckets import NODES
from bus.connection import Bus
from bus.kinds import NODE_ALLOCATION
from bus.records.codec import encode
from cli.queries.allocation_tables import SHOWN
from tas.allocation.node import NodeAllocation, Recent
from tests.integration.bus.limits import long_limits
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")


async def test_explain_node_shows_what_its_pods_request(tas: Tas, server: Server, bus: Bus) -> None:
    """Also of a node without samples and labels."""
    tas.environment["TAS_BUS"] = server.url
    now = time.time()
    older = [Recent(now - 180.0 - number) for number in range(SHOWN)]
    found = NodeAllocation(
        uid="u",
        capacity={"cpu": 8000, "memory": 32 * 2**30, "pods": 110},
        allocatable={"cpu": 7500, "memory": 30 * 2**30, "pods": 110},
        requested={"cpu": 1250, "memory": 2 * 2**30, "pods": 12},
        limited={"cpu": 15000, "memory": 2 * 2**30},
        unreadable=1,
        recent=(Recent(now - 121.0, (("cpu", 250), ("memory", 2**30))), *older),
    )
    await bus.put(NODES, NODE_ALLOCATION.key("node-1"), encode(found), revision=0, read_at=time.monotonic())

    done = await tas("explain", "node", "node-1")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0].startswith("node-1: 12 pods, unchanged for ")
    assert lines[1:5] == [
        "RESOURCE CAPACITY ALLOCATABLE REQUESTS LIMITS",
        "cpu 8000m 7500m 1250m (16%) 15000m (200%)",
        "memory 32Gi 30Gi 2Gi (6%) 2Gi (6%)",
        "pods 110 110 12 (10%) 0 (0%)",
    ]
    assert lines[5].startswith("1 pod with a quantity that cannot be read: the sums are too small")
    assert lines[6].startswith("placed 2m")
    assert lines[6].endswith(" ago: cpu 250m, memory 1Gi")
    assert lines[7].endswith(" ago: no requests")
    assert lines[-1] == "1 more new pod: --json has them all"

    allocation = (await tas("explain", "node", "node-1", "--json")).json["allocation"]
    assert allocation["resources"]["cpu"] == {
        "capacity": 8000,
        "allocatable": 7500,
        "requested": 1250,
        "limited": 15000,
    }
    assert len(allocation["recent"]) == SHOWN + 1
    assert allocation["recent"][0]["requests"] == {"cpu": 250, "memory": 2**30}

    await bus.put(
        NODES,
        NODE_ALLOCATION.key("node-2"),
        b'{"uid": "u", "requested": {"cpu": -1}}',
        revision=0,
        read_at=time.monotonic(),
    )
    done = await tas("explain", "node", "node-2", "--json")
    assert (done.code, done.json["allocation"]) == (1, None)
    assert "NODES/node-2.allocation" in done.err
    assert "requested.cpu" in done.err
