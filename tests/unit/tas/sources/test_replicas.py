"""Replicas of one Prometheus, two jobs that scrape one exporter, and addresses: which values count for a node."""

import json
from collections.abc import Mapping
from itertools import permutations

import pytest

from tas.sources.config import parse_source_config
from tas.sources.nodes import NodeNames
from tas.sources.prometheus import read_answer
from tas.sources.remote_write import SeriesStore
from tas.sources.result import MAX_EXAMPLES, RefusalReason, SourceResult
from tas.sources.series import LOOKBACK, REPLICA_LABELS, Aggregate, Mappings, MetricMapping
from tas.sources.write_request import decode_write_request
from tas.values.document import DocumentError
from tas.values.quantity import format_quantity
from tests.sources.writing import STALE, Series, body, series

NOW = 1767225600.0
MS = 1767225600_000
CLUSTER = NodeNames({"node-1": ["172.20.3.4"], "node-2": ["172.20.3.5"]}, is_complete=True)


def answer(*found: tuple[Mapping[str, str], float, str]) -> bytes:
    """An answer with series: the labels, the time and the value of each."""
    result = [{"metric": {"__name__": "load"} | dict(labels), "value": [time, value]} for labels, time, value in found]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def polled(*found: tuple[Mapping[str, str], float, str], **fields: object) -> SourceResult:
    mapping = Mappings(metrics={"load": MetricMapping(**fields)}).of("load")  # type: ignore[arg-type]
    return read_answer("load", mapping, answer(*found), nodes=CLUSTER)


def values(result: SourceResult) -> dict[str, str]:
    return {each.node: format_quantity(each.value) for each in result.samples}


class Receiver:
    """Takes what senders write, at times in seconds after `NOW`."""

    def __init__(self, nodes: NodeNames = CLUSTER, mappings: Mappings | None = None, **fields: object) -> None:
        self.nodes = nodes
        self._store = SeriesStore(mappings or Mappings(metrics={"load": MetricMapping(**fields)}))  # type: ignore[arg-type]

    def take(self, at: float, *written: Series) -> SourceResult:
        request = decode_write_request(body(written))
        result, invalid = self._store.add_request(request, frozenset({"load"}), now=NOW + at, nodes=self.nodes)
        assert invalid is None
        return result


def sample(value: float, at: float, **labels: str) -> Series:
    return series("load", (float(value), MS + round(at * 1000)), **{"node": "node-1", **labels})


class TestPolled:
    @pytest.mark.parametrize("label", REPLICA_LABELS)
    def test_of_replicas_the_newest_counts_in_any_order(self, label: str) -> None:
        found = [({"node": "node-1", label: name}, time, value) for name, time, value in (("a", 5, "1"), ("b", 6, "2"))]
        for order in permutations(found):
            result = polled(*order)
            assert values(result) == {"node-1": "2"}
            assert result.refusals == {}

    def test_at_equal_times_it_is_always_the_same_replica(self) -> None:
        found = [({"node": "node-1", "prometheus_replica": name}, NOW, name[-1]) for name in ("p-0", "p-1", "p-2")]
        assert {values(polled(*order))["node-1"] for order in permutations(found)} == {"0"}

    def test_without_the_first_replica_the_other_one_counts(self) -> None:
        assert values(polled(({"node": "node-1", "prometheus_replica": "b"}, NOW, "2"))) == {"node-1": "2"}

    def test_a_replica_without_the_label_is_one_too(self) -> None:
        found = (({"node": "node-1"}, NOW, "1"), ({"node": "node-1", "replica": "b"}, NOW - 1, "2"))
        assert values(polled(*found)) == {"node-1": "1"}

    def test_replicas_count_once_in_a_sum(self) -> None:
        found = [
            ({"node": "node-1", "cpu": cpu, "replica": replica}, NOW, value)
            for replica, one, two in (("a", "1", "10"), ("b", "2", "20"))
            for cpu, value in (("0", one), ("1", two))
        ]
        for order in permutations(found):
            assert values(polled(*order, aggregate=Aggregate.SUM)) == {"node-1": "11"}

    def test_two_series_of_one_replica_are_refused(self) -> None:
        found = [
            ({"node": "node-1", "cpu": cpu, "replica": replica}, NOW, "1") for cpu in ("0", "1") for replica in "ab"
        ]
        result = polled(*found)
        assert result.samples == ()
        refusal = result.refusals[RefusalReason.DUPLICATE]
        assert refusal.count == 2
        assert """series = '{cpu="0"}': and {cpu="1"}: 2 series of one node""" in refusal.example

    def test_series_with_the_same_labels_are_no_replicas(self) -> None:
        found = ({"node": "node-1", "replica": "a"}, NOW, "1")
        assert polled(found, found).refusals[RefusalReason.DUPLICATE].count == 2

    @pytest.mark.parametrize("label", ["prometheus", "cluster", "pod"])
    def test_other_labels_tell_series_apart(self, label: str) -> None:
        found = [({"node": "node-1", label: name}, NOW, "1") for name in ("a", "b")]
        assert polled(*found).samples == ()

    def test_the_labels_of_replicas_can_be_set(self) -> None:
        found = [({"node": "node-1", "site": name}, NOW, name[-1]) for name in ("x1", "x2")]
        assert values(polled(*found, replica_labels=("site",))) == {"node-1": "1"}
        replicas = [({"node": "node-1", "replica": name}, NOW, "1") for name in ("a", "b")]
        assert polled(*replicas, replica_labels=()).samples == ()


