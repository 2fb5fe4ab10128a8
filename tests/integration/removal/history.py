"""A history: samples, writes of users and faults, all drawn from a seed."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import product
from zlib import crc32

from bus.buckets import SAMPLES, TABLES, Stream
from bus.connection import Bus
from bus.errors import BusError
from tests.integration.published import text_of
from tests.integration.removal.api import Api
from tests.integration.removal.behind import PAUSE_SECONDS
from tests.integration.removal.cases import Case
from tests.integration.removal.limits import LIMITS, Operators
from tests.integration.removal.model import (
    PREFIX,
    REPLACEABLE,
    SOURCES,
    VIOLATING,
    Expected,
    Key,
    Sample,
    expected,
    is_silent,
    labels_of,
)
from tests.integration.removal.observed import NodeState, Observed
from tests.integration.removal.specs import HIGHEST, LOWEST, METRICS, some_value
from tests.integration.removal.users import NAMES, Users
from tests.integration.removal.workers import One, Task
from tests.integration.servers import Server

Values = Mapping[str, int]
"""By metric."""

Contradiction = tuple[str, str, Values, Values]
WELL_SECONDS = 0.5
CONTRADICT_SECONDS = 3.5
"""Longer than the reads of a removal may be old, with the allowance for lateness on an idle machine."""

REPORT_SECONDS = 0.1

LABELLED_SECONDS = 30.0
"""How long nodes that violate a policy have at most until they are labelled."""

HIDDEN_SECONDS = 0.6
"""For how long nodes violate a policy unseen: shorter than a pause of the views."""

AFTERWARDS_SECONDS = 2.1
"""For how long nothing else is written, so that the views have all that is stored when `clearFor` ends."""

WAITING = ("default", "waiting")
WAITING_SPEC = {
    "strategies": {
        "deschedule": {
            "rules": [{"metricname": METRICS[0], "operator": "GreaterThan", "target": LOWEST}],
            "clearFor": "1500ms",
        }
    },
    "staleAfter": "2s",
}
"""A policy whose label must stay after a violation that is overwritten: the nodes meet it too briefly before."""

MOST_AHEAD_SECONDS = 5.0
"""By how much the clock of a source is ahead: less than would be refused."""

SILENT_SECONDS = 3.5
"""For how long no node has samples in the end: longer than they are fresh, and than `clearFor` afterwards."""

LIE_SECONDS = 1.6
"""Longer than a limit must be exceeded before its breaker trips."""

TRUTH_SECONDS = (0.3, 1.2)

TABLE_CHANCE = 0.6
"""How often a sample is a table, in a history with tables."""

BURST, BURST_CHANCE, BURST_MICROSECONDS = 4, 0.3, 10_000
"""So many tables with different values come together, how often, and how much earlier each was measured."""

OPERATORS_CHANCE = 0.25
"""How often somebody uses the brake, for each write of users."""

AWAY_CHANCE, WHOLE_AWAY_CHANCE = 0.85, 0.8
"""How often each `evaluate` is away while the bus is wiped, and each process that has all workers.

