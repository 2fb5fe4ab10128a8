"""One history: what is published, edited and deleted, and what goes wrong, all drawn from a seed."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.errors import BusError
from sandbox import Sandbox
from sandbox.faults import Call, Drop, Which
from sandbox.resources import NODES, TASPOLICIES, Object
from tests.integration.published import text_of
from tests.integration.removal.judge import Judge
from tests.integration.removal.model import (
    PREFIX,
    VIOLATING,
    Expected,
    Key,
    Sample,
    Spec,
    expected,
    is_silent,
    labels_of,
)
from tests.integration.removal.workers import One
from tests.integration.servers import Server

ADMIN = "admin"
METRICS = ("m1", "m2")
NAMESPACES = ("default", "kube-system")
NAMES = ("red", "green", "blue")
FOREIGN = "team"
STATUSES = (404, 409, 410, 429, 500, 503)
SLOW_SECONDS = (0.2, 1.5)


class History:
    """A cluster and a bus, and what befalls them."""

    def __init__(
        self,
        seed: int,
        *,
        sandbox: Sandbox,
        server: Server,
        bus: Bus,
        judge: Judge,
        workers: Sequence[One],
        nodes: int,
        tell: Callable[[str], None],
    ) -> None:
        self._seed = seed
        self._chance = random.Random(seed)
        self._sandbox = sandbox
        self._server = server
        self._bus = bus
        self._judge = judge
        self._workers = workers
        self._tell = tell
        self._names = [f"node-{number}.example" for number in range(nodes)]
        self.policies: dict[Key, Spec] = {}
        self._turn = asyncio.Lock()  # of who kills and starts
        self._is_calm = False
        self._keep_noting()

    # What stands at first

    def begin(self) -> None:
        for node in self._names:
            self._add_node(node)
        for name in NAMES:
            self._put_policy((NAMESPACES[0], name))
        left = {"original-policy": VIOLATING, f"{PREFIX}gone/left": "x"}
        self._label(self._names[0], left, manager="extender")
        self._label(self._names[0], {FOREIGN: VIOLATING})

    # What happens

    async def publish(self, seconds: float) -> None:
        """Samples of all ages, with silence in between."""
        chance = random.Random(f"{self._seed} samples")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            node = chance.choice(self._names)
            metrics = {metric: chance.randint(0, 10) for metric in METRICS if chance.random() < 0.8}
            age = chance.choice((0.0, 0.0, 0.0, chance.uniform(0, 2.5)))
            if metrics:
                await self._sample(node, metrics, age=age)
            await asyncio.sleep(chance.choice((0.02, 0.1, 0.2, 0.2, chance.uniform(0.5, 1.5))))

    async def edit(self, seconds: float) -> None:
        """What users do to policies, nodes and labels."""
        chance = random.Random(f"{self._seed} users")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(chance.uniform(0.05, 0.5))
            chance.choice((self._policy, self._policy, self._node, self._tamper, self._tamper))(chance)

    async def disturb(self, seconds: float) -> None:
        """What goes wrong between the product and the API server."""
        chance = random.Random(f"{self._seed} API server")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(chance.uniform(0.2, 1.2))
            if not self._is_calm:
                self._api_fault(chance)

    async def torment(self, seconds: float, pauses: tuple[float, float]) -> None:
        """Kills and stops replicas, one at a time; in the end all run."""
        chance = random.Random(f"{self._seed} workers")
        until = time.monotonic() + seconds
        while True:
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            if time.monotonic() > until:
                return
            one = chance.choice(self._workers)
            if chance.random() < 0.4:
                await self._all_away(one.name.partition("-")[0], chance)
                continue
            async with self._turn:
                await self._befall_one(one, chance, pauses)

    async def _befall_one(self, one: One, chance: random.Random, pauses: tuple[float, float]) -> None:
        if chance.random() < 0.6:
            pause = chance.uniform(*pauses)
            self._tell(f"{one.name} is stopped for {pause:.2f} s, if it can be")
            if await one.pause(pause):
                return
        self._tell(f"{one.name} is killed")
        await one.kill()
        await asyncio.sleep(chance.choice((0.0, chance.uniform(0, 1))))
        await one.start()

    async def _all_away(self, kind: str, chance: random.Random) -> None:
        """Every replica of a worker is gone for a while: what it wrote last stands, and grows old."""
        away = [one for one in self._workers if one.name.partition("-")[0] == kind]
        async with self._turn:
            self._tell(f"every {kind} is killed")
            for one in away:
                await one.kill()
            await asyncio.sleep(chance.uniform(0.5, 3))
            if kind == "evaluate":  # a hand puts what an old verdict does not wish
                for _ in range(6):
                    self._tamper(chance)
                await asyncio.sleep(chance.uniform(1.2, 2))
            self._tell(f"every {kind} comes back")
            for one in away:
                await one.start()

    async def befall(self, seconds: float) -> None:
        """What the bus goes through: nothing, or it is stopped, killed, or loses all it knew."""
        chance = random.Random(f"{self._seed} bus")
        await asyncio.sleep(chance.uniform(0.2, 0.6) * seconds)
        what = chance.choice(("nothing", "stopped", "killed", "wiped", "wiped", "wiped"))
        self._tell(f"bus: {what}")
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
        """The bus loses all; perhaps nobody judges anything for a while then: no verdict speaks of what stands."""
        away = [one for one in self._workers if one.name.startswith("evaluate") and chance.random() < 0.85]
        self._tell(f"the bus is wiped; away: {[one.name for one in away]}")
        for one in away:
            await one.kill()
        if away:  # then the others get as far as to act on a bus that is complete again, but for the verdicts
            self._is_calm = True
            self._sandbox.faults.clear()
            self._keep_noting()
        await self._server.kill()
        self._judge.samples.wiped = time.time()
        await asyncio.sleep(chance.choice((0.0, chance.uniform(0, 1))))
        self._server.wipe()
        if chance.random() < 0.4:
            self._tell("API server: policies cannot be listed")
            self._sandbox.faults.answer(chance.choice((404, 500)), times=30, which=_asks_for_policies)
        await self._server.start()
        await asyncio.sleep(chance.uniform(2.5, 4.5) if away else 0)
        self._is_calm = False
        for one in away:
            await one.start()

    # Quiet

    async def settle(self, is_done: Callable[[Sequence[str]], Awaitable[bool]], *, what: str) -> None:
        """Lets everything work and says the same of every node until `is_done` with what differs."""
        self._sandbox.faults.clear()
        self._keep_noting()
        chance = random.Random(f"{self._seed} {what}")
        values = {node: {metric: chance.randint(0, 10) for metric in METRICS} for node in self._names}
        for node in self._names:
            if node not in self.nodes:
                self._add_node(node)
        self._tell(f"{what}: {values}")
        while True:
            for node in self._names:
                await self._sample(node, values[node])
            if await is_done(self.differences(values)):
                return

    def differences(self, values: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Where a node's labels are not what the model says."""
        found: list[str] = []
        for node, labels in self.nodes.items():
            wanted = expected(self.policies, labels, values[node])
            for label in sorted(wanted.keys() | {each for each in labels if self._is_ours(each)}):
                should, stands = wanted.get(label, Expected(None)), labels.get(label)
                if stands == should.value or (should.value is None and self._may_stay(node, label, stands, should)):
                    continue
                found.append(f"{node}: {label} is {stands}, and should be {should.value}")
        return found

    def _is_ours(self, label: str) -> bool:
        return label.startswith((PREFIX, "original-")) or label in NAMES

    def _may_stay(self, node: str, label: str, stands: str | None, should: Expected) -> bool:
        """Whether a label that nobody wishes set is held, or is a user's."""
        if should.free or ("/" not in label and stands != VIOLATING):
            return True
        name = label.removeprefix(PREFIX).partition("/")[0]
        specs = [spec for key, spec in self.policies.items() if key[1] == name]
        # Who is silent holds all under the prefix of its name, and what nobody else speaks of.
        unnamed = all(label not in labels_of(name, spec) for spec in specs)
        if "/" not in label and unnamed and not self._is_set_by_product(node, label):
            return True
        return ("/" in label or unnamed) and any(map(is_silent, specs))

    def _is_set_by_product(self, node: str, label: str) -> bool:
        """Whether a bare label is ours, or the original's, to take away: a user's own stays, whatever it says."""
        uids = [each["metadata"]["uid"] for each in self._sandbox.cluster.store.items(NODES)
                if each["metadata"]["name"] == node]  # fmt: skip
        return label.startswith("original-") or any(self._judge.setter.get((node, uid, label), False) for uid in uids)

    @property
    def nodes(self) -> dict[str, Mapping[str, str]]:
        return {
            each["metadata"]["name"]: each["metadata"].get("labels", {})
            for each in self._sandbox.cluster.store.items(NODES)
        }

    # Samples

    async def _sample(self, node: str, metrics: Mapping[str, int], *, age: float = 0.0) -> None:
        now = time.time()
        microseconds = round((now - age) * 1e6)
        for metric, value in metrics.items():
            self._judge.samples.sending(node, metric, Sample(value, microseconds / 1e6, now))
        body = {"metrics": {metric: str(value) for metric, value in metrics.items()}, "measured": text_of(microseconds)}
        try:
            await self._bus.publish(SAMPLES, f"tas.samples.{node.replace('.', '_')}.agent", json.dumps(body).encode())
        except BusError:
            await asyncio.sleep(0.02)  # as silent as a source whose bus is away

    # Users

    def _policy(self, chance: random.Random) -> None:
        key = (chance.choice((NAMESPACES[0], NAMESPACES[0], NAMESPACES[1])), chance.choice(NAMES))
        spec = self.policies.get(key)
        kind = chance.random()
        if spec is None or kind < 0.4:
            self._put_policy(key, chance)
        elif kind < 0.65:
            del self.policies[key]
            self._tell(f"{key} is deleted")
            self._judge.mine(self._sandbox.cluster.delete(TASPOLICIES, *key))
        elif kind < 0.8 and spec["strategies"]:
            strategies = dict(spec["strategies"])
            strategies.pop(chance.choice(sorted(strategies)))
            self._put_spec(key, {**spec, "strategies": strategies})
        else:
            word = chance.choice(("suspend", "dryRun"))
            self._put_spec(key, {**spec, word: not spec.get(word, False)})

    def _put_policy(self, key: Key, chance: random.Random | None = None) -> None:
        self._put_spec(key, some_spec(chance or self._chance))

    def _put_spec(self, key: Key, spec: Spec) -> None:
        self._tell(f"{key} is {json.dumps(spec)}")
        cluster = self._sandbox.cluster
        if key in self.policies:
            patch = {"spec": _replacing(self.policies[key], spec)}
            written = cluster.patch(TASPOLICIES, *key, patch, manager=ADMIN)
        else:
            head = {"apiVersion": TASPOLICIES.group_version, "kind": TASPOLICIES.kind}
            body = head | {"metadata": {"name": key[1]}, "spec": dict(spec)}
            written = cluster.create(TASPOLICIES, key[0], body, manager=ADMIN)
        self.policies[key] = spec
        self._judge.mine(written)

    def _node(self, chance: random.Random) -> None:
        node = chance.choice(self._names)
        if node not in self.nodes:
            self._add_node(node, chance)
        elif chance.random() < 0.5:
            self._label(node, {"zone": chance.choice(("a", "b"))})
        else:
            self._tell(f"{node} is deleted")
            self._judge.mine(self._sandbox.cluster.delete(NODES, "", node))
            if chance.random() < 0.6:
                self._add_node(node, chance)

    def _add_node(self, node: str, chance: random.Random | None = None) -> None:
        self._tell(f"{node} comes")
        zone = (chance or self._chance).choice(("a", "b"))
        self._judge.mine(self._sandbox.add_node(node, labels={"zone": zone}))

    def _tamper(self, chance: random.Random) -> None:
        """A hand that puts, changes or removes a label of ours."""
        node = chance.choice(self._names)
        if node not in self.nodes or not self.policies:
            return
        (_, name), spec = chance.choice(sorted(self.policies.items(), key=lambda item: item[0]))
        labels = sorted(labels_of(name, spec))
        if not labels:
            return
        label = chance.choice(labels)
        value = chance.choice(
            (None, "strange", "high" if "/" in label else VIOLATING, "high" if "/" in label else None)
        )
        self._label(node, {label: value})

    def _label(self, node: str, labels: Mapping[str, str | None], *, manager: str = ADMIN) -> None:
        self._tell(f"{node} is labelled {dict(labels)} by hand")
        patch = {"metadata": {"labels": dict(labels)}}
        self._judge.mine(self._sandbox.cluster.patch(NODES, "", node, patch, manager=manager))

    # The API server

    def _api_fault(self, chance: random.Random) -> None:
        faults, kind = self._sandbox.faults, chance.random()
        verbs = chance.choice((("get",), ("patch",), ("get", "patch"), ("list",), ("list", "watch"), ("list", "watch")))
        times = chance.randint(1, 4)
        if kind < 0.5:
            status = chance.choice(STATUSES)
            self._tell(f"API server: {times} times {status} to {verbs}")
            faults.answer(status, times=times, which=_ours(verbs), retry_after=1 if status == 429 else None)
        elif kind < 0.7:
            seconds = chance.uniform(*SLOW_SECONDS)
            self._tell(f"API server: {times} times slow by {seconds:.2f} s to {verbs}")
            faults.delay(seconds, times=times, which=_ours(verbs))
        elif kind < 0.85:
            drop = chance.choice(list(Drop))
            self._tell(f"API server: {times} connections of {verbs} go {drop.value}")
            faults.drop(drop, times=times, which=_ours(verbs))
        if kind > 0.75:
            self._judge.look()
            if forget := chance.random() < 0.6:
                self._sandbox.forget_history()
            self._tell(f"API server: watches are cut, and {'all' if forget else 'nothing'} is forgotten")
            self._sandbox.cut_watches()

    def _keep_noting(self) -> None:
        self._sandbox.faults.answer(500, which=self._judge.note)