class TestRemoteWrite:
    def test_replicas_out_of_phase_alternate_and_nothing_is_refused(self) -> None:
        receiver, got = Receiver(), []
        for at in range(0, 60, 15):
            for replica, value, phase in (("a", 1, 0), ("b", 2, 7)):
                result = receiver.take(at + phase + 0.1, sample(value + at, at + phase, prometheus_replica=replica))
                assert result.refusals == {}
                (each,) = result.samples
                assert each.measured is not None
                got.append((format_quantity(each.value), each.measured - NOW))
        assert got == [(str(value + at), at + phase) for at in range(0, 60, 15) for value, phase in ((1, 0), (2, 7))]

    def test_a_clock_that_is_5_s_ahead_moves_the_value_only_to_newer_times(self) -> None:
        receiver, times = Receiver(), []
        for at in range(0, 48, 4):
            for replica, phase, ahead in (("a", 0, 0), ("b", 1, 5)):
                result = receiver.take(at + phase, sample(at, at + phase + ahead, replica=replica))
                assert result.refusals == {}
                times.append(result.samples[0].measured)
        assert times == sorted(times, key=lambda time: time or 0)
        assert len(set(times)) == 13  # those of b, and the first one of a: later ones are older than those of b

    def test_at_equal_times_it_is_always_the_same_replica_in_one_request_or_in_two(self) -> None:
        a, b = sample(1, 0, replica="a"), sample(2, 0, replica="b")
        assert values(Receiver().take(0, a, b)) == values(Receiver().take(0, b, a)) == {"node-1": "1"}
        for first, second in ((a, b), (b, a)):
            receiver = Receiver()
            receiver.take(0, first)
            assert values(receiver.take(0, second)) == {"node-1": "1"}

    def test_failover_leaves_no_gap(self) -> None:
        receiver = Receiver()
        receiver.take(0, sample(1, 0, replica="a"))
        receiver.take(7, sample(2, 7, replica="b"))
        for at in range(22, round(3 * LOOKBACK), 15):  # a has ended without a word
            result = receiver.take(at, sample(at, at, replica="b"))
            assert (values(result), result.refusals) == ({"node-1": str(at)}, {})

    def test_a_replica_whose_series_has_ended_leaves_the_value_to_the_other(self) -> None:
        receiver = Receiver()
        receiver.take(0, sample(1, 0, replica="a"))
        receiver.take(1, sample(2, -5, replica="b"))
        (each,) = receiver.take(15, series("load", (STALE, MS + 15_000), node="node-1", replica="a")).samples
        assert (format_quantity(each.value), each.ends) == ("2", None)

    def test_labels_in_another_order_are_the_same_series(self) -> None:
        receiver = Receiver(aggregate=Aggregate.SUM)
        for at in (0, 15):
            receiver.take(at, sample(1, at, replica="a", zone="z", cpu="0"))
            result = receiver.take(at + 1, sample(2, at + 1, cpu="0", zone="z", replica="b"))
        assert values(result) == {"node-1": "2"}

    def test_replicas_count_once_in_a_sum(self) -> None:
        receiver = Receiver(aggregate=Aggregate.SUM)
        for at in (0, 15):
            for replica, phase in (("a", 0), ("b", 7)):
                written = [sample(value, at + phase, cpu=cpu, replica=replica) for cpu, value in (("0", 1), ("1", 10))]
                result = receiver.take(at + phase, *written)
        assert values(result) == {"node-1": "11"}

    def test_the_labels_of_replicas_can_be_set(self) -> None:
        receiver = Receiver(mappings=Mappings(replica_labels=("site",)))
        assert values(receiver.take(0, sample(1, 0, site="x"), sample(2, -1, site="y"))) == {"node-1": "1"}
        receiver = Receiver(mappings=Mappings(replica_labels=()))
        assert receiver.take(0, sample(1, 0, replica="a"), sample(2, 0, replica="b")).samples == ()


