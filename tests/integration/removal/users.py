"""Random writes of users to policies, nodes and labels."""

import json
import random
from collections.abc import Callable, Mapping, Sequence

from tests.integration.removal.api import ADMIN, Api
from tests.integration.removal.limits import with_limit
from tests.integration.removal.model import PREFIX, VIOLATING, Key, Spec, labels_of
from tests.integration.removal.specs import some_spec

NAMESPACES = ("default", "kube-system")
NAMES = ("red", "green", "blue")
FOREIGN = "team"


class Users:
    """The users of a cluster. `policies` are the current ones."""

    def __init__(self, chance: random.Random, *, api: Api, nodes: Sequence[str], log: Callable[[str], None]) -> None:
        self._chance = chance
        self._api = api
        self._nodes = nodes
        self._log = log
        self.policies: dict[Key, Spec] = {}
        self.some_limit: Callable[[], Mapping[str, int] | None] = lambda: None

    async def begin(self) -> None:
        """Creates the first nodes, policies and labels."""
        for node in self._nodes:
            await self.add_node(node)
        for name in NAMES:
            await self._put_policy((NAMESPACES[0], name))
        await self._put_policy((NAMESPACES[1], NAMES[0]))
        left = {"original-policy": VIOLATING, f"{PREFIX}gone/left": "x"}
        await self.label(self._nodes[0], left, manager="extender")
        await self.label(self._nodes[0], {FOREIGN: VIOLATING})

    async def act(self, chance: random.Random) -> None:
        """Makes one random change."""
        await chance.choice((self._policy, self._policy, self._node, self.tamper, self.tamper))(chance)

    async def _policy(self, chance: random.Random) -> None:
        key = (chance.choice((NAMESPACES[0], NAMESPACES[0], NAMESPACES[1])), chance.choice(NAMES))
        spec = self.policies.get(key)
        kind = chance.random()
        if spec is None or kind < 0.4:
            await self._put_policy(key, chance)
        elif kind < 0.65:
            del self.policies[key]
            self._log(f"{key} is deleted")
            await self._api.delete_policy(key)
        elif kind < 0.8 and spec["strategies"]:
            strategies = dict(spec["strategies"])
            strategies.pop(chance.choice(sorted(strategies)))
            await self._put_spec(key, {**spec, "strategies": strategies})
        else:
            field = chance.choice(("suspend", "dryRun"))
            await self._put_spec(key, {**spec, field: not spec.get(field, False)})

    async def set_limits(self, limit: Callable[[], Mapping[str, int] | None]) -> None:
        """Gives each policy a limit, and from now on each new one."""
        self.some_limit = limit
        for key, spec in list(self.policies.items()):
            await self._put_spec(key, with_limit(spec, limit()))

    async def _put_policy(self, key: Key, chance: random.Random | None = None) -> None:
        await self._put_spec(key, with_limit(some_spec(chance or self._chance), self.some_limit()))

    async def put(self, key: Key, spec: Spec) -> None:
        """Creates a policy that is not one of those that users edit at random."""
        await self._put_spec(key, spec)

    async def _put_spec(self, key: Key, spec: Spec) -> None:
        self._log(f"{key} is {json.dumps(spec)}")
        before = self.policies.get(key)
        self.policies[key] = spec
        await self._api.put_policy(key, spec, before)

    async def _node(self, chance: random.Random) -> None:
        node = chance.choice(self._nodes)
        if node not in self._api.nodes():
            await self.add_node(node, chance)
        elif chance.random() < 0.5:
            await self.label(node, {"zone": chance.choice(("a", "b"))})
        else:
            self._log(f"{node} is deleted")
            await self._api.delete_node(node)
            if chance.random() < 0.6:
                await self.add_node(node, chance)

    async def add_node(self, node: str, chance: random.Random | None = None) -> None:
        """Adds a node in a random zone."""
        self._log(f"{node} is created")
        zone = (chance or self._chance).choice(("a", "b"))
        await self._api.add_node(node, {"zone": zone})

    async def tamper(self, chance: random.Random) -> None:
        """Sets, changes or removes a label of the product."""
        node = chance.choice(self._nodes)
        if node not in self._api.nodes() or not self.policies:
            return
        (_, name), spec = chance.choice(sorted(self.policies.items(), key=lambda item: item[0]))
        labels = sorted(labels_of(name, spec))
        if not labels:
            return
        label = chance.choice(labels)
        value = chance.choice((None, "other", "high" if "/" in label else VIOLATING, "high" if "/" in label else None))
        await self.label(node, {label: value})

    async def label(self, node: str, labels: Mapping[str, str | None], *, manager: str = ADMIN) -> None:
        """Changes labels as a user; None removes a label."""
        self._log(f"{node} is labelled {dict(labels)} by a user")
        await self._api.label_node(node, labels, manager=manager)