def _ours(verbs: Sequence[str]) -> Which:
    def matches(call: Call) -> bool:
        return call.user_agent.startswith("tas-on-nats/") and call.verb in verbs

    return matches


def _asks_for_policies(call: Call) -> bool:
    return (call.user_agent, call.verb, call.resource) == ("tas-on-nats/labels", "list", "taspolicies")


def _replacing(old: Any, new: Any) -> Any:
    """The merge patch that leaves exactly `new`."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return dict.fromkeys(old.keys() - new.keys()) | {key: _replacing(old.get(key), value) for key, value in new.items()}


def some_spec(chance: random.Random) -> Object:
    """A policy of the kinds that label."""
    strategies: dict[str, Any] = {}
    if chance.random() < 0.75:
        strategies["deschedule"] = _strategy(chance, [_rule(chance) for _ in range(chance.randint(1, 2))])
    if chance.random() < 0.65 or not strategies:
        metric = chance.choice(METRICS)
        rules: list[dict[str, Any]] = [
            {"metricname": metric, "operator": "GreaterThan", "target": target, "labels": [f"level={value}"]}
            for target, value in ((7, "high"), (4, "middle"))[: chance.randint(1, 2)]
        ]
        if chance.random() < 0.5:
            rules.append(_rule(chance) | {"labels": ["other=yes", "third=no"][: chance.randint(1, 2)]})
        strategies["labeling"] = _strategy(chance, rules)
    spec: Object = {"strategies": strategies}
    if chance.random() < 0.7:
        spec["staleAfter"] = chance.choice(("1s", "1500ms", "2s"))
    if chance.random() < 0.25:
        spec["nodeSelector"] = {"matchLabels": {"zone": "a"}}
    if chance.random() < 0.08:
        spec["suspend"] = True
    if chance.random() < 0.05:
        spec["dryRun"] = True
    return spec


def _rule(chance: random.Random) -> dict[str, Any]:
    operator = chance.choice(("GreaterThan", "GreaterThan", "LessThan"))
    return {"metricname": chance.choice(METRICS), "operator": operator, "target": chance.randint(2, 8)}


def _strategy(chance: random.Random, rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    strategy: dict[str, Any] = {"rules": list(rules)}
    if chance.random() < 0.4:
        strategy["logicalOperator"] = chance.choice(("anyOf", "allOf"))
    if chance.random() < 0.4:
        strategy["onStale"] = chance.choice(("hold", "violate", "clear"))
    for word in ("for", "clearFor"):
        if chance.random() < 0.2:
            strategy[word] = chance.choice(("200ms", "500ms"))
    return strategy
