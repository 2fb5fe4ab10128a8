"""Bad tables from a real bus to the answers of filter: who is named, and that the neighbours in a table are as before.

Each kind of invalid input is tested for itself in `tests/unit/bus/test_tables.py`.
"""

import json
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from bus.buckets import NODES, POLICIES, SAMPLES, TABLES
from bus.connection import Bus
from bus.errors import RefusedError
from bus.kinds import NODE_FACTS
from bus.records.codec import encode, time_of
from bus.records.nodes import NodeFacts
from bus.records.policies import PolicyRecord, encode_policy
from bus.subjects import policy_key
from tas.extender.decision import Pod
from tas.extender.telemetry import TelemetryDecider
from tas.policy.manifest import parse_policy
from tas.policy.policy import POD_LABEL, PolicyKey
from tas.samples.parts import Part
from tas.samples.table import Table
from tests.integration.servers import answered, eventually
from tests.integration.workers.materialize.test_materialize import Materialized, delete_facts, list_nodes, materializing
from tests.integration.workers.materialize.test_stored_tables import WHOLE, at, stored
from tests.integration.workers.running import epoch_on, put, running
from workers.following.followed_view import FollowedView
from workers.following.synced import write_synced
from workers.materialize import stored_tables

HOT, COLD, BAD = "hot", "cold", "bad"
"""Nodes with a value above the target of each policy, with one below it, and without a valid one."""

ROWS = [HOT, BAD, COLD]


class Case(NamedTuple):
    """A table of the source and the metric that have the name of the case, and how the refusals are named."""

    body: dict[str, Any]
    refused: dict[str, float]
    lines: list[tuple[str, str]]  # field and value of each line of the log


def case(column: Sequence[object], nodes: Sequence[str] = ROWS, **others: Any) -> dict[str, Any]:
    """A table with a column `own`, which has the name of the case when it is published."""
    return {"nodes": nodes, "metrics": {"own": column}, **others}


INVENTED = [f"ghost-{number:03}" for number in range(997)]
BLANK = "9223372036854775807"


def in_part() -> dict[str, Case]:
    """Tables of which something is refused. Made when they are published, for their times."""
    return {
        "unequal": Case(
            {"nodes": ROWS, "metrics": {"own": ["99", None, "1"], "short": ["99", "99"]}},
            {"value": 1},
            [("metrics.short", "2 values")],
        ),
        "twice": Case(case(["99", "99", "1", "99"], [*ROWS, BAD]), {"names": 2}, [("nodes.1", BAD)]),
        "mixed": Case(case(["99", "9 9", "1"]), {"value": 1}, [("metrics.mixed.bad", "9 9")]),
        "number": Case(case([99, {"value": 99}, 1]), {"value": 1}, [("metrics.number.bad", '{"value": 99}')]),
        "blank": Case(case(["99", BLANK, "1"]), {"value": 1}, [("metrics.blank.bad", BLANK)]),
        "unknown": Case(case(["99", "99", "1"], [HOT, "ghost", COLD]), {"unknown_node": 1}, [("nodes", "ghost")]),
        "invented": Case(
            case([*["99"] * 998, "1"], [HOT, *INVENTED, COLD]), {"unknown_node": 997}, [("nodes", INVENTED[0])]
        ),
        "times": Case(
            case(["99", "99", "1"], measured=[at(), "yesterday", at(-5)]),
            {"time": 1},
            [("measured.times.bad", '"yesterday"')],
        ),
        "ahead": Case(
            case(["99", "99", "1"], measured={"own": [at(), "2999-01-01T00:00:00Z", at(-5)]}),
            {"time": 1},
            [("measured.ahead.bad", '"2999-01-01T00:00:00Z"')],
        ),
        "window": Case(case(["99", "99", "1"], window=[60, -1, None]), {"window": 1}, [("window.window.bad", "-1")]),
    }


def as_a_whole() -> dict[str, Case]:
    """Tables that are refused: the one before counts."""
    a_day_ago = at(-86400)
    by_row = {"nodes": ROWS, "metrics": [["99"], ["99"], ["99"]]}
    return {
        "rows": Case(case(["99"] * 1001, ["a"] * 1001), {"names": 1}, [("nodes", "1001 nodes")]),
        "old": Case(case(["99", "99", "99"], measured=a_day_ago), {"time": 1}, [("measured", f'"{a_day_ago}"')]),
        "by-row": Case(by_row, {"body": 1}, [("body", json.dumps(by_row))]),
    }


