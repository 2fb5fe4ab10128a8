"""What verdicts cost `evaluate`: for each sample, and at the start for each node and policy."""

import random
import time

from tas.policy.policy import Policy, PolicyKey
from tas.verdict.evaluation import evaluate_policy
from tas.verdict.verdict import PolicyVerdict
from tests.bench import cluster
from tests.bench.measure import no_collection
from tests.bench.rows import Budget, Of, Results, Size, row
from tests.bench.stand import Stand

NAME = "verdicts"
SIZES = (100, 1000, 5000, 15_000)
FLAT = Budget(1.5, Of.RATIO)
SAMPLES = 500
BEGINNING = 1.8e9
"""The time in seconds since 1970 at which everything is first known."""


async def measure(stand: Stand) -> Results:
    """Processor time: of a sample with all that it touches, and of each pair of node and policy at the start."""
    sides = {size: _Side(size) for size in SIZES}
    samples: dict[int, list[float]] = {size: [] for size in SIZES}
    evaluated: dict[int, list[float]] = {size: [] for size in SIZES}
    with no_collection():
        for _ in range(stand.rounds):
            for size, side in sides.items():
                samples[size].append(side.seconds_per_sample() * 1e6)
                evaluated[size].append(side.seconds_per_evaluation() * 1e6)
    rows = []
    for size in SIZES:
        sized = Size(size, "nodes")
        rows.append(
            row(
                "sample evaluated",
                "processor",
                samples[size],
                samples[SIZES[0]],
                unit="µs",
                floor_name=f"at {SIZES[0]}",
                budget=FLAT if size == SIZES[-1] else None,
                size=sized,
            )
        )
        rows.append(
            row(
                "evaluate's start, for each node and policy",
                "processor",
                evaluated[size],
                evaluated[SIZES[0]],
                unit="µs",
                floor_name=f"at {SIZES[0]}",
                size=sized,
            )
        )
    return Results(rows=rows)


class _Side:
    """A view of one size with the verdicts of its nodes, and new samples of nodes in random order."""

    def __init__(self, size: int) -> None:
        self._chance = random.Random(size)
        self._names = cluster.node_names(size)
        self._now = BEGINNING
        self._view = cluster.filled_view(self._names, self._now, verdicts=True)
        self._values = [cluster.metrics(self._chance) for _ in range(SAMPLES)]
        self._policies = {policy.key: policy for policy in cluster.policies()}
        self._policy = next(iter(self._policies.values()))
        self._verdicts: dict[tuple[str, PolicyKey], PolicyVerdict] = {}
        self._view.touched.clear()

    def seconds_per_sample(self) -> float:
        """The mean over all samples, each a new value of every metric: the view, and each policy that it touches."""
        self._chance.shuffle(self._values)
        news = []
        for values in self._values:
            self._now += 0.001
            news.append((self._chance.choice(self._names), (cluster.scrape(values, self._now),)))
        view = self._view
        began = time.thread_time()
        for node, scrapes in news:
            view.add_samples(node, scrapes, self._now)
            for key in view.touched.pop(node, ()):
                self._verdicts[node, key] = self._evaluate(node, self._policies[key])
        return (time.thread_time() - began) / len(news)

    def seconds_per_evaluation(self) -> float:
        """The mean time for the verdict of one node by one policy."""
        names = self._names[:SAMPLES]
        began = time.thread_time()
        for name in names:
            self._evaluate(name, self._policy)
        return (time.thread_time() - began) / len(names)

    def _evaluate(self, name: str, policy: Policy) -> PolicyVerdict:
        return evaluate_policy(
            policy,
            uid="u",
            generation=1,
            samples=self._view.samples(name),
            labels=None,
            default_stale_after=self._view.default_stale_after,
            before=self._verdicts.get((name, policy.key)),
            now=self._now,
            stale_deadlines=False,
        )[0]
