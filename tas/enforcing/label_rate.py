"""How many nodes may get their first label of a policy in a minute: of each policy, and of all policies together.

The breaker limits how many nodes have labels; this limits how fast they come, so that people have time to look. Each
limit is a token bucket: so many nodes at once (`burst`), then one after the other. A node that finds no token reserves
the next one, so nodes get theirs in the order in which they asked.

Removals are not limited: a removal gives capacity back, each is confirmed by fresh evidence of its own, and a label
that stays too long keeps pods away. Nor are changes of further labels of a node, which harm no other node; the flap
budget limits these.

The counts are in memory, as those of the flap budget: each start of a replica begins with full buckets. Times are
monotonic, in seconds.
"""

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

UNUSED_SECONDS = 10.0
"""A token that is not used so long after it was due is lost: else all that waited during a pause come at once."""

MAX_BUCKETS = 10_000
"""For so many policies there are buckets; those that are full again are dropped first."""


class Rate(NamedTuple):
    """At most `per_minute` nodes a minute, and `burst` at once."""

    per_minute: int
    burst: int

    def __str__(self) -> str:
        return f"{self.per_minute},{self.burst}"


POLICY_RATE = Rate(60, 30)
ALL_RATE = Rate(120, 60)


class _Bucket:
    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._at = now

    def _fill(self, now: float) -> None:
        gained = (now - self._at) * self._rate.per_minute / 60
        self._tokens = min(float(self._rate.burst), self._tokens + gained)
        self._at = now

    def take(self, now: float) -> float:
        """Takes a token, and returns when it is due."""
        self._fill(now)
        self._tokens -= 1
        return now + max(0.0, -self._tokens) * 60 / self._rate.per_minute

    def put_back(self) -> None:
        """Gives a token back that was not used."""
        self._tokens += 1

    def is_full(self, now: float) -> bool:
        self._fill(now)
        return self._tokens >= self._rate.burst


class LabelRate:
    """The buckets of all policies, and the nodes with a reserved token. None as a rate: no limit."""

    def __init__(self, policy: Rate | None, over_all: Rate | None) -> None:
        self._policy = policy
        self._over_all = over_all
        self._buckets: dict[str, _Bucket] = {}  # by name of policies; "" is that over all
        self._due: dict[str, dict[str, float]] = {}  # by node, and by name of the policies

    def wait(self, node: str, policy: str, now: float) -> float:
        """Seconds until a node may get its first label of a policy; 0: now.

        The first call reserves a token. A token counts until `end`, or until `UNUSED_SECONDS` after it was due.
        """
        of_node = self._due.setdefault(node, {})
        due = of_node.get(policy)
        if due is None or now - due > UNUSED_SECONDS:
            due = of_node[policy] = self._take(policy, now)
        return max(0.0, due - now)

    def pending(self, node: str, policy: str, now: float) -> float:
        """Seconds until the reserved token of a node is due; 0 without one. It reserves nothing."""
        return max(0.0, self._due.get(node, {}).get(policy, now) - now)

    def keep(self, node: str, policies: Collection[str], now: float) -> None:
        """Ends the reservations of a node for all but these policies: it needs no others any more."""
        for policy in [each for each in self._due.get(node, ()) if each not in policies]:
            self.end(node, policy, now, is_used=False)

    def end(self, node: str, policy: str, now: float, *, is_used: bool) -> None:
        """Ends a reservation: the node has the label, or needs it no more and has not used the token."""
        of_node = self._due.get(node, {})
        due = of_node.pop(policy, None)
        if not of_node:
            self._due.pop(node, None)
        if due is not None and not is_used and due > now:
            for name in ("", policy):
                if (bucket := self._buckets.get(name)) is not None:
                    bucket.put_back()

    def waiting(self, now: float) -> dict[str, int]:
        """By name of the policies, how many nodes wait for their token; only policies for which a node waits."""
        return Counter(policy for of_node in self._due.values() for policy, due in of_node.items() if due > now)

    def _take(self, policy: str, now: float) -> float:
        due = now
        for name, rate in (("", self._over_all), (policy, self._policy)):
            if rate is None:
                continue
            if name not in self._buckets:
                self._make_room(now)
                self._buckets[name] = _Bucket(rate, now)
            due = max(due, self._buckets[name].take(now))
        return due

    def _make_room(self, now: float) -> None:
        if len(self._buckets) >= MAX_BUCKETS:
            self._buckets = {name: bucket for name, bucket in self._buckets.items() if not bucket.is_full(now)}
