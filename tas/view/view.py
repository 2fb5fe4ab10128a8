"""The view: the state of all nodes and policies in memory, so that an answer is set algebra over the candidates.

Samples, labels and policies come in one at a time, with the present time. A change updates only what depends on it:
the *indices* of the metrics that policies use (node to fresh value), and for each `dontschedule` the nodes that violate
it and the nodes that meet it. A node in neither set is unknown. Policies that use the same metric share its index.
For policies with a `podCost` the view also has the values with the costs of new pods (`tas.view.placements`).

Samples come as scrapes of one node, or as tables of many (`tas.samples.table`). A table changes the indices column by
column: only nodes that several tables or also scrapes have a metric of are looked up one by one.

Each node and each table has a deadline at which a sample becomes stale, or is kept no more (`onStale: keep`), so the
view is exact for any time after `advance` to it.

For `evaluate`, which stores a verdict of every policy for every node, the view also notes in `touched` which policies
and nodes a change affects, so that only these are evaluated again.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from tas.enforcing.pod import PodKey
from tas.policy.policy import Policy, PolicyKey, Rule, StrategyType
from tas.samples.freshness import DEFAULT_STALE_AFTER, is_fresh, kept_from, stale_at
from tas.samples.sample import FUTURE_TOLERANCE, MAX_SAMPLE_AGE, NodeSamples, Scrape, merge, newest, since
from tas.samples.table import Column, Reading, Table, TableKey, combined_samples, without_earlier
from tas.values.quantity import Quantity
from tas.verdict.verdict import VERDICT_STRATEGIES
from tas.view.deadlines import Deadlines
from tas.view.indices import Kept, MetricFollower, MetricIndex, MetricKey, PolicyIndex, StrategyIndex, watches_of
from tas.view.placements import PRECISION, Placement, Placements, pods_not_shown, with_cost
from tas.view.tables import TableChange, Tables


class KeptRejections(NamedTuple):
    """How many nodes a policy rejects by last known values alone, and of how many nodes: 0 if it rejects none so.

    `oldest` is when the oldest of their kept values was measured, in seconds since 1970; None without any.
    """

    nodes: int
    selected: int
    oldest: float | None


class View:
    """The state of all nodes and policies. Not thread-safe: one event loop owns it."""

    def __init__(self, *, default_stale_after: float = DEFAULT_STALE_AFTER, verdicts: bool = False) -> None:
        """With `verdicts`, `touched` maps each node to the policies whose verdict for it may have changed.

        `nodes_version` is another one after each change of `nodes`.
        """
        self.default_stale_after = default_stale_after
        self.touched: dict[str, set[PolicyKey]] = {}
        self.nodes_version = 0
        self._verdicts = verdicts
        self._indexed = INDEXED | frozenset(VERDICT_STRATEGIES) if verdicts else INDEXED
        self._samples: dict[str, NodeSamples] = {}
        self._tables = Tables()
        self._created: dict[str, float] = {}
        self._released: dict[str, float] = {}
        self._cluster = False
        self._labels: dict[str, Mapping[str, str] | None] = {}
        self._policies: dict[PolicyKey, PolicyIndex] = {}
        self._indices: dict[MetricKey, MetricIndex] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self._table_deadlines: Deadlines[TableKey] = Deadlines()
        self._now = 0.0
        self._counting: set[PolicyKey] = set()  # the policies with a `podCost`
        self._placements = Placements()

    # Reading

    @property
    def nodes(self) -> Collection[str]:
        """Every node with samples or labels."""
        return self._samples.keys() | self._tables.nodes | self._labels.keys()

    @property
    def sampled_nodes(self) -> Collection[str]:
        """Every node with samples, fresh or not."""
        return self._samples.keys() | self._tables.nodes if self._tables else self._samples.keys()

    @property
    def labelled_nodes(self) -> Collection[str]:
        """Every node of the API server; a node with too many labels has labels that are not known."""
        return self._labels.keys()

    @property
    def policies(self) -> Mapping[PolicyKey, PolicyIndex]:
        """Every policy, with its indices."""
        return self._policies

    def samples(self, node: str) -> NodeSamples:
        """The newest samples of a node, stale or not; empty for an unknown node."""
        single = self._samples.get(node, ())
        return combined_samples(single, self._tables.rows(node)) if self._tables.holding(node) else single

    def series(self, node: str) -> Iterator[Set[str]]:
        """The metrics of each scrape and of each row of a table of a node, fresh or not."""
        for scrape in self._samples.get(node, ()):
            yield scrape.metrics.keys()
        for key in self._tables.holding(node):
            if (table := self._tables.get(key)) is not None:
                yield table.columns.keys()

    def single_samples(self, node: str) -> NodeSamples:
        """Those of the newest samples of a node that did not come in tables."""
        return self._samples.get(node, ())

    def table_times(self, metric: str) -> Iterator[tuple[str, float]]:
        """For each table with a metric, its source and when the newest value of the metric was measured."""
        for key in self._tables.with_metric(metric):
            if (table := self._tables.get(key)) is not None:
                yield key.source, max(reading.time for reading in table.columns[metric].different)

    def has_samples(self, node: str) -> bool:
        """Whether a node has samples, stale or not."""
        return node in self._samples or bool(self._tables.holding(node))

    def labels(self, node: str) -> Mapping[str, str] | None:
        """A node's labels as the API server reported them, or None if they are not known."""
        return self._labels.get(node)

    def kept_from(self, node: str) -> float:
        """Since when values of a node are kept, as `tas.samples.freshness.kept_from`."""
        return kept_from(
            listed=node in self._labels,
            created=self._created.get(node),
            cluster=self._cluster,
            released=self.released(node),
        )

    def released(self, node: str) -> float:
        """When a node was released (`release`), in seconds since 1970; minus infinity: it was not."""
        return self._released.get(node, -inf)

    def kept_rejections(self) -> Mapping[PolicyKey, KeptRejections]:
        """For each policy in force that keeps values: whom it rejects by them."""
        found: dict[PolicyKey, KeptRejections] = {}
        for key, each in self._policies.items():
            strategy = each.dontschedule
            if strategy is None or not strategy.strategy.keeps or each.policy.suspend or each.policy.dry_run:
                continue
            selected = self._selected(each.policy) if strategy.kept else 0
            found[key] = KeptRejections(len(strategy.kept), selected, strategy.oldest_kept(self._now))
        return found

    @property
    def counts_pods(self) -> bool:
        """Whether a policy has a `podCost`: then the view needs the pods."""
        return bool(self._counting)

    @property
    def placed_pods(self) -> int:
        """The number of pods whose cost may still count."""
        return len(self._placements)

    def placed(self, policy: PolicyKey, node: str) -> Sequence[float]:
        """The times at which pods of a policy were placed on a node, if their cost may still count."""
        return self._placements.nodes(policy).get(node, ())

    def metric(self, key: MetricKey, now: float) -> Mapping[str, Quantity]:
        """Each node's fresh value, read-only, and kept up to date from now on."""
        return MappingProxyType(self._use(key, now).values)

    def follow_metric(self, key: MetricKey, follower: MetricFollower, now: float) -> None:
        """Calls `follower` with all nodes that have the metric, and from now on after each change of their samples."""
        index = self._use(key, now)
        index.followers.append(follower)
        for node in self.sampled_nodes:
            scrape = newest(self.samples(node), key.metric, key.source)
            if scrape is not None:
                follower(node, index.values.get(node), scrape.time)

    def stale_after(self, policy: Policy) -> float:
        """Seconds after which a sample is stale for `policy`."""
        return policy.stale_after_or(self.default_stale_after)

    # Changes

    def add_samples(self, node: str, samples: Iterable[Scrape], now: float) -> None:
        """Merges samples; an older sample never replaces a newer one.

        Samples measured before the node was created do not count.
        """
        self._now = max(self._now, now)
        known = self._samples.get(node, ())
        merged = merge(known, since(tuple(samples), self._created.get(node)))
        if merged is not known:
            if node not in self._samples:
                self.nodes_version += 1
            self._samples[node] = merged
            self._refresh(node, now)
            # The verdict notes which series ever had a sample.
            if self._verdicts and not _have_same_series(known, merged):
                self._touch(node, self._policies)

    def drop_samples(self, node: str) -> None:
        """Removes the samples of a deleted node that came as scrapes."""
        if self._samples.pop(node, None) is not None:
            self.nodes_version += 1
            self._refresh(node, self._now)

    def set_table(self, key: TableKey, table: Table, now: float) -> None:
        """Sets a table in place of the one before. Rows measured before their node was created do not count."""
        self._now = max(self._now, now)
        self._replace_table(key, without_earlier(table, self._created))

    def drop_table(self, key: TableKey) -> None:
        """Removes a deleted table; without effect for unknown ones."""
        self._replace_table(key, None)

    def table(self, key: TableKey) -> Table | None:
        """A table as it counts, or None."""
        return self._tables.get(key)

    def set_labels(self, node: str, labels: Mapping[str, str] | None, *, created: float | None = None) -> None:
        """Sets the labels of a node, as the API server reported them; None if they are too many to be known.

        `created` is when the API server created the node, in seconds since 1970, if known.
        """
        known_from = self.kept_from(node)
        is_new = node not in self._labels
        self.nodes_version += is_new
        self._set_created(node, created)
        if is_new or self._labels[node] != labels:
            self._labels[node] = labels
            self._refresh_strategies(node, self._strategies_with_selector())
            self._touch(node, self._policies if is_new else self._policies_with_selector())
        self._keep_again(node, known_from)

    def drop_labels(self, node: str) -> None:
        """Removes the labels of a node that was deleted from the API server."""
        if node in self._labels:
            del self._labels[node]
            self._created.pop(node, None)
            self.nodes_version += 1
            self._refresh_strategies(node, self._strategies_with_selector())
            self._touch(node, self._policies)
            self._refresh_kept(node)

    def set_cluster(self, *, cluster: bool) -> None:
        """Notes whether there is a complete list of nodes: then nothing is kept of a name that no node has."""
        if cluster is not self._cluster:
            self._cluster = cluster
            for node in self.sampled_nodes - self._labels.keys():
                self._refresh_kept(node)

    def release(self, node: str, time: float) -> None:
        """Notes that no value of a node is kept that was measured before `time`, in seconds since 1970."""
        known_from = self.kept_from(node)
        self._released[node] = time
        self._keep_again(node, known_from)

    def drop_release(self, node: str) -> None:
        """Takes `release` back; without effect for others."""
        known_from = self.kept_from(node)
        if self._released.pop(node, None) is not None:
            self._keep_again(node, known_from)

    def set_policies(self, policies: Collection[Policy], now: float) -> None:
        """Sets several policies; the values of all their metrics are looked up in one pass over the nodes."""
        self._now = max(self._now, now)
        self._index_all(policies, now)
        for policy in policies:
            self.set_policy(policy, now)

    def _index_all(self, policies: Iterable[Policy], now: float) -> None:
        self._index(
            [
                self._metric_key(policy, rule)
                for policy in policies
                for kind, strategy in policy.strategies.items()
                if kind in self._indexed
                for rule in strategy.rules
            ],
            now,
        )

    def set_policy(self, policy: Policy, now: float) -> None:
        """Sets a new policy, or a new version of a policy."""
        self._now = max(self._now, now)
        known = self._policies.get(policy.key)
        if known is not None and known.policy == policy:
            return
        self._index_all([policy], now)  # one pass over the nodes, and not one for each of its metrics
        indices = {
            kind: tuple(self._use(self._metric_key(policy, rule), now) for rule in strategy.rules)
            for kind, strategy in policy.strategies.items()
            if kind in self._indexed
        }
        if known is not None:  # only now, so that an index that both versions use is not built again
            self._release(known)
        dontschedule = None
        if (strategy := policy.strategies.get(StrategyType.DONTSCHEDULE)) is not None and strategy.rules:
            dontschedule = StrategyIndex(policy, strategy, indices[StrategyType.DONTSCHEDULE])
            for index in dict.fromkeys(dontschedule.indices):
                index.add_dependent(dontschedule)
            if strategy.keeps:
                new = [each for each in dict.fromkeys(dontschedule.indices) if each.keep_counts[strategy.keep_for] == 1]
                self._keep_indices(new, now)
            dontschedule.fill(self._labels, now)
        self._policies[policy.key] = PolicyIndex(policy, dontschedule, indices.get(StrategyType.SCHEDULEONMETRIC))
        if self._policies[policy.key].costed:
            self._counting.add(policy.key)
            for node in self._placements.nodes(policy.key):
                self._add_costs(policy.key, node)
        else:
            self._forget_pods(policy.key)
        if self._verdicts:
            for watch in watches_of(policy):
                self._indices[self._metric_key(policy, watch.rule)].add_watch(watch)
            self.touch_policy(policy.key)

    def drop_policy(self, key: PolicyKey) -> None:
        """Removes a deleted policy; without effect for unknown ones."""
        known = self._policies.pop(key, None)
        if known is not None:
            self._release(known)
            self._forget_pods(key)
            self.touch_policy(key)

    def place_pod(self, pod: PodKey, policy: PolicyKey, node: str, time: float, now: float) -> None:
        """Notes that a pod of this policy was bound to a node at `time`, in place of an earlier placement of the pod.

        A time up to `FUTURE_TOLERANCE` ahead counts as `now`. A pod with a later time is not kept, nor is a pod that
        can count no more, or that a policy without `podCost` concerns.
        """
        placement = Placement(policy, node, min(time, now))
        known = self._placements.get(pod)
        if known == placement or (known is not None and known[:2] == (policy, node) and time > now):
            return
        self.drop_pod(pod)
        if policy not in self._counting:
            return
        until = placement.time + PRECISION + self.stale_after(self._policies[policy].policy)
        if now < until and time <= now + FUTURE_TOLERANCE:
            self._placements.add(pod, placement, until)
            self._add_costs(policy, node)

    def drop_pod(self, pod: PodKey) -> None:
        """Notes that a pod is on no node any more; without effect for unknown ones."""
        placement = self._placements.remove(pod)
        if placement is not None:
            self._add_costs(placement.policy, placement.node)

    def touch_policy(self, key: PolicyKey) -> None:
        """Marks this policy, which may be deleted, to be evaluated again for every node."""
        if self._verdicts:
            for node in self.nodes:
                self.touched.setdefault(node, set()).add(key)

    def touch_node(self, node: str) -> None:
        """Marks every policy to be evaluated again for this node: a new node has taken the name."""
        self._touch(node, self._policies)

    def advance(self, now: float) -> None:
        """Moves the view to the time `now`: samples that have become stale count no more."""
        self._now = max(self._now, now)
        for key in self._table_deadlines.pop_due(now):
            self._age_table(key)
        for node in self._deadlines.pop_due(now):
            self._refresh(node, now)
        for pod in self._placements.due(now):
            self.drop_pod(pod)

    def next_deadline(self) -> float | None:
        """The next time at which `advance` changes something, or None."""
        due = [when for each in (self._deadlines, self._table_deadlines) if (when := each.next()) is not None]
        return min(due, default=None)

    # Upkeep

    def _selected(self, policy: Policy) -> int:
        nodes = self._labels.keys() if self._cluster else self.nodes
        if policy.node_selector is None:
            return len(nodes)
        return sum(policy.selects(self._labels.get(node)) is True for node in nodes)

    def _metric_key(self, policy: Policy, rule: Rule) -> MetricKey:
        return MetricKey(rule.metric, rule.source, self.stale_after(policy))

    def _use(self, key: MetricKey, now: float) -> MetricIndex:
        self._index([key], now)
        index = self._indices[key]
        index.users += 1
        return index

    def _index(self, keys: Iterable[MetricKey], now: float) -> None:
        """Builds the indices that do not exist yet."""
        missing = {key: MetricIndex(key) for key in keys if key not in self._indices}
        if not missing:
            return
        self._indices |= missing
        for node in self._samples:
            self._index_node(node, missing, now)
        for metric in {key.metric for key in missing} if self._tables else ():
            indices = {key: index for key, index in missing.items() if key.metric == metric}
            for node in self._tables.shared(metric) - self._samples.keys():
                self._index_node(node, indices, now)
            for key in self._tables.with_metric(metric):
                self._index_table(key, indices.values(), now)

    def _index_node(self, node: str, indices: Mapping[MetricKey, MetricIndex], now: float) -> None:
        samples, earliest = self.samples(node), inf
        for (metric, source, stale_after), index in indices.items():
            scrape = newest(samples, metric, source)
            if scrape is not None and is_fresh(scrape, stale_after, now):
                index.values[node] = scrape.metrics[metric]
                earliest = min(earliest, stale_at(scrape, stale_after))
        if earliest < inf:
            self._set_deadline_at_latest(node, earliest)

    def _index_table(self, key: TableKey, indices: Iterable[MetricIndex], now: float) -> None:
        """Adds the values of a table to new indices, without nodes that have values elsewhere, too."""
        table = self._tables.get(key)
        assert table is not None
        for index in indices:
            if index.concerns(key):
                column = table.columns[index.key.metric]
                fresh, due = _fresh_values(table.nodes, column, index.key.stale_after, now)
                elsewhere = self._tables.shared(index.key.metric) | (self._samples.keys() & table.rows.keys())
                index.values.update((node, value) for node, value in fresh.items() if node not in elsewhere)
                self._table_deadlines.set(key, min(due, self._table_deadlines.when(key) or inf))

    def _keep_indices(self, indices: Collection[MetricIndex], now: float) -> None:
        """Looks up the kept values of indices, after a strategy has come that keeps values for another time."""
        several = {index: self._tables.shared(index.key.metric) for index in indices}
        for node in self._samples.keys() | frozenset[str]().union(*several.values()) if several else ():
            self._keep_node(node, several, now)
        for index, shared in several.items():
            for key in self._tables.with_metric(index.key.metric):
                if index.concerns(key):
                    self._keep_table(key, index, self._samples.keys() | shared, now)

    def _keep_node(self, node: str, several: Mapping[MetricIndex, Collection[str]], now: float) -> None:
        """For each index the nodes that have its metric in several tables: of others only own samples are looked up."""
        samples, is_own = self.samples(node), node in self._samples
        for index, shared in several.items():
            metric, source, _ = index.key
            scrape = newest(samples, metric, source) if is_own or node in shared else None
            if scrape is not None and node not in index.values:
                kept = index.keep(scrape.metrics[metric], scrape.time, self.kept_from(node), now)
                index.set_kept(node, kept)
                if kept is not None:
                    self._set_deadline_at_latest(node, kept.until)

    def _keep_table(self, key: TableKey, index: MetricIndex, elsewhere: Collection[str], now: float) -> None:
        """The same for the nodes of a table, without those that have values elsewhere, too."""
        table = self._tables.get(key)
        assert table is not None
        column = table.columns[index.key.metric]
        for node, kept in self._kept_values(index, table.nodes, column, now, fresh=0).items():
            if kept is not None and node not in elsewhere:
                index.set_kept(node, kept)
                self._table_deadlines.set(key, min(kept.until, self._table_deadlines.when(key) or inf))

    def _kept_values(
        self, index: MetricIndex, nodes: Sequence[str], column: Column, now: float, *, fresh: int
    ) -> Mapping[str, Kept | None]:
        """The kept values of a column by node, of which so many are fresh; None: no strategy keeps the value."""
        found: dict[str, Kept | None] = {}
        if not index.keep_counts or fresh == len(column.values) - column.values.count(None):
            return found
        ends: dict[Reading, float | None] = {}  # all nodes of a table may become stale at once
        for node, value, reading in zip(nodes, column.values, column.readings, strict=True):
            if value is None or reading.stale_at(index.key.stale_after) > now:
                continue
            if reading not in ends:
                ends[reading] = index.kept_until(reading.time, -inf, now)
            until = ends[reading]
            is_kept = until is not None and reading.time >= self.kept_from(node)
            found[node] = Kept(value, reading.time, until) if until is not None and is_kept else None
        return found

    def _keep_again(self, node: str, known_from: float) -> None:
        """Looks up what is kept of a node, unless its values are kept since the same time as before."""
        if self.kept_from(node) != known_from:
            self._refresh_kept(node)

    def _refresh_kept(self, node: str) -> None:
        if any(index.keep_counts for index in self._indices.values()):
            self._refresh(node, self._now)

    def _release(self, policy: PolicyIndex) -> None:
        if policy.dontschedule is not None:
            for index in dict.fromkeys(policy.dontschedule.indices):
                index.remove_dependent(policy.dontschedule)
        if self._verdicts:
            for watch in watches_of(policy.policy):
                self._indices[self._metric_key(policy.policy, watch.rule)].remove_watches(watch.policy)
        for kind, strategy in policy.policy.strategies.items():
            if kind in self._indexed:
                for rule in strategy.rules:
                    key = self._metric_key(policy.policy, rule)
                    index = self._indices[key]
                    index.users -= 1
                    if index.users == 0:
                        del self._indices[key]

    def _refresh(self, node: str, now: float) -> None:
        """Updates the indices for one node at `now`, then the strategies that depend on a changed value."""
        single = self._samples.get(node)
        if single is not None and max(scrape.time for scrape in single) + MAX_SAMPLE_AGE <= now:
            del self._samples[node]  # stale for every policy
            self.nodes_version += 1
        samples = self.samples(node)
        due = max((scrape.time for scrape in samples), default=inf) + MAX_SAMPLE_AGE
        touched: dict[StrategyIndex, None] = {}
        for index, scrape, end in self._newest_by_index(samples):
            value = None if scrape is None or end <= now else scrape.metrics[index.key.metric]
            due = due if value is None else min(due, end)
            if node in index.kept or (value is None and scrape is not None):
                is_kept_anew, until = self._refresh_kept_value(index, node, scrape if value is None else None, now)
                due = min(due, until)
                if is_kept_anew:
                    touched |= index.dependents
            if (before := index.values.get(node)) != value and self._change_value(index, node, before, value):
                touched |= index.dependents
            for follower in index.followers:
                follower(node, value, None if scrape is None else scrape.time)
        if due < inf:
            self._deadlines.set(node, due)
        else:
            self._deadlines.discard(node)
        self._refresh_strategies(node, touched)
        self._add_costs_of(node)

    def _newest_by_index(self, samples: NodeSamples) -> Iterator[tuple[MetricIndex, Scrape | None, float]]:
        """For each index the newest scrape of a node with its metric, and when the value becomes stale."""
        only = samples[0] if len(samples) == 1 else None  # as of nearly every node: nothing is compared for each metric
        ends: dict[float, float] = {}  # of `only`, by `stale_after`
        for index in self._indices.values():
            metric, source, stale_after = index.key
            if only is None:
                scrape = newest(samples, metric, source)
                yield index, scrape, inf if scrape is None else stale_at(scrape, stale_after)
            elif metric in only.metrics and source in (None, only.source):
                if (end := ends.get(stale_after)) is None:
                    end = ends[stale_after] = stale_at(only, stale_after)
                yield index, only, end
            else:
                yield index, None, inf

    def _change_value(self, index: MetricIndex, node: str, before: Quantity | None, value: Quantity | None) -> bool:
        """Replaces the fresh value of a node; returns whether that may change the state of a strategy."""
        if index.watches:
            self._touch_watching(node, index, before, value)
        if value is None:
            del index.values[node]
        else:
            index.values[node] = value
        return index.crosses_target(before, value)

    def _refresh_kept_value(
        self, index: MetricIndex, node: str, stale: Scrape | None, now: float
    ) -> tuple[bool, float]:
        """Updates the kept value of a node, whose newest scrape is `stale`; None: it is fresh, or there is none.

        Returns whether that is a change, and when time alone changes it.
        """
        kept: Kept | None = None
        if stale is not None and index.keep_counts:
            kept = index.keep(stale.metrics[index.key.metric], stale.time, self.kept_from(node), now)
        is_changed = (kept is not None or node in index.kept) and index.set_kept(node, kept)
        if is_changed:
            self._touch_keeping(node, index)
        return is_changed, inf if kept is None else kept.until

    def _set_created(self, node: str, created: float | None) -> None:
        if created is None:
            self._created.pop(node, None)
        if created is None or self._created.get(node) == created:
            return
        self._created[node] = created
        known = self._samples.get(node, ())
        own = since(known, created)
        if own is not known:
            if own:
                self._samples[node] = own
                self._refresh(node, self._now)
            else:
                self.drop_samples(node)
            self._touch(node, self._policies)  # the verdict notes which series ever had a sample
        for key in self._tables.holding(node):
            table = self._tables.get(key)
            # Only the row is looked at: at the start the facts of all nodes of a table may come one after the other.
            if table is not None and any(scrape.time < created for scrape in table.scrapes(node)):
                self._replace_table(key, without_earlier(table, {node: created}))

    def _age_table(self, key: TableKey) -> None:
        """Updates the indices after values of a table have become stale."""
        table = self._tables.get(key)
        if table is not None:
            # Stale for every policy after the longest time.
            self._replace_table(key, table if table.newest + MAX_SAMPLE_AGE > self._now else None)

    def _replace_table(self, key: TableKey, table: Table | None) -> None:
        """Updates the indices column by column, then the strategies of nodes whose value crosses a target."""
        if table is not None and not table.nodes:
            table = None
        if table is None and self._tables.get(key) is None:
            return
        change = self._tables.replace(key, table)
        self.nodes_version += not change.same_layout
        if self._verdicts:
            for node in change.other_series:  # the verdict notes which series ever had a sample
                self._touch(node, self._policies)
        elsewhere, due = self._apply_table(change)
        if table is None:
            self._table_deadlines.discard(key)
        else:
            self._table_deadlines.set(key, min(due, table.newest + MAX_SAMPLE_AGE))
        for node in elsewhere:
            self._refresh(node, self._now)
        for policy in self._counting if self._placements else ():
            for node in self._placements.nodes(policy).keys() & change.rows:
                self._add_costs(policy, node)

    def _apply_table(self, change: TableChange) -> tuple[set[str], float]:
        """Updates the indices and strategies of nodes that have a metric only from this table.

        Returns the nodes that have one elsewhere, too, and when the first of the other values becomes stale.
        """
        singles = self._samples.keys() & change.rows
        elsewhere: set[str] = set()
        crossing: dict[StrategyIndex, set[str]] = {}
        due = inf
        for index in self._indices.values():
            metric = index.key.metric
            if metric in change.metrics and index.concerns(change.key):
                others = {node for node in singles if any(metric in scrape.metrics for scrape in self._samples[node])}
                others |= change.rows & change.shared[metric]
                crossed, stale = self._apply_column(index, change, others)
                due = min(due, stale)
                elsewhere |= others
                for strategy in index.dependents if crossed else ():
                    crossing.setdefault(strategy, set()).update(crossed)
        for strategy, nodes in crossing.items():
            self._refresh_strategy(strategy, nodes)
        return elsewhere, due

    def _apply_column(self, index: MetricIndex, change: TableChange, elsewhere: Set[str]) -> tuple[list[str], float]:
        """Updates the values of an index from a table, without the nodes in `elsewhere`.

        Returns the nodes whose value crosses a target, or is kept or not any more, and when time alone changes a value.
        """
        found = change.column(index.key.metric)
        fresh, due = ({}, inf) if found is None else _fresh_values(*found, index.key.stale_after, self._now)
        kept = {} if found is None else self._kept_values(index, *found, self._now, fresh=len(fresh))
        due = min(due, min((each.until for each in kept.values() if each is not None), default=inf))
        for node in elsewhere:
            fresh.pop(node, None)
        before = index.values.get
        changed = {node: value for node, value in fresh.items() if before(node) != value}
        gone: list[str] = []
        if len(fresh) < len(change.rows):
            gone = [node for node in index.values.keys() & change.rows - elsewhere if node not in fresh]
        crossed = gone + [node for node, value in changed.items() if index.crosses_target(before(node), value)]
        if index.watches:
            for node in (*gone, *changed) if index.competes else crossed:
                self._touch_watching(node, index, before(node), changed.get(node))
        index.values.update(changed)
        for node in gone:
            del index.values[node]
        if index.followers:
            times = {} if found is None else _times(*found)
            for node in change.rows - elsewhere:
                for follower in index.followers:
                    follower(node, fresh.get(node), times.get(node))
        if kept or index.kept:
            crossed += self._apply_kept(index, change.rows - elsewhere, kept)
        return crossed, due

    def _apply_kept(self, index: MetricIndex, nodes: Set[str], kept: Mapping[str, Kept | None]) -> list[str]:
        """Updates the kept values of an index for these nodes; returns the nodes for which that is a change."""
        concerned = (kept.keys() | index.kept.keys()) & nodes
        changed = [node for node in concerned if index.set_kept(node, kept.get(node))]
        for node in changed:
            self._touch_keeping(node, index)
        return changed

    def _forget_pods(self, policy: PolicyKey) -> None:
        """Forgets the pods of a policy that has no `podCost` any more."""
        if policy in self._counting:
            self._counting.discard(policy)
            self._placements.remove_policy(policy)

    def _add_costs_of(self, node: str) -> None:
        """Computes the values of a node with the costs of pods again, for every policy, after its samples changed."""
        if self._placements:
            for policy in self._placements.policies(node):
                self._add_costs(policy, node)

    def _add_costs(self, policy: PolicyKey, node: str) -> None:
        """Computes the values of a node with the costs of a policy's pods again."""
        index = self._policies[policy]
        strategy = index.policy.strategies[StrategyType.SCHEDULEONMETRIC]
        times, samples = self.placed(policy, node), self.samples(node)
        each = zip(strategy.rules, strategy.pod_costs, index.score_indices or (), index.costed, strict=True)
        for rule, cost, metric, costed in each:
            costed.pop(node, None)
            if cost is None or not times or (value := metric.values.get(node)) is None:
                continue
            scrape = newest(samples, rule.metric, rule.source)
            if scrape is not None and (pods := pods_not_shown(times, scrape.time)):
                costed[node] = with_cost(rule, value, pods)

    def _touch_watching(self, node: str, index: MetricIndex, before: Quantity | None, after: Quantity | None) -> None:
        """Marks the policies whose verdict may change with this change of a fresh value."""
        for policy, watches in index.watches.items():
            if any(watch.is_touched(before, after) for watch in watches):
                self.touched.setdefault(node, set()).add(policy)

    def _touch_keeping(self, node: str, index: MetricIndex) -> None:
        """Marks the policies that may reject the node by a kept value of an index."""
        self._touch(node, (strategy.policy.key for strategy in index.dependents if strategy.strategy.keeps))

    def _touch(self, node: str, policies: Iterable[PolicyKey]) -> None:
        if self._verdicts:
            self.touched.setdefault(node, set()).update(policies)

    def _set_deadline_at_latest(self, node: str, when: float) -> None:
        known = self._deadlines.when(node)
        if known is None or when < known:
            self._deadlines.set(node, when)

    def _refresh_strategy(self, strategy: StrategyIndex, nodes: Iterable[str]) -> None:
        for node in nodes:
            strategy.refresh(node, self._labels.get(node), self._now)

    def _refresh_strategies(self, node: str, strategies: Iterable[StrategyIndex]) -> None:
        labels = self._labels.get(node)
        for strategy in strategies:
            strategy.refresh(node, labels, self._now)

    def _strategies(self) -> Iterator[StrategyIndex]:
        return (entry.dontschedule for entry in self._policies.values() if entry.dontschedule is not None)

    def _policies_with_selector(self) -> Iterator[PolicyKey]:
        return (key for key, entry in self._policies.items() if entry.policy.node_selector is not None)

    def _strategies_with_selector(self) -> Iterator[StrategyIndex]:
        return (strategy for strategy in self._strategies() if strategy.policy.node_selector is not None)


