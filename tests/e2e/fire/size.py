"""How large a cluster under fire is, and for how long. A round has seven faults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A cluster and its load.

    Attributes:
        nodes: The nodes that kwok simulates.
        metrics: The metrics of every node.
        policies: The policies; each uses one metric.
        rounds: How often each kind of fault occurs.
        fault_seconds: The time from one fault to the next.
        poll_seconds: How often `collect` polls every metric.
        values_a_second: How many values change in a second.
        change_seconds: The time between two changes of nodes or policies.
        pod_seconds: The time between two pods.
        measure_seconds: The time between two measurements of memory and labels.
    """

    nodes: int
    metrics: int
    policies: int
    rounds: int
    fault_seconds: float
    poll_seconds: float = 1.0
    values_a_second: int = 10
    change_seconds: float = 1.0
    pod_seconds: float = 0.5
    measure_seconds: float = 1.0


MINUTE = Size(nodes=40, metrics=4, policies=8, rounds=1, fault_seconds=5)
HALF_HOUR = Size(
    nodes=2000,
    metrics=20,
    policies=50,
    rounds=12,
    fault_seconds=20,
    poll_seconds=10,
    values_a_second=40,
    change_seconds=2,
    pod_seconds=1,
    measure_seconds=5,
)
SIZES = {"minute": MINUTE, "half-hour": HALF_HOUR}