The latter less often: the watches of one of two must often live through a wipe.
"""

HALTING_CHANCE = 0.4
"""The probability that a replica is chosen that can stop itself between check and sending, if there is one."""


class History:
    """A cluster and a bus, and the events of a history.

    Attributes:
        met: How often the history has caused each hard case.
    """

    def __init__(
        self,
        seed: int,
        *,
        api: Api,
        server: Server,
        bus: Bus,
        observed: Observed,
        workers: Sequence[One],
        nodes: int,
        operators: Operators | None,
        log: Callable[[str], None],
        behind: Sequence[Task] = (),
    ) -> None:
        """`operators` use the brake; None: the product has no brake. `behind` are those that fall behind."""
        self._seed = seed
        self._operators = operators
        self._api = api
        self._server = server
        self._bus = bus
        self._observed = observed
        self._workers = workers
        self._behind = behind
        self._log = log
        self._names = [f"node-{number}.example" for number in range(nodes)]
        self._users = Users(random.Random(seed), api=api, nodes=self._names, log=log)
        self._turn = asyncio.Lock()  # held by the task that kills and starts workers
        self._is_calm = False
        # In every second history, of each way, some samples are tables.
        self._tables = random.Random(f"{seed} tables") if (seed // 4 + seed // 8) % 2 else None
        self._asleep: set[str] = set()
        self._contradicted: str | None = None  # the node whose samples all have the same values
        self.met: Counter[str] = Counter()

    # The first state

    async def begin(self) -> None:
        await self._users.begin()

    async def limit(self) -> None:
        """Gives the policies limits below the number of nodes, if the product has a brake."""
        if self._operators is not None:
            chance = random.Random(f"{self._seed} limits")
            await self._users.set_limits(lambda: chance.choice(LIMITS))

    # Events

    async def publish(self, seconds: float) -> None:
        """Publishes samples of all ages, with pauses."""
        chance = random.Random(f"{self._seed} samples")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            node = chance.choice(self._names)
            if node == self._contradicted:
                await asyncio.sleep(0.02)
                continue
            metrics = {metric: some_value(chance) for metric in METRICS if chance.random() < 0.8}
            ahead = chance.uniform(0, MOST_AHEAD_SECONDS)
            error = chance.choice((0.0, 0.0, ahead, ahead, chance.uniform(-2.5, 0)))
            source = chance.choice(SOURCES)
            if metrics:
                await self._sample(node, metrics, source=source, measured=time.time() + error, with_others=True)
            await asyncio.sleep(chance.choice((0.02, 0.1, 0.2, 0.2, chance.uniform(0.5, 1.5))))

    async def lie(self, seconds: float) -> None:
        """Sources that report the same extreme values of all nodes for a while, if policies have limits."""
        chance = random.Random(f"{self._seed} lies")
        until = time.monotonic() + seconds
        while self._operators is not None and time.monotonic() < until:
            await asyncio.sleep(chance.uniform(*TRUTH_SECONDS))
            values = {metric: chance.choice((LOWEST, HIGHEST)) for metric in METRICS}
            reports = (self._report(node, values, LIE_SECONDS) for node in self._names if node != self._contradicted)
            await asyncio.gather(*reports)
            self.met[Case.LIED] += 1

    async def edit(self, seconds: float) -> None:
        """Writes of users to policies, nodes and labels."""
        chance = random.Random(f"{self._seed} users")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(chance.uniform(0.05, 0.5))
            await self._users.act(chance)
            if self._operators is not None and chance.random() < OPERATORS_CHANCE:
                await self._operators.act(chance)

    async def disturb(self, seconds: float) -> None:
        """Faults between the product and the API server."""
        chance = random.Random(f"{self._seed} API server")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(chance.uniform(0.2, 1.2))
            if not self._is_calm:
                await self._api.disturb(chance)

    async def kill_and_stop(self, seconds: float, pauses: tuple[float, float]) -> None:
        """Kills and stops replicas, one at a time; in the end all run."""
        chance = random.Random(f"{self._seed} workers")
        until = time.monotonic() + seconds
        while True:
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            if time.monotonic() > until:
                return
            halting = [one for one in self._awake if one.can_halt]
            if halting and chance.random() < HALTING_CHANCE:
                async with self._turn:
                    await self._stop(chance.choice(halting), chance.uniform(*pauses))
                continue
            one = chance.choice(self._awake)
            if chance.random() < 0.4:
                await self._all_away(one.kinds[0] if len(one.kinds) == 1 else chance.choice(one.kinds), chance)
                continue
            async with self._turn:
                await self._kill_or_stop(one, chance, pauses)

    def _of(self, kind: str) -> list[One]:
        return [one for one in self._workers if kind in one.kinds]

    @property
    def _awake(self) -> list[One]:
        return [one for one in self._workers if one.name not in self._asleep]

    async def sleep(self, seconds: float) -> None:
        """Stops one replica of each worker for long, without other faults; all continue at the same time."""
        async with self._turn:
            sleepers = [one for one in self._workers if one.name.endswith("-1")]
            self._asleep = {one.name for one in sleepers}
        self._log(f"{sorted(self._asleep)} sleep for {seconds:g} s")
        await asyncio.gather(*(one.pause(seconds) for one in sleepers))
        self._log("they continue")
        self.met[Case.SLEPT] += sum(len(one.kinds) for one in sleepers)
        self._asleep = set()

    async def _kill_or_stop(self, one: One, chance: random.Random, pauses: tuple[float, float]) -> None:
        if chance.random() < 0.6 and await self._stop(one, chance.uniform(*pauses)):
            return
        self._log(f"{one.name} is killed")
        await one.kill()
        await asyncio.sleep(chance.choice((0.0, chance.uniform(0, 1))))
        await one.start()

    async def _stop(self, one: One, seconds: float) -> bool:
        self._log(f"{one.name} is stopped for {seconds:.2f} s, if it can be")
        return await one.pause(seconds)

    async def _all_away(self, kind: str, chance: random.Random) -> None:
        """Kills all replicas of a worker for a while: what they wrote last stays stored."""
        away = [one for one in self._awake if one in self._of(kind)]
        async with self._turn:
            self._log(f"every {kind} is killed")
            contradiction = self._contradiction(chance) if kind == "evaluate" and chance.random() < 0.6 else None
            if contradiction is not None:
                await self._contradict(contradiction, away)
            else:
                for one in away:
                    await one.kill()
                await asyncio.sleep(chance.uniform(0.5, 3))
                if kind == "evaluate":  # a user sets labels that an old verdict does not desire
                    for _ in range(6):
                        await self._users.tamper(chance)
                    await asyncio.sleep(chance.uniform(1.2, 2))
            self._log(f"every {kind} comes back")
            for one in away:
                await one.start()

    def _contradiction(self, chance: random.Random) -> Contradiction | None:
        """A label that is not set, with values that do not set the label, and values that set it."""
        every = [dict(zip(METRICS, each, strict=True)) for each in product((LOWEST, HIGHEST), repeat=len(METRICS))]
        found: list[Contradiction] = []
        created = self._created()
        for node, state in sorted(self.nodes.items()):
            desired_by_values = [
                expected(self._users.policies, created, state.labels, _by_series([values] * len(SOURCES)))
                for values in every
            ]
            for label in sorted(desired_by_values[0].keys() - state.labels.keys()):
                well = [
                    values
                    for values, each in zip(every, desired_by_values, strict=True)
                    if each[label] == Expected(None)
                ]
                unwell = [
                    values
                    for values, each in zip(every, desired_by_values, strict=True)
                    if each[label].value is not None
                ]
                if well and unwell:
                    found.append((node, label, well[0], unwell[0]))
        return chance.choice(found) if found else None

    async def _contradict(self, found: Contradiction, away: Sequence[One]) -> None:
        """A node meets its policies; without `evaluate` it violates one for long, and then a user sets the label."""
        node, label, well, unwell = found
        self._contradicted = node
        await self._report(node, well, WELL_SECONDS)
        for one in away:
            await one.kill()
        await self._report(node, unwell, CONTRADICT_SECONDS)
        if node in self.nodes:
            await self._users.label(node, {label: "high" if "/" in label else VIOLATING})
            self.met[Case.CONTRADICTED] += 1
        await asyncio.sleep(1)
        self._contradicted = None

    async def _report(
        self,
        node: str,
        values: Mapping[str, int],
        seconds: float,
        *,
        every: float = REPORT_SECONDS,
        is_done: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log(f"{node} reports nothing but {dict(values)}")
        until = time.monotonic() + seconds
        while time.monotonic() < until and not is_done():
            for source in SOURCES:
                await self._sample(node, values, source=source, measured=time.time())
            await asyncio.sleep(every)

    async def overwrite(self) -> None:
        """From now on every `evaluate` is behind. Nodes violate a policy, and meet it before any of them knows that.

        Nothing else happens meanwhile.
        """
        if not self._behind:
            return
        await self._users.put(WAITING, WAITING_SPEC)
        await self._pause_views(PAUSE_SECONDS)
        well, unwell = (dict.fromkeys(METRICS, value) for value in (LOWEST, HIGHEST))

        def are_labelled() -> bool:
            return all(WAITING[1] in state.labels for state in self.nodes.values())

        await self._report_all(unwell, CONTRADICT_SECONDS / 2)
        await self._report_all(unwell, LABELLED_SECONDS, is_done=are_labelled)
        has_label = are_labelled()
        await self._report_all(well, 2 * REPORT_SECONDS)
        before = [one.met[Case.OVERWRITTEN] for one in self._behind]

        def are_pausing() -> bool:
            each = zip(self._behind, before, strict=True)
            return all(one.met[Case.OVERWRITTEN] > known for one, known in each)

        await self._report_all(well, 2 * PAUSE_SECONDS, is_done=are_pausing)
        await self._report_all(unwell, HIDDEN_SECONDS, every=HIDDEN_SECONDS)
        await self._report_all(well, AFTERWARDS_SECONDS, every=AFTERWARDS_SECONDS)
        self.met[Case.HIDDEN] += has_label

    async def _report_all(
        self,
        values: Mapping[str, int],
        seconds: float,
        *,
        every: float = REPORT_SECONDS,
        is_done: Callable[[], bool] = lambda: False,
    ) -> None:
        """Reports the same of every node: a view pauses only if several of them have news."""
        reports = (self._report(node, values, seconds, every=every, is_done=is_done) for node in self._names)
        await asyncio.gather(*reports)

    async def _pause_views(self, seconds: float) -> None:
        for one in self._behind:
            self._log(f"{one.name} is killed; what is written reaches its view with pauses of {seconds:g} s")
            one.pause_of_view = seconds
            await one.kill()
            await one.start()

    async def break_bus(self, seconds: float) -> None:
        """Leaves the bus alone, or stops, kills or wipes it."""
        chance = random.Random(f"{self._seed} bus")
        await asyncio.sleep(chance.uniform(0.2, 0.6) * seconds)
        what = chance.choice(("nothing", "stopped", "killed", "wiped", "wiped", "wiped"))
        self._log(f"bus: {what}")
        if what == "stopped":
            self._server.pause()
            await asyncio.sleep(chance.uniform(0.5, 1.5))
            self._server.resume()
        elif what == "killed":
            await self._server.restart()
        elif what == "wiped":
            async with self._turn:
                await self._wipe(chance)

    async def _wipe(self, chance: random.Random) -> None:
        """Wipes the bus; perhaps no `evaluate` runs for a while, so that no verdict mentions the labels."""
        away = [
            one
            for one in self._awake
            if "evaluate" in one.kinds and chance.random() < (AWAY_CHANCE if len(one.kinds) == 1 else WHOLE_AWAY_CHANCE)
        ]
        self._log(f"the bus is wiped; away: {[one.name for one in away]}")
        for one in away:
            await one.kill()
        if away:  # then the others act on a bus that has all but the verdicts
            self._is_calm = True
            self._api.calm()
        await self._server.kill()
        self._observed.wiped(time.time())
        if self._operators is not None:
            self._operators.wiped()
        has_labels = any(self._is_ours(label) for state in self.nodes.values() for label in state.labels)
        self.met[Case.WIPED] += has_labels
        self.met[Case.UNJUDGED] += has_labels and len(away) == len(self._of("evaluate"))
        await asyncio.sleep(chance.choice((0.0, chance.uniform(0, 1))))
        self._server.wipe()
        if chance.random() < 0.4:
            self._api.hide_policies(chance)
        await self._server.start()
        await asyncio.sleep(chance.uniform(2.5, 4.5) if away else 0)
        self._is_calm = False
        for one in away:
            await one.start()

    # Quiet

    async def fall_silent(self) -> None:
        """Ends all faults and has no samples, until every sample is stale: labels with `onStale: clear` are removed."""
        self._api.calm()
        await self._pause_views(0.0)
        self._log("no node has samples")
        await asyncio.sleep(SILENT_SECONDS)

    async def settle(self, is_done: Callable[[Sequence[str]], Awaitable[bool]], *, what: str) -> None:
        """Ends all faults and publishes the same values of every node until `is_done`, called with the differences.

        Each source has its own values. The samples of the first source are always the newest.
        """
        self._api.calm()
        chance = random.Random(f"{self._seed} {what}")
        values = {node: [{metric: some_value(chance) for metric in METRICS} for _ in SOURCES] for node in self._names}
        before: dict[str, float] = {}
        for node in self._names:
            if node not in self.nodes:
                await self._users.add_node(node)
        if self._operators is not None:
            await self._users.set_limits(lambda: {"maxNodes": len(self._names)})
        self._log(f"{what}: {values}")
        while True:
            if self._operators is not None:
                await self._operators.lift()
            await asyncio.gather(*(self._round(node, values[node], before) for node in self._names))
            if await is_done(self.differences({node: _by_series(each) for node, each in values.items()})):
                return

    async def _round(self, node: str, values: Sequence[Values], before: dict[str, float]) -> None:
        """A sample of each source: of the first now, of the others before its last one, whose time is in `before`."""
        now = time.time()
        for source, each in list(zip(SOURCES, values, strict=True))[1:]:
            if node in before:
                await self._sample(node, each, source=source, measured=before[node] - 1e-3)
        await self._sample(node, values[0], source=SOURCES[0], measured=now)
        before[node] = now

    def differences(self, values: Mapping[str, Mapping[str, int]]) -> list[str]:
        """The labels that differ from the model; `values` by node and series."""
        found: list[str] = []
        created = self._created()
        for node, state in self.nodes.items():
            labels = state.labels
            wanted = expected(self._users.policies, created, labels, values[node])
            for label in sorted(wanted.keys() | {each for each in labels if self._is_ours(each)}):
                should, current = wanted.get(label, Expected(None)), labels.get(label)
                if current == should.value or _is_foreign_value(label, current):
                    continue
                if should.value is None and self._may_stay(node, state.uid, label, current, should):
                    continue
                found.append(f"{node}: {label} is {current}, and should be {should.value}")
        return found

    def _is_ours(self, label: str) -> bool:
        return label.startswith((PREFIX, "original-")) or label in NAMES

    def _may_stay(self, node: str, uid: str, label: str, current: str | None, should: Expected) -> bool:
        """Whether a label that no policy sets is held, or belongs to a user."""
        if should.free or ("/" not in label and current != VIOLATING):  # empty and `null` are never removed
            return True
        name = label.removeprefix(PREFIX).partition("/")[0]
        specs = [spec for key, spec in self._users.policies.items() if key[1] == name]
        # A policy with suspend or dryRun holds all labels under its prefix, and those that no other policy names.
        unnamed = all(label not in labels_of(name, spec) for spec in specs)
        if "/" not in label and unnamed and not self._is_set_by_product(node, uid, label):
            return True
        return unnamed and any(map(is_silent, specs))

    def _created(self) -> dict[Key, str]:
        """When each policy was created. One whose creation has not been observed yet counts as the youngest."""
        versions = {key: self._observed.policies.get(key, []) for key in self._users.policies}
        return {key: (each[-1].created if each else "") or "~" for key, each in versions.items()}

    def _is_set_by_product(self, node: str, uid: str, label: str) -> bool:
        """Whether a label without prefix was set by us or the original: then it is removed, and one of a user stays."""
        return label.startswith("original-") or self._observed.setters.get((node, uid, label), False)

    @property
    def nodes(self) -> Mapping[str, NodeState]:
        return self._api.nodes()

    # Samples

    async def _sample(
        self, node: str, metrics: Values, *, source: str, measured: float, with_others: bool = False
    ) -> None:
        """Publishes a scrape of the node, or a table; `with_others`: the table may have rows of other nodes."""
        microseconds = round(measured * 1e6)
        if self._tables is not None and self._tables.random() < TABLE_CHANCE:
            rows = {node: metrics} | (self._others(node, self._tables) if with_others else {})
            parts = self._tables.choice((1, 1, 2))
            burst: list[tuple[Mapping[str, Values], int]] = [(rows, microseconds)]
            if (
                with_others and self._tables.random() < BURST_CHANCE
            ):  # values that come and go: `materialize` leaves some of them out
                for number in range(1, BURST):
                    earlier: dict[str, Values] = {
                        name: {metric: some_value(self._tables) for metric in METRICS} for name in rows
                    }
                    burst.insert(0, (earlier, microseconds - number * BURST_MICROSECONDS))
            await asyncio.gather(
                *(self._table(node, each, parts, source=source, microseconds=measured) for each, measured in burst)
            )
            return
        body = {"metrics": {metric: str(value) for metric, value in metrics.items()}, "measured": text_of(microseconds)}
        subject = f"tas.samples.{node.replace('.', '_')}.{source}"
        samples = self._sending({node: metrics}, source=source, microseconds=microseconds)
        await self._send(SAMPLES, subject, body, samples)

    def _others(self, node: str, chance: random.Random) -> dict[str, Values]:
        """Rows of other nodes."""
        others = [other for other in self._names if other not in (node, self._contradicted) and chance.random() < 0.3]
        return {other: {metric: some_value(chance) for metric in METRICS} for other in others}

    async def _table(
        self, node: str, rows: Mapping[str, Values], parts: int, *, source: str, microseconds: int
    ) -> None:
        """Publishes the rows that belong to the part of the node; the source changes from one layout to another."""
        number = crc32(node.encode()) % parts
        rows = {name: values for name, values in rows.items() if crc32(name.encode()) % parts == number}
        columns = {metric: [values.get(metric) for values in rows.values()] for metric in METRICS}
        body = {"nodes": list(rows), "measured": text_of(microseconds), "metrics": columns}
        samples = self._sending(rows, source=source, microseconds=microseconds, in_table=True)
        await self._send(TABLES, f"tas.tables.{source}.{parts}-{number}", body, samples)

    def _sending(
        self, rows: Mapping[str, Values], *, source: str, microseconds: int, in_table: bool = False
    ) -> list[Sample]:
        """Notes the samples of a message that is about to be sent."""
        now = time.time()
        samples: list[Sample] = []
        for node, metrics in rows.items():
            for metric, value in metrics.items():
                samples.append(Sample(value, microseconds / 1e6, now, source, in_table=in_table))
                self._observed.samples.sending(node, metric, samples[-1])
        return samples

    async def _send(self, stream: Stream, subject: str, body: object, samples: Sequence[Sample]) -> None:
        try:
            await self._bus.publish(stream, subject, json.dumps(body).encode())
        except BusError:
            await asyncio.sleep(0.02)  # as a source without a bus
        else:
            for sample in samples:
                sample.acked = time.time()


def _by_series(values: Sequence[Values]) -> Mapping[str, int]:
    """The value of each series, by the values of each source; the samples of the first are the newest."""
    of_sources = {
        f"{metric}@{source}": value
        for source, each in zip(SOURCES, values, strict=True)
        for metric, value in each.items()
    }
    return {**values[0], **of_sources}


def _is_foreign_value(label: str, current: str | None) -> bool:
    """Whether a user has given a label without prefix a value that the product leaves, whatever policies desire."""
    return "/" not in label and current is not None and current not in REPLACEABLE
