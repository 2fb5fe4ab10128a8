"""The agent `rl-priority`: prefers nodes on which pods of the same kind have gone well.

Each run of a container gives a reward from 0 to 1, and the reward of a kind of pods on a node is an exponential mean of
them. A run that has lasted for a minute gives 1. A run that has failed gives 0, but 0.5 if it had gone well for more
than ten minutes before. A run that has ended well gives none: a Job says nothing of its node by its end. A kind that
was never seen on a node has the reward 1, so that nodes are tried.

Names are remembered as digests of 64 bits: so the size of what is stored depends on the limits below alone, however
long the names are that somebody gives to kinds, containers and nodes. Within a namespace, or for a run, that two of
them are equal by chance is less likely than one in ten billion.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import inf, isfinite
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from tas.agents.agent import Agent, Candidates, Needs, PodDemand, Rounding, Scores
from tas.errors import InvalidInputError
from tas.outcomes.outcome import Outcome, Placed, Result

Part = Annotated[float, msgspec.Meta(ge=0, le=1)]

KIND_LABELS = ("podtype", "app", "name")
"""The labels that name the kind of a pod, as in the original; `app.kubernetes.io/name` comes last."""

MAX_RUNS = 10_000
"""How many runs are remembered, so that each is counted once."""

MAX_REWARDS = 20_000
"""How many rewards are kept: a snapshot must fit a message of the bus. Beyond, the namespace with the most rewards
loses those that have not changed for the longest time."""

DIGESTS = 1 << 16
"""Of how many names the digests are kept: those of the nodes are needed for each request."""

MAX_NAME = 253
"""Of a longer name no digest is kept: Kubernetes has none, but a request may name nodes, namespaces and kinds of any
length."""

FORGET_SECONDS = 1.0
"""How often old rewards are searched."""

MAX_STEP_SECONDS = 3600.0
"""How much later one event may make it: a clock that is ahead must not make all rewards seem old."""

SNAPSHOT_VERSION = 3


class RewardOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `rl-priority`.

    Attributes:
        weight: How much a new reward counts against the mean so far.
        prior: The reward of a kind on a node where it was never seen.
        running: The reward of a run that has lasted for a minute.
        late: The reward of a run that has failed after a long time.
        failed: The reward of a run that has failed before.
        long_seconds: How long a run must last until its failure comes after a long time.
        labels: The labels that name the kind of a pod: the first that the pod has.
        by_namespace: Whether pods of different namespaces are of different kinds. If not, as in the original, the
            failures of one namespace count in all others that have pods with the same label.
        forget_seconds: After how long without a new one a reward is forgotten.
    """

    weight: Part = 0.1
    prior: Part = 1.0
    running: Part = 1.0
    late: Part = 0.5
    failed: Part = 0.0
    long_seconds: Annotated[float, msgspec.Meta(ge=0)] = 600.0
    labels: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = (*KIND_LABELS, "app.kubernetes.io/name")
    by_namespace: bool = True
    forget_seconds: Annotated[float, msgspec.Meta(gt=0)] = 7 * 86400.0


class _Reward(msgspec.Struct, array_like=True):
    value: Part
    at: float


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=8).digest())


_kept_digest = lru_cache(maxsize=DIGESTS)(_digest)


def _digest_of_name(name: str) -> int:
    return _kept_digest(name) if len(name) <= MAX_NAME else _digest(name)


def _digests_of(names: Sequence[str]) -> Iterator[int]:
    """One by one only if a name is too long: there are as many as nodes."""
    are_short = max(map(len, names), default=0) <= MAX_NAME
    return map(_kept_digest if are_short else _digest_of_name, names)


def _kind(kind: str) -> int:
    return _digest_of_name(f"kind {kind}")  # no node has this name: a kind may be called as a node is


def _key(kind: str, node: str) -> int:
    """Of the reward of a kind on a node."""
    return _kind(kind) ^ _digest_of_name(node)


def _run(event: Outcome) -> int:
    return _digest(f"{event.uid} {event.restart} {event.container}")


