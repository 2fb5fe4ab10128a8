"""How long a replica itself has seen rules met, for `clearFor`: in other times they were perhaps not met."""

from collections.abc import Collection, Mapping
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from tas.policy.policy import PolicyKey

_NOTHING: Mapping[str, float] = MappingProxyType({})


def is_gap(previous: int | None, seen: int) -> bool:
    """Whether values of a record may have come and gone between two of its versions that a watch delivered.

    A bucket keeps one version of a key, so a version that is overwritten before its delivery is never seen.

    Args:
        previous: The revision that the new version has replaced; 0: there was none. None: its writer did not say.
        seen: The last revision that was delivered before; 0: none.
    """
    return previous is None or previous not in (0, seen)


class Watched(NamedTuple):
    """The observations of a replica for one policy and one node. All times are in seconds since 1970.

    Attributes:
        since: Since when the replica has had the node, and has missed no change of it.
        unmet_until: Until when the rules of each label were not met; infinite while they are not met.
        stored_until: The time up to which the stored verdict is valid.
        ahead: By how many seconds the time of the evaluation is ahead of the replica's clock.
        counted_since: Since when the replica has noted each label: since then, the policy has had it with `clearFor`.
    """

    since: float = 0.0
    unmet_until: Mapping[str, float] = _NOTHING
    stored_until: float = 0.0
    ahead: float = 0.0
    counted_since: Mapping[str, float] = _NOTHING

    def met_since(self, label: str) -> float:
        """Since when the rules of `label` were met without interruption, if they are met now."""
        return max(self.since, self.counted_since.get(label, 0.0), self.unmet_until.get(label, 0.0))


ALWAYS_WATCHED = Watched()
"""A replica that never missed a change: the stored verdict counts."""


def watched(
    *,
    now: float,
    clock: float,
    noted_since: float,
    attached: float,
    node_since: float,
    before: tuple[float, float] | None,
) -> Watched:
    """The observations of a replica for an evaluation at `now`, without those of a policy's labels.

    Args:
        now: The time of the evaluation.
        clock: The time by the replica's clock.
        noted_since: Since when the replica has noted unmet labels.
        attached: Since when its watch of the node was not interrupted; infinite without a feed.
        node_since: Since when it has had the node: not an earlier node of the name. Infinite: not yet.
        before: The time of the stored verdict, and when the replica received it; None without one.
    """
    # Without a feed a change may be missed now: then the policy is evaluated again later.
    since = min(now, max(noted_since, attached, node_since))
    return Watched(since, stored_until=0.0 if before is None else min(before), ahead=max(0.0, now - clock))


class UnmetLabels:
    """The times until which the rules of labels with `clearFor` were not met, as seen by one replica."""

    def __init__(self) -> None:
        self._until: dict[str, dict[PolicyKey, dict[str, float]]] = {}
        self._since: dict[PolicyKey, dict[str, float]] = {}

    def count(self, key: PolicyKey, labels: Collection[str], now: float) -> None:
        """Takes in the labels with `clearFor` that a policy has from `now` on; empty for a deleted policy.

        Of a label that the policy did not have before, this replica has noted nothing. The time in a stored verdict is
        no replacement: it is by the clock of another replica.
        """
        before = self._since.pop(key, _NOTHING)
        if labels:
            self._since[key] = {label: before.get(label, now) for label in labels}

    def since(self, key: PolicyKey) -> Mapping[str, float]:
        """The value for `Watched.counted_since`."""
        return self._since.get(key, _NOTHING)

    def note(self, node: str, key: PolicyKey, met: Mapping[str, bool], now: float, *, missed: bool = False) -> None:
        """Notes whether the rules of each label of a policy are met from `now` on.

        With `missed`, the rules count as not met before `now`.
        """
        before = self.until(node, key)
        until = {label: _until(before.get(label), now, is_met=is_met, missed=missed) for label, is_met in met.items()}
        known = {label: when for label, when in until.items() if when is not None}
        if known:
            self._until.setdefault(node, {})[key] = known
        elif node in self._until:
            self._until[node].pop(key, None)
            if not self._until[node]:
                del self._until[node]

    def until(self, node: str, key: PolicyKey) -> Mapping[str, float]:
        """The value for `Watched.unmet_until`, without labels whose rules were never seen unmet."""
        return self._until.get(node, {}).get(key, _NOTHING)

    def watched(self, node: str, key: PolicyKey, seen: Watched) -> Watched:
        """`seen` with what was noted of the labels of a policy; most policies have no `clearFor`."""
        since = self._since.get(key)
        return seen if since is None else seen._replace(unmet_until=self.until(node, key), counted_since=since)

    def forget(self, node: str) -> None:
        """The node is gone."""
        self._until.pop(node, None)

    def __len__(self) -> int:
        """The number of nodes with data."""
        return len(self._until)


def _until(before: float | None, now: float, *, is_met: bool, missed: bool) -> float | None:
    if not is_met:
        return inf
    return now if missed or before == inf else before