INDEXED = frozenset({StrategyType.DONTSCHEDULE, StrategyType.SCHEDULEONMETRIC})
"""The strategies from which an extender answers."""


def _fresh_values(
    nodes: Sequence[str], column: Column, stale_after: float, now: float
) -> tuple[dict[str, Quantity], float]:
    """The fresh values of a column by node, and when the first of them becomes stale."""
    if isinstance(column.reading, Reading):
        due = column.reading.stale_at(stale_after)
        if due <= now:
            return {}, inf
        return {node: value for node, value in zip(nodes, column.values, strict=True) if value is not None}, due
    fresh: dict[str, Quantity] = {}
    earliest = inf
    for node, value, reading in zip(nodes, column.values, column.reading, strict=True):
        if value is not None and (due := reading.stale_at(stale_after)) > now:
            fresh[node] = value
            earliest = min(earliest, due)
    return fresh, earliest


def _times(nodes: Sequence[str], column: Column) -> dict[str, float]:
    """The time of each node's value, fresh or not."""
    return {
        node: reading.time
        for node, value, reading in zip(nodes, column.values, column.readings, strict=True)
        if value is not None
    }


def _have_same_series(before: NodeSamples, after: NodeSamples) -> bool:
    """Whether two states of a node have the same metrics from the same sources."""
    if [(scrape.source, scrape.metrics.keys()) for scrape in before] == [
        (scrape.source, scrape.metrics.keys()) for scrape in after
    ]:
        return True  # as nearly always
    return _series(before) == _series(after)


def _series(samples: NodeSamples) -> set[tuple[str, str]]:
    return {(scrape.source, metric) for scrape in samples for metric in scrape.metrics}