def kind_of(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The kind of a pod; empty if it has none: nothing is learned of it."""
    return next((labels[name] for name in names if labels.get(name)), "")


class Rewards(Agent):
    """Scores nodes by the rewards of the pod's kind."""

    Options: ClassVar[type[RewardOptions]] = RewardOptions
    original_rounding: ClassVar[Rounding] = Rounding.DOWN_OF_TEXT

    def __init__(self, options: RewardOptions) -> None:
        self._options = options
        # By the digest of the namespace, and by those of kind and node: the last changed is the last.
        self._rewards: dict[int, OrderedDict[int, _Reward]] = {}
        self._count = 0
        self._forgot_at = -inf
        self._runs: OrderedDict[int, Result] = OrderedDict()  # what was counted of each run
        self._now: float | None = None  # the time of the last event

    @property
    def needs(self) -> Needs:
        """How the containers of pods end."""
        return Needs(outcomes=True)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """The reward of the pod's kind on each node; a pod without a kind gives no opinion."""
        kind = kind_of(pod.labels, self._options.labels)
        known, prior = self._of(self._namespace_of(pod)), self._options.prior
        values = np.full(len(nodes.names), prior)
        if known:
            number = _kind(kind)
            for index, key in enumerate(_digests_of(nodes.names)):
                reward = known.get(number ^ key)
                if reward is not None:
                    values[index] = reward.value
        return Scores(values=values, known=np.full(len(values), bool(kind)), terms={"reward": values})

    def reward(self, namespace: str, kind: str, node: str) -> float:
        """The reward of a kind on a node."""
        known = self._of(namespace).get(_key(kind, node))
        return self._options.prior if known is None else known.value

    def _of(self, namespace: str) -> Mapping[int, _Reward]:
        return self._rewards.get(_digest_of_name(namespace)) or {}

    def _namespace_of(self, subject: PodDemand | Outcome) -> str:
        return subject.namespace if self._options.by_namespace else ""

    def observe(self, event: Placed | Outcome) -> None:
        """Counts the reward of a run: once while the run goes on, and once when the run has ended."""
        if not isinstance(event, Outcome) or not isfinite(event.at):
            return
        kind = kind_of(event.labels, self._options.labels)
        if not kind:
            return
        run = _run(event)
        counted = self._runs.get(run)
        if counted is not None and (counted is not Result.RUNNING or event.result is Result.RUNNING):
            return  # a later end of a run that went on counts, nothing else
        self._now = event.at if self._now is None else max(self._now, min(event.at, self._now + MAX_STEP_SECONDS))
        self._forget(self._now)
        self._runs[run] = event.result
        self._runs.move_to_end(run)
        while len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)
        reward = self._reward_of(event)
        if reward is None:
            return
        namespace, key, weight = self._namespace_of(event), _key(kind, event.node), self._options.weight
        known = self._of(namespace).get(key)
        # One that is only not forgotten yet does not count: another replica may have forgotten it.
        is_over = known is None or self._now - known.at >= self._options.forget_seconds
        before = self._options.prior if known is None or is_over else known.value
        value = min(max((1.0 - weight) * before + weight * reward, 0.0), 1.0)
        self._set(_digest_of_name(namespace), key, _Reward(value, self._now))
        while self._count > MAX_REWARDS:
            self._drop_oldest(max(self._rewards, key=lambda each: len(self._rewards[each])))

    def _set(self, namespace: int, key: int, reward: _Reward) -> None:
        rewards = self._rewards.setdefault(namespace, OrderedDict())
        self._count += key not in rewards
        rewards[key] = reward
        rewards.move_to_end(key)

    def _drop_oldest(self, namespace: int) -> None:
        rewards = self._rewards[namespace]
        rewards.popitem(last=False)
        self._count -= 1
        if not rewards:
            del self._rewards[namespace]

    def _reward_of(self, event: Outcome) -> float | None:
        options = self._options
        if event.result is Result.RUNNING:
            return options.running
        if event.result is Result.SUCCEEDED:
            return None
        began = event.previous_finished if event.finished is None else event.started
        end = event.started if event.finished is None else event.finished
        is_late = began is not None and end is not None and end - began > options.long_seconds
        return options.late if is_late else options.failed

    def _forget(self, now: float) -> None:
        """Drops rewards without a new one for long: names of nodes and kinds do not come to an end."""
        if now - self._forgot_at < FORGET_SECONDS:
            return
        self._forgot_at = now
        for namespace, rewards in list(self._rewards.items()):
            while rewards and now - next(iter(rewards.values())).at >= self._options.forget_seconds:
                self._drop_oldest(namespace)

    def snapshot(self) -> Mapping[str, Any]:
        """The rewards and the runs that they count."""
        return {
            "version": SNAPSHOT_VERSION,
            "rewards": [
                [namespace, [[key, each.value, each.at] for key, each in rewards.items()]]
                for namespace, rewards in self._rewards.items()
            ],
            "runs": [[run, state] for run, state in self._runs.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises InvalidInputError if the state is of another version or damaged."""
        if state.get("version") != SNAPSHOT_VERSION:
            raise InvalidInputError("state of rl-priority", "version", state.get("version"), "is another version")
        try:
            found = msgspec.convert(state, _State)
        except msgspec.ValidationError as error:
            raise InvalidInputError("state of rl-priority", "body", dict(state), str(error)) from error
        self._rewards, self._count, self._forgot_at = {}, 0, -inf
        for namespace, rewards in found.rewards:
            for key, value, at in rewards:
                self._set(namespace, key, _Reward(value, at))
        self._now = max((at for _, rewards in found.rewards for *_, at in rewards), default=None)
        self._runs = OrderedDict(found.runs)


class _State(msgspec.Struct, frozen=True, kw_only=True):
    rewards: list[tuple[int, list[tuple[int, Part, float]]]]
    runs: Annotated[list[tuple[int, Result]], msgspec.Meta(max_length=MAX_RUNS)]

    def __post_init__(self) -> None:
        if sum(len(rewards) for _, rewards in self.rewards) > MAX_REWARDS:
            raise ValueError(f"must have at most {MAX_REWARDS} rewards")
