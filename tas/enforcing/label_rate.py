"""How many nodes may get their first label of a policy in a minute: of each policy, and of all policies together.

The breaker limits how many nodes have labels; this limits how fast they come, so that people have time to look. Each
limit is a token bucket: so many nodes at once (`burst`), then one after the other. A node that finds no token reserves
the next one, so nodes get theirs in the order in which they asked.

Policies have an author: their namespace. The nodes of an author first wait for one another, at the rate over all
policies, and then for those of others, with at most a burst of reservations at once: so authors take turns, and one
with thousands of nodes holds up others for half a minute at most. An author that is alone gets all tokens.

Removals are not limited: a removal gives capacity back, each is confirmed by fresh evidence of its own, and a label
that stays too long keeps pods away. Nor are changes of further labels of a node, which harm no other node; the flap
budget limits these.

The counts are in memory, as those of the flap budget: each start of a replica begins with full buckets. Times are
monotonic, in seconds.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
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


@dataclass(slots=True)
class _Turn:
    """When the token of a node is due. `is_last`: it is one of the bucket over all policies."""

    due: float
    is_last: bool = False


OVER_ALL = ("", "")


class LabelRate:
    """The buckets of all policies and authors, and the nodes with a reserved token. None as a rate: no limit."""

    def __init__(
        self, policy: Rate | None, over_all: Rate | None, *, author_of: Callable[[str], str] = lambda _: ""
    ) -> None:
        """`author_of` gets the name of policies."""
        self._policy = policy
        self._over_all = over_all
        self._author_of = author_of
        self._buckets: dict[tuple[str, str], _Bucket] = {}  # of policies, and of authors at the rate over all
        self._turns: dict[str, dict[str, _Turn]] = {}  # by node, and by name of the policies
        self._reserved: dict[str, float] = {}  # by author, when its last token of all is due

    def wait(self, node: str, policy: str, now: float) -> float:
        """Seconds until a node may get its first label of a policy, or is to ask again; 0: now.

        The first call reserves a token. A token counts until `end`, or until `UNUSED_SECONDS` after it was due.
        """
        of_node = self._turns.setdefault(node, {})
        turn = of_node.get(policy)
        if turn is None or now - turn.due > UNUSED_SECONDS:
            turn = of_node[policy] = _Turn(self._take(self._first_buckets(policy), now))
        if turn.due <= now and not turn.is_last:
            self._go_on(turn, self._author_of(policy), now)
        return max(0.0, turn.due - now)

    def pending(self, node: str, policy: str, now: float) -> float:
        """Seconds until the reserved token of a node is due; 0 without one. It reserves nothing."""
        turn = self._turns.get(node, {}).get(policy)
        return 0.0 if turn is None else max(0.0, turn.due - now)

    def keep(self, node: str, policies: Collection[str], now: float) -> None:
        """Ends the reservations of a node for all but these policies: it needs no others any more."""
        for policy in [each for each in self._turns.get(node, ()) if each not in policies]:
            self.end(node, policy, now, is_used=False)

    def end(self, node: str, policy: str, now: float, *, is_used: bool) -> None:
        """Ends a reservation: the node has the label, or needs it no more and has not used the token."""
        of_node = self._turns.get(node, {})
        turn = of_node.pop(policy, None)
        if not of_node:
            self._turns.pop(node, None)
        if turn is not None and not is_used and turn.due > now:
            for name in (OVER_ALL,) if turn.is_last else self._first_buckets(policy):
                if (bucket := self._buckets.get(name)) is not None:
                    bucket.put_back()

    def waiting(self, now: float) -> dict[str, int]:
        """By name of the policies, how many nodes wait for their token; only policies for which a node waits."""
        return Counter(policy for of_node in self._turns.values() for policy, turn in of_node.items() if turn.due > now)

    def _first_buckets(self, policy: str) -> dict[tuple[str, str], Rate | None]:
        """Those of a policy and of its author, before the one over all."""
        return {("policy", policy): self._policy, ("author", self._author_of(policy)): self._over_all}

    def _go_on(self, turn: _Turn, author: str, now: float) -> None:
        """Reserves a token of all, if the author has none; else the node comes after the others of its author."""
        if self._reserved.get(author, -inf) > now:
            turn.due = self._take({("author", author): self._over_all}, now)
        if turn.due <= now:
            turn.due, turn.is_last = self._take({OVER_ALL: self._over_all}, now), True
            self._reserved[author] = turn.due

    def _take(self, buckets: Mapping[tuple[str, str], Rate | None], now: float) -> float:
        due = now
        for name, rate in buckets.items():
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
            self._reserved = {author: due for author, due in self._reserved.items() if due > now}
