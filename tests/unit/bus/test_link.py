"""The reply subject of a delivery."""

from bus.link import Delivery


def test_all_forms_of_a_reply_subject_are_read() -> None:
    expected = Delivery(
        deliveries=2, sequence=1795277068888665, consumer_sequence=7, nanoseconds=1795277068888843681, pending=3
    )
    numbers = "2.1795277068888665.7.1795277068888843681.3"
    assert Delivery.of(f"$JS.ACK.SAMPLES.durable.{numbers}") == expected
    assert Delivery.of(f"$JS.ACK._.account.SAMPLES.durable.{numbers}") == expected
    assert Delivery.of(f"$JS.ACK.domain.account.SAMPLES.durable.{numbers}.token") == expected
