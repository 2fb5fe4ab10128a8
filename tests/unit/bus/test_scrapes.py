"""Messages of SAMPLES by source: only values that count are decoded, with the same result."""

import json
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.pull import Message
from bus.records import samples as module
from bus.scrapes import by_source, received
from tas.samples.sample import NodeSamples, Scrape, merge
from tas.values.quantity import Quantity

ARRIVED = 1_800_000_000.0


def message(
    sequence: int,
    metrics: dict[str, str],
    *,
    subject: str = "tas.samples.node-1.s",
    measured: float | None = None,
    arrived: float = ARRIVED,
) -> Message:
    body: dict[str, object] = {"metrics": metrics}
    if measured is not None:
        body["measured"] = datetime.fromtimestamp(measured, UTC).isoformat()
    data = json.dumps(body).encode()
    return Message(subject=subject, data=data, sequence=sequence, arrived=arrived, deliveries=1, reply="")


@st.composite
def several_messages(draw: st.DrawFn) -> list[Message]:
    """Messages of two sources, with few times, metrics and invalid values; some are measured long ago, or late."""
    return [
        message(
            sequence,
            draw(st.dictionaries(st.sampled_from("abc!"), st.sampled_from(["1", "2", "much"]), max_size=3)),
            subject=f"tas.samples.node-1.{draw(st.sampled_from('st'))}",
            measured=draw(
                st.none() | st.sampled_from([-4000.0, -3599.0, -1.0, 0.0, 5.0]).map(lambda ago: ARRIVED + ago)
            ),
            arrived=ARRIVED + draw(st.sampled_from([0.0, 1.0, 3000.0])),
        )
        for sequence in range(1, draw(st.integers(1, 7)))
    ]


def complete(messages: list[Message]) -> list[Scrape]:
    return [scrape for each in messages if (scrape := received(each).scrape) is not None]


def newest(messages: list[Message], stored: NodeSamples) -> list[Scrape]:
    found, refused = by_source(messages)
    assert not refused
    return [one.scrape for each in found for one in each.newest(stored) if one.scrape is not None]


@given(several_messages(), st.data())
def test_the_newest_values_merge_to_the_same_samples_as_all_values(
    messages: list[Message], data: st.DataObject
) -> None:
    """Also of messages that are delivered again."""
    parts = st.lists(st.sampled_from(messages), unique_by=lambda each: each.sequence) if messages else st.just([])
    stored = merge((), complete(data.draw(parts)))
    found = newest(messages, stored)
    assert merge(stored, found) == merge(stored, complete(messages))
    pairs = [(scrape.source, metric) for scrape in found for metric in scrape.metrics]
    assert len(pairs) == len(set(pairs))


def test_only_values_that_count_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    value_of = module._metric_value

    def noted(sample: str, metric: str, written: msgspec.Raw) -> Quantity:
        decoded.append(metric)
        return value_of(sample, metric, written)

    monkeypatch.setattr(module, "_metric_value", noted)
    burst = [message(sequence, {f"m{number}": "1" for number in range(50)}) for sequence in range(1, 101)]
    other = message(50, {"m1": "2", "other": "3"})
    found = newest([*burst, other], ())
    assert [max(scrape.metrics) for scrape in found] == ["m9", "other"]
    assert len(decoded) == 51


def test_a_message_of_a_clock_that_is_ahead_counts_as_measured_when_it_arrived() -> None:
    ahead = message(1, {"m": "1"}, measured=ARRIVED + 5)
    later = message(2, {"m": "2"}, measured=ARRIVED + 1, arrived=ARRIVED + 1)
    (found,) = newest([ahead, later], ())
    assert found.metrics == {"m": Quantity(2 * 10**9)}


def test_an_invalid_value_replaces_nothing_and_is_refused() -> None:
    (found,), _ = by_source([message(1, {"a": "1"}), message(2, {"a": "much", "b": "1"})])
    results = list(found.newest(()))
    assert [sorted(each.scrape.metrics) for each in results if each.scrape is not None] == [["b"], ["a"]]
    assert [error.field for each in results for error in each.refused] == ["metrics.a"]


@pytest.mark.parametrize(
    ("messages", "left_out"),
    [
        pytest.param([(1, {"a": "9", "b": "1"}, 0), (2, {"a": "1"}, 1)], {1: {"a"}}, id="a later message has it, too"),
        pytest.param([(1, {"a": "9"}, 0), (2, {"a": "much", "b": "1"}, 1)], {}, id="what is invalid replaces nothing"),
        pytest.param([(1, {"a": "1"}, 1), (2, {"a": "9"}, 0)], {}, id="it came late: it never counted"),
        pytest.param([(1, {"a": "much"}, 0), (2, {"a": "1"}, 1)], {1: {"a"}}, id="nobody knows whether it is invalid"),
        pytest.param([(1, {"a": "9"}, 0), (9, {"b": "1"}, 8)], {1: {"a"}}, id="the stored value came later"),
        pytest.param([(7, {"a": "1"}, 7)], {}, id="the stored value is its own"),
    ],
)
def test_values_that_a_later_message_has_replaced_are_named(
    messages: list[tuple[int, dict[str, str], float]], left_out: dict[int, set[str]]
) -> None:
    stored = merge((), complete([message(7, {"a": "1"}, measured=ARRIVED - 93)])) if messages[-1][0] >= 7 else ()
    (found,), _ = by_source([message(each, metrics, measured=ARRIVED - 100 + at) for each, metrics, at in messages])
    named = [one.left_out for one in found.newest(stored) if one.left_out]
    assert named == list(left_out.values())


def test_each_message_of_an_invalid_subject_is_refused() -> None:
    found, refused = by_source([message(1, {"a": "1"}), *(message(n, {}, subject="tas.samples.A.s") for n in (2, 3))])
    assert [each.node for each in found] == ["node-1"]
    assert [error.field for error in refused] == ["subject", "subject"]