class TestTwoJobs:
    def test_two_jobs_that_scrape_one_exporter_are_refused_and_named(self) -> None:
        found = [
            ({"instance": "172.20.3.4:9100", "job": job, "endpoint": job, "replica": replica}, NOW, "1")
            for job in ("node-exporter", "kubernetes-nodes")
            for replica in ("a", "b")
        ]
        result = polled(*found)
        assert result.samples == ()
        example = result.refusals[RefusalReason.DUPLICATE].example
        assert "two jobs, 'node-exporter' and 'kubernetes-nodes', scrape the same exporter of node node-1" in example
        assert '{job="node-exporter",endpoint="node-exporter"}' in example
        assert "replica" not in example

    def test_they_are_named_too_if_one_uses_the_name_of_the_node(self) -> None:
        written = [
            sample(1, 0, node="", instance=f"{host}:9100", job=job)
            for host, job in (("node-1", "a"), ("172.20.3.4", "b"))
        ]
        result = Receiver().take(0, *written)
        assert result.samples == ()
        assert "two jobs, 'a' and 'b', scrape the same exporter" in result.refusals[RefusalReason.DUPLICATE].example

    @pytest.mark.parametrize("aggregate", list(Aggregate))
    def test_an_aggregate_does_not_have_an_exporter_twice(self, aggregate: Aggregate) -> None:
        found = [
            ({"instance": "node-1:9100", "job": job, "service": job, "cpu": cpu}, NOW, "1")
            for job in "ab"
            for cpu in "01"
        ]
        result = polled(*found, aggregate=aggregate)
        assert result.samples == ()
        assert "two jobs, 'a' and 'b', scrape the same" in result.refusals[RefusalReason.DUPLICATE].example
        receiver = Receiver(aggregate=aggregate)
        for at in (0, 15):
            result = receiver.take(
                at, *(sample(1, at, instance="node-1:9100", job=job, cpu=cpu) for job in "ab" for cpu in "01")
            )
        assert result.samples == ()
        assert "two jobs, 'a' and 'b', scrape the same" in result.refusals[RefusalReason.DUPLICATE].example

    def test_two_programs_on_a_node_with_the_same_port_are_two_exporters(self) -> None:
        found = [
            ({"node": "node-1", "instance": f"10.244.0.{number}:8080", "job": f"app-{number}"}, NOW, "1")
            for number in (1, 2)
        ]
        assert values(polled(*found, aggregate=Aggregate.SUM)) == {"node-1": "2"}

    def test_two_exporters_of_a_node_are_not_said_to_be_one(self) -> None:
        found = [({"instance": f"node-1:{port}", "job": job}, NOW, "1") for port, job in ((9100, "a"), (9400, "b"))]
        example = polled(*found).refusals[RefusalReason.DUPLICATE].example
        assert "2 series of one node, and no aggregate" in example

    def test_labels_choose_one_of_them(self) -> None:
        receiver = Receiver(labels={"job": "b"})
        written = [sample(value, 0, instance="node-1:9100", job=job) for value, job in ((1, "a"), (2, "b"))]
        assert values(receiver.take(0, *written)) == {"node-1": "2"}