class Stage:
    """`materialize` and the view of an extender, and what the extender would answer."""

    def __init__(self, bus: Bus, materialized: Materialized, followed: FollowedView) -> None:
        self.bus = bus
        self.materialized = materialized
        self.followed = followed
        self._decider = TelemetryDecider(followed.view)

    def rejected(self, name: str, nodes: Collection[str] = ROWS) -> set[str]:
        pod = Pod(namespace="default", name="pod", uid="u", labels={POD_LABEL: name})
        return set(self._decider.filter(pod, dict.fromkeys(nodes), time.time()).rejected)

    async def handled(self, count: float) -> None:
        await eventually(lambda: self.materialized.metric("tas_table_messages_total") >= count)

    async def is_shown(self, source: str, part: Part = WHOLE) -> None:
        """Waits until the view has the stored table."""
        revision = (await stored(self.bus, source, part)).revision
        await eventually(lambda: max(self.followed.node_revisions.values(), default=0) >= revision)


async def set_policies(bus: Bus, names: Collection[str]) -> None:
    """Policies that reject nodes whose metric of this name is above 50."""
    for name in names:
        rules = [{"metricname": name, "operator": "GreaterThan", "target": 50}]
        policy, _ = parse_policy(PolicyKey("default", name), {"strategies": {"dontschedule": {"rules": rules}}})
        await put(
            bus, POLICIES, policy_key(policy.key), encode_policy(PolicyRecord(policy=policy, uid="u", generation=1))
        )
    epoch = await epoch_on(bus, POLICIES)
    await answered(partial(write_synced, bus, POLICIES, epoch, count=len(names), writer="test", cluster=True))


@asynccontextmanager
async def staged(bus: Bus, *, policies: Collection[str], nodes: Collection[str] = ROWS) -> AsyncIterator[Stage]:
    await list_nodes(bus, *nodes)
    await set_policies(bus, policies)
    followed = FollowedView(bus, default_stale_after=60.0)
    async with materializing(bus) as materialized, running(followed):
        await eventually(lambda: materialized.worker._cluster is True and followed.unready() is None)
        yield Stage(bus, materialized, followed)


async def send(bus: Bus, name: str, body: Mapping[str, Any], part: str = "1-0") -> None:
    text = json.dumps(body).replace('"own"', f'"{name}"')
    await answered(lambda: bus.publish(TABLES, f"tas.tables.{name}.{part}", text.encode()))


async def test_what_is_bad_in_a_table_is_named_and_its_neighbours_count(bus: Bus) -> None:
    whole = as_a_whole()
    cases = in_part() | whole
    async with staged(bus, policies=cases) as stage:
        for name in whole:
            await send(bus, name, case(["99", None, "1"]))
        await stage.handled(len(whole))
        with capture_logs() as logs:
            for name, each in cases.items():
                await send(bus, name, each.body)
            await stage.handled(len(whole) + len(cases))
        for name in cases:
            await stage.is_shown(name)
        lines = [line for line in logs if line["event"] == "sample_refused"]
        for name, each in cases.items():
            named = [
                (line["field"], line["value"].strip("'")) for line in lines if line["object"] == f"table {name}/1-0"
            ]
            assert named == each.lines, name
            assert stage.rejected(name) == {HOT}, name
            table = (await stored(bus, name)).readable()
            assert table is not None
            assert set(table.nodes) == {HOT, COLD}, name
        counts: dict[str, float] = {}
        for each in cases.values():
            counts = {
                reason: counts.get(reason, 0) + each.refused.get(reason, 0) for reason in (*counts, *each.refused)
            }
        assert stage.materialized.refusals() == counts
        assert set(stage.followed.view.sampled_nodes) == {HOT, COLD}, "something is kept of invented nodes"


async def test_of_a_hundred_thousand_rows_the_publisher_hears(bus: Bus) -> None:
    async with staged(bus, policies=["own"]) as stage:
        await send(bus, "own", case(["99", None, "1"]))
        await stage.handled(1)
        with pytest.raises(RefusedError, match=r"tas\.tables\.own\.1-0"):
            await send(bus, "own", case(["99"] * 100_000, ["a"] * 100_000))
        await send(bus, "own", case(["1", "99", "1"]))  # the next poll
        await stage.handled(2)
        await stage.is_shown("own")
        assert stage.rejected("own") == {BAD}


