"""The input and result types of filter, prioritize, preempt and bind.

They are independent of the formats of requests and responses. A `Decider` decides for candidates by name:
`tas.extender.telemetry` for policies, and extensions under their own paths.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import Protocol

import msgspec
from msgspec import Raw

from tas.extender.fields import NULL
from tas.extender.pod_document import read_annotations, read_containers
from tas.gpu.claim import ContainerRequest

MAX_REJECTED = 10
"""The most rejected nodes in the record of an answer: the first of them."""


class Pod(msgspec.Struct, frozen=True, kw_only=True, gc=False, eq=False):
    """The fields of a pod that a decision may use.

    Annotations and containers are decoded each time they are read, because most decisions need neither. To read them
    raises InvalidInputError if the request has invalid ones. A victim has none.

    The garbage collector does not search pods (gc=False), because no pod is part of a cycle. A preempt request of
    18 MiB may have 250,000 pods, and their search took half of its time.

    Attributes:
        document: The whole pod as undecoded JSON. It does not count when two pods are compared.
    """

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    document: Raw = NULL

    def __eq__(self, other: object) -> bool:
        """Whether all fields except `document` are equal."""
        if not isinstance(other, Pod):
            return NotImplemented
        return (self.namespace, self.name, self.uid, self.labels) == (
            other.namespace,
            other.name,
            other.uid,
            other.labels,
        )

    __hash__ = None  # type: ignore[assignment] # the labels have no hash

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations."""
        return read_annotations(self.document)

    @property
    def all_containers(self) -> tuple[tuple[ContainerRequest, ...], tuple[ContainerRequest, ...]]:
        """`containers` and `init_containers`, decoded at once."""
        return read_containers(self.document)

    @property
    def containers(self) -> tuple[ContainerRequest, ...]:
        """The containers in the order of the spec, each with its requests and limits, without init containers."""
        return self.all_containers[0]

    @property
    def init_containers(self) -> tuple[ContainerRequest, ...]:
        """The init containers, sidecars included."""
        return self.all_containers[1]


class Outcome(StrEnum):
    """How a decision was made: a label of metrics, and a value in the log and in the list of recent answers."""

    DECIDED = "decided"
    NO_POLICY = "no_policy"
    POLICY_NOT_FOUND = "policy_not_found"
    NO_RULES = "no_rules"
    SUSPENDED = "suspended"
    DRY_RUN = "dry_run"


class RejectingValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value for which a node was rejected, as it was at the time of the answer; of an agent also for its score.

    Attributes:
        node: The rejected node, or the node with the score.
        rule: The violated rule; without a violated rule, a rule without a fresh value. Of an agent: a term of its
            formula, or a metric that it reads.
        value: The newest value of the rule's metric; None if there was no sample.
        age_seconds: The age of the sample.
        source: The source of the sample.
        kept: Whether the value is not fresh, and the node was rejected by it (`onStale: keep`).
    """

    node: str
    rule: str
    value: str | None = None
    age_seconds: float | None = None
    source: str | None = None
    kept: bool = False


class FilterDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The rejected candidates, with reasons.

    `rejected` maps candidate to reason; all others pass. There are few different reasons, because the scheduler groups
    equal ones (facts.md c20). `count_unknown` counts the candidates that pass although their state is unknown; it is
    called after the answer was sent, so that the scheduler does not wait for it. `list_values` is called at the same
    time. It lists the values for which the first `MAX_REJECTED` nodes were rejected, as they were at the decision.
    `unknown_rejected` counts the candidates that are rejected because their state is unknown, `kept_rejected` those
    that are rejected by kept values alone. `unresolvable`: evicting
    pods cannot help (FailedAndUnresolvableNodes, facts.md c19). `error` becomes the answer's `Error`.
    """

    outcome: Outcome = Outcome.DECIDED
    policy: str = ""
    rejected: Mapping[str, str] = {}
    count_unknown: Callable[[], int] = int
    unknown_rejected: int = 0
    kept_rejected: int = 0
    list_values: Callable[[], Iterable[RejectingValue]] = tuple
    unresolvable: bool = True
    error: str = ""

    @property
    def unknown(self) -> int:
        """How many candidates pass although their state is unknown."""
        return self.count_unknown()


class ScoreDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The score (0 to 10) of every candidate, or None: then the answer is `[]`.

    `unknown` counts the candidates scored without a fresh value, `costed` those scored by a value with costs of pods
    that no sample shows yet (`podCost`). `list_values` lists what the best scores were made of; it is called after the
    answer was sent.
    """

    outcome: Outcome = Outcome.DECIDED
    policy: str = ""
    scores: Mapping[str, int] | None = None
    unknown: int = 0
    costed: int = 0
    list_values: Callable[[], Iterable[RejectingValue]] = tuple


class Victims(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of one node that would be evicted to make room, and the number of violated PodDisruptionBudgets.

    The pods are in the order of the scheduler, which evicts the last one first. If the scheduler sends names only
    (`nodeCacheCapable`), only the uid of a pod is known. Without pods, no eviction is needed (facts.md c31).
    """

    pods: tuple[Pod, ...]
    pdb_violations: int = 0


class PreemptDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes where evictions would help, with their victims. Only nodes in `kept` are offered.

    `unknown` counts the kept nodes whose state is unknown. `error`: why no node is offered.
    """

    outcome: Outcome
    policy: str = ""
    kept: Mapping[str, Victims] = {}
    unknown: int = 0
    error: str = ""


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A pod and the node to which it is to be bound."""

    namespace: str
    name: str
    uid: str
    node: str


class Decider(Protocol):
    """The decisions of one path of the extender. A call may be missing, repeated, or for one node (facts.md c28)."""

    def filter(self, pod: Pod, candidates: Collection[str], now: float) -> FilterDecision:
        """The `candidates` (distinct names) that are rejected for the pod, also after evictions."""
        ...

    def score(self, pod: Pod, candidates: Collection[str], now: float) -> ScoreDecision:
        """The score of each of `candidates` (distinct names) for the pod."""
        ...