class TestAddresses:
    def test_an_address_counts_for_its_node(self) -> None:
        found = [({"instance": f"172.20.3.{number}:9100"}, NOW, str(number)) for number in (4, 5)]
        assert values(polled(*found)) == {"node-1": "4", "node-2": "5"}
        written = [sample(number, 0, node="", instance=f"172.20.3.{number}:9100") for number in (4, 5)]
        assert values(Receiver().take(0, *written)) == {"node-1": "4", "node-2": "5"}

    def test_an_unknown_node_is_refused_with_label_value_and_nearest_node(self) -> None:
        for result in (
            polled(({"instance": "172.20.3.9:9100"}, NOW, "1")),
            Receiver().take(0, sample(1, 0, node="", instance="172.20.3.9:9100")),
        ):
            assert result.samples == ()
            assert result.refusals[RefusalReason.NODE].example == (
                "load: instance = '172.20.3.9:9100': is no name of a node of the cluster, and no address of one; "
                "the nearest is '172.20.3.4' of node-1"
            )

    def test_a_few_different_values_are_examples(self) -> None:
        found = [({"node": f"unknown-{number // 2}"}, NOW, "1") for number in range(20)]
        refusal = polled(*found).refusals[RefusalReason.NODE]
        assert refusal.count == 20
        assert [f"'unknown-{number}'" in refusal.example for number in range(10)] == [
            number < MAX_EXAMPLES for number in range(10)
        ]

    def test_a_configured_label_may_have_an_address(self) -> None:
        assert values(polled(({"host": "172.20.3.4", "node": "node-2"}, NOW, "1"), node_label="host")) == {
            "node-1": "1"
        }

    def test_an_address_that_moves_counts_for_no_node_twice(self) -> None:
        receiver = Receiver(aggregate=Aggregate.SUM)
        for at in (0, 15):
            result = receiver.take(at, sample(1, at, node="", instance="172.20.3.4:1"), sample(10, at, instance="x:1"))
        assert values(result) == {"node-1": "11"}
        receiver.nodes = NodeNames({"node-1": [], "node-2": ["172.20.3.4"]}, is_complete=True)
        for at in (30, 45):
            result = receiver.take(at, sample(1, at, node="", instance="172.20.3.4:1"), sample(10, at, instance="x:1"))
        assert values(result) == {"node-1": "10", "node-2": "1"}

    def test_a_shared_address_counts_for_neither_node(self) -> None:
        receiver = Receiver(NodeNames({"node-1": ["10.0.0.9"], "node-2": ["10.0.0.9"]}, is_complete=True))
        result = receiver.take(0, sample(1, 0, node="", instance="10.0.0.9:9100"))
        assert result.samples == ()
        assert "is an address of several nodes, node-1, node-2" in result.refusals[RefusalReason.NODE].example

    def test_a_new_node_changes_nothing_for_the_others(self) -> None:
        receiver = Receiver(aggregate=Aggregate.SUM)
        for at in (0, 15):
            receiver.take(at, sample(1, at, cpu="0"), sample(10, at, cpu="1"))
        receiver.nodes = NodeNames({"node-1": ["172.20.3.4"], "node-2": ["172.20.3.5"], "node-3": []}, is_complete=True)
        assert values(receiver.take(30, sample(2, 30, cpu="0"))) == {"node-1": "12"}


def test_the_file_may_set_labels_of_replicas_for_all_metrics_or_for_one() -> None:
    document = {"replica_labels": ["site"], "metrics": {"own": {"replica_labels": []}}}
    mappings = parse_source_config("sources.yaml", document, sources=()).mappings
    assert mappings.of("load").replica_labels == ("site",)
    assert mappings.of("own").replica_labels == ()
    assert parse_source_config("sources.yaml", {}, sources=()).mappings.of("load").replica_labels == REPLICA_LABELS
    with pytest.raises(DocumentError, match="replica_labels"):
        parse_source_config("sources.yaml", {"replica_labels": ["a-b"]}, sources=())