async def test_an_old_row_of_a_node_that_was_created_again_does_not_count(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is still in the table: the deletions of nodes are gathered, and a replica may be late."""
    monkeypatch.setattr(stored_tables, "GATHER_SECONDS", 3600.0)
    async with staged(bus, policies=["own"]) as stage:
        await send(bus, "own", case(["99", "99", "1"]))
        await stage.handled(1)
        await stage.is_shown("own")
        assert stage.rejected("own") == {HOT, BAD}
        await delete_facts(bus, BAD)
        await eventually(lambda: BAD not in stage.followed.node_uids)
        facts = NodeFacts(uid="new", labels={}, created=time_of(time.time()))
        await put(bus, NODES, NODE_FACTS.key(BAD), encode(facts))
        await eventually(lambda: stage.followed.node_uids.get(BAD) == "new")
        table = (await stored(bus, "own")).readable()
        assert table is not None
        assert BAD in table.rows, "the old row is gone: nothing is tested"
        assert stage.rejected("own") == {HOT}
        await send(bus, "own", case(["1", "99", "99"]))
        await stage.handled(2)
        await stage.is_shown("own")
        assert stage.rejected("own") == {BAD, COLD}


async def test_deleted_nodes_take_half_of_a_table_with_them_and_nothing_else(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tables, "GATHER_SECONDS", 0.0)
    nodes = [f"node-{number}" for number in range(20)]
    async with staged(bus, policies=["own"], nodes=nodes) as stage:
        await send(bus, "own", case(["99", "1"] * 10, nodes))
        await stage.handled(1)
        for node in nodes[:10]:
            await delete_facts(bus, node)

        async def are_removed() -> bool:
            table = (await stored(bus, "own")).readable()
            return table is not None and list(table.nodes) == nodes[10:]

        await eventually(are_removed)
        await stage.is_shown("own")
        assert stage.rejected("own", nodes) == set(nodes[10::2])


@pytest.mark.parametrize(
    ("newer", "part", "rejected"),
    [
        (case(["99", None, "1"]), WHOLE, {HOT, BAD}),
        (case(["99", "much", "1"]), WHOLE, {HOT, BAD}),
        (case(["99", "1"], [HOT, COLD]), WHOLE, {HOT, BAD}),
        (case(["1"], [COLD]), Part(2, 0), {BAD}),
    ],
    ids=["null", "invalid", "no row", "the other part of another layout"],
)
async def test_a_violation_in_an_older_table_counts_where_the_newer_one_has_no_value(
    bus: Bus, newer: dict[str, Any], part: Part, rejected: set[str]
) -> None:
    """Both wait for `materialize`, which begins with the newer one."""
    await send(bus, "own", case(["1", "99", "99"], measured=at(-2)))
    await send(bus, "own", newer, str(part))
    async with staged(bus, policies=["own"]) as stage:
        await stage.handled(2)
        await stage.is_shown("own")
        await stage.is_shown("own", part)
        assert stage.rejected("own") == rejected


@pytest.mark.parametrize("form", ["nodes", "tables"])
async def test_of_nodes_that_were_created_again_only_what_was_measured_since_then_counts(bus: Bus, form: str) -> None:
    """Half of a poll is void: it was measured before these nodes were created, and arrives after that."""
    nodes = [f"node-{number}" for number in range(8)]
    new, old = nodes[:4], nodes[4:]
    values: list[object] = ["99", "1"] * 4

    async def poll(seconds: float) -> None:
        if form == "tables":
            await send(bus, "own", case(values, nodes, measured=at(seconds)))
            return
        for node, value in zip(nodes, values, strict=True):
            body = {"metrics": {"own": value}, "measured": at(seconds)}
            await answered(partial(bus.publish, SAMPLES, f"tas.samples.{node}.own", json.dumps(body).encode()))

    async with staged(bus, policies=["own"], nodes=nodes) as stage:
        await poll(-30)
        await eventually(lambda: stage.rejected("own", nodes) == set(nodes[::2]))
        for node in new:
            await delete_facts(bus, node)
        await eventually(lambda: not stage.followed.node_uids.keys() & set(new))
        await eventually(lambda: stage.rejected("own", nodes) == set(old[::2]))
        created = encode(NodeFacts(uid="new", labels={}, created=time_of(time.time())))
        for node in new:
            await put(bus, NODES, NODE_FACTS.key(node), created)
        await eventually(lambda: all(stage.followed.node_uids.get(node) == "new" for node in new))
        await eventually(lambda: not stage.materialized.worker._unknown_nodes(table_of_nodes(nodes)))
        values = ["1", "99"] * 4
        await poll(-20)  # late, and of the nodes before
        await eventually(lambda: stage.rejected("own", nodes) == set(old[1::2]))
        await poll(0)
        await eventually(lambda: stage.rejected("own", nodes) == set(nodes[1::2]))


def table_of_nodes(nodes: Sequence[str]) -> Table:
    return Table("own", tuple(nodes), {})
