"""Numbers that mean no value, in each form in which each source can carry them (facts.md n60, n61): a table.

Each source has the same node with a blank and with a good value. What is refused is counted, and costs nothing else.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from bus.records.samples import decode_samples
from bus.records.tables import decode_table
from tas.sources.annotations import Annotation, annotation_samples
from tas.sources.custom_metrics import decode_metric_values
from tas.sources.metrics_api import decode_node_metrics
from tas.sources.prometheus import read_answer
from tas.sources.remote_write import SeriesStore
from tas.sources.result import RefusalReason, ResultBuilder, SourceResult
from tas.sources.series import Mappings, MetricMapping
from tas.sources.write_request import decode_write_request
from tas.values.quantity import format_quantity
from tests.sources.writing import body, series

NOW = 1767225600.0
NAN, BLANK_64, BLANK_32, BLANK_FLOAT = -(2**63), 2**63 - 16, 2**31 - 16, 2**47
GOOD = "35"
DCGM, OTHER = "DCGM_FI_DEV_GPU_TEMP", "gpu_temperature"

Found = tuple[dict[str, str], int]
"""The value of each metric, and how many were refused."""


def of_result(result: SourceResult) -> Found:
    refused = result.refusals.get(RefusalReason.VALUE)
    assert result.refusals.keys() <= {RefusalReason.VALUE}
    found = {each.metric: format_quantity(each.value) for each in result.samples if each.node == "node-1"}
    return found, 0 if refused is None else refused.count


def custom_metrics(metric: str, text: str, version: str) -> Found:
    named: dict[str, Any] = {"metricName": metric} if version == "v1beta1" else {"metric": {"name": metric}}
    item = {"describedObject": {"kind": "Node", "name": "node-1"}, "value": text} | named
    return of_result(decode_metric_values(json.dumps({"kind": "MetricValueList", "items": [item]}).encode(), metric))


def metrics_server(metric: str, text: str) -> Found:
    usage = {"cpu": text, "memory": "1"} if metric == OTHER else {"cpu": GOOD, "memory": "1"}
    items = [{"metadata": {"name": "node-1"}, "usage": usage}]
    body_ = json.dumps({"kind": "NodeMetricsList", "items": items}).encode()
    found, refused = of_result(decode_node_metrics(body_, frozenset({"cpu", "memory"})))
    assert found.pop("memory") == "1"
    return ({metric: found["cpu"]} if "cpu" in found else {}), refused


def prometheus(metric: str, text: str) -> Found:
    one = {"metric": {"__name__": metric, "node": "node-1"}, "value": [NOW, text]}
    answer = {"status": "success", "data": {"resultType": "vector", "result": [one]}}
    return of_result(read_answer(metric, MetricMapping(), json.dumps(answer).encode(), status=200))


def remote_write(metric: str, text: str) -> Found:
    store = SeriesStore(Mappings())
    written = body([series(metric, (float(text), round(NOW * 1000)), node="node-1")])
    result, invalid = store.add_request(decode_write_request(written), frozenset({metric}), now=NOW)
    assert invalid is None
    return of_result(result)


def annotations(metric: str, text: str) -> Found:
    builder = ResultBuilder()
    annotation_samples("node-1", {metric: Annotation(text, NOW)}, builder, now=NOW, lifetime=600.0)
    return of_result(builder.result())


def message(metric: str, text: str, *, as_text: bool) -> Found:
    value = json.dumps(text) if as_text else text
    data = f'{{"metrics": {{"{metric}": {value}}}}}'.encode()
    _, scrape, refused = decode_samples("tas.samples.node-1.program", data, arrived=NOW, sequence=1)
    found = {} if scrape is None else scrape.metrics
    return {name: format_quantity(each) for name, each in found.items()}, len(refused)


def table(metric: str, text: str, *, as_text: bool) -> Found:
    cell = json.dumps(text) if as_text else text
    data = f'{{"nodes": ["node-1", "node-2"], "metrics": {{"{metric}": [{cell}, 1]}}}}'.encode()
    _, read, refused = decode_table("tas.tables.program.1-0", data, arrived=NOW, sequence=1)
    assert read is not None
    assert read.columns[metric].values[-1] == 10**9, "the neighbour keeps its value"
    value = read.columns[metric].values[0] if "node-1" in read.nodes else None
    return ({} if value is None else {metric: format_quantity(value)}), sum(refused.counts.values())


class Source(NamedTuple):
    """How a source reads a metric, and the forms of a number that it can carry."""

    read: Callable[[str, str], Found]
    forms: Sequence[Callable[[int], str]]
    has_dcgm: bool = True
    has_negatives: bool = True


def plain(number: int) -> str:
    return str(number)


def milli(number: int) -> str:
    """As prometheus-adapter writes a quantity: as an integer of thousandths."""
    return f"{number}m" if number == NAN else f"{number * 1000}m"


def go_float(number: int) -> str:
    """As Go writes a float64 in the API of Prometheus: `9.223372036854776e+18`."""
    return repr(float(number)) if abs(number) >= 10**16 else f"{number}"


def exponent(number: int) -> str:
    return f"{float(number):.17e}"


def with_point(number: int) -> str:
    """As Python writes a float."""
    return f"{float(number):.1f}"


QUANTITIES = (plain, milli, go_float, exponent, with_point)
NUMBERS = (plain, go_float, exponent, with_point)
SOURCES = {
    "custom metrics v1beta1": Source(lambda metric, text: custom_metrics(metric, text, "v1beta1"), QUANTITIES),
    "custom metrics v1beta2": Source(lambda metric, text: custom_metrics(metric, text, "v1beta2"), QUANTITIES),
    "metrics-server": Source(metrics_server, QUANTITIES, has_dcgm=False),
    "Prometheus": Source(prometheus, NUMBERS),
    "remote write": Source(remote_write, (go_float,)),
    "annotations": Source(annotations, NUMBERS, has_negatives=False),
    "a message, as a number": Source(lambda metric, text: message(metric, text, as_text=False), NUMBERS),
    "a message, as text": Source(lambda metric, text: message(metric, text, as_text=True), QUANTITIES),
    "a table, as numbers": Source(lambda metric, text: table(metric, text, as_text=False), NUMBERS),
    "a table, as text": Source(lambda metric, text: table(metric, text, as_text=True), QUANTITIES),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_blank_is_refused_in_each_form_facts_n60_facts_n61(source: Source) -> None:
    metrics = (DCGM, OTHER) if source.has_dcgm else (OTHER,)
    for metric in metrics:
        for form in source.forms:
            never = [BLANK_64 + number for number in (0, 1, 2, 3, 15)] + [NAN] * source.has_negatives
            for number in never:
                assert source.read(metric, form(number)) == ({}, 1), (metric, form(number))
            for number in [start + more for start in (BLANK_32, BLANK_FLOAT) for more in (0, 1, 2, 3)]:
                found, refused = source.read(metric, form(number))
                if metric == DCGM:
                    assert (found, refused) == ({}, 1), form(number)
                else:  # a number of bytes, or a blank: nothing says which
                    assert (list(found), refused) == ([metric], 0), form(number)
            assert source.read(metric, form(35)) == ({metric: GOOD}, 0), "it refuses all"


def test_a_thousandth_of_nan_is_refused_as_prometheus_adapter_served_it_facts_n60() -> None:
    for name, source in SOURCES.items():
        if milli in source.forms:
            assert source.read(OTHER, "-9223372036854775808m") == ({}, 1), name
        if source.has_negatives:
            assert source.read(OTHER, "-9223372036854775.808") == ({}, 1), name
