"""Events for the tests of what leaves the product."""

from tas.events.data import EndReason, EventData, ViolationEnded, ViolationStarted
from tas.events.event import Cause, Event, event_of
from tas.notifying.notice import Notice
from tas.notifying.notices import notice_of


def started(node: str, *, policy: str = "demo", strategy: str = "dontschedule", value: str = "2") -> ViolationStarted:
    return ViolationStarted(
        node=node,
        node_uid=f"uid-{node}",
        namespace="default",
        policy=policy,
        policy_uid=f"uid-{policy}",
        strategy=strategy,
        value=value,
    )


def ended(node: str, *, policy: str = "demo", strategy: str = "dontschedule") -> ViolationEnded:
    return ViolationEnded(
        node=node, namespace="default", policy=policy, strategy=strategy, reason=EndReason.MET, value="0"
    )


def event(data: EventData, *, revision: int = 7, time: float = 1000.0, resync: bool = False) -> Event:
    return event_of(data, Cause("1764000000000000", revision), time=time, resync=resync)


def notice(data: EventData) -> Notice:
    found = notice_of(event(data))
    assert found is not None
    return found
