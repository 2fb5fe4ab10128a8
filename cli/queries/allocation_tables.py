"""Prints what the pods of a node request."""

from cli.output import echo, echo_line
from cli.queries.query import age_text
from cli.queries.tables import new_table, print_table
from tas.allocation.pod import CPU
from tas.explain.allocation import AllocationExplanation
from tas.values.nouns import counted
from tas.values.quantity import NANO, Quantity, short_text

SHOWN = 10
"""How many new pods are shown; JSON has all of them."""


def print_allocation(node: str, found: AllocationExplanation) -> None:
    """Prints a row for each resource, and the new pods below."""
    echo(f"{node}: {counted(found.pods, 'pod')}, unchanged for {age_text(found.age_seconds)}")
    table = new_table("RESOURCE", "CAPACITY", "ALLOCATABLE", "REQUESTS", "LIMITS")
    for resource, use in found.resources.items():
        table.add_row(
            resource,
            amount_text(resource, use.capacity),
            amount_text(resource, use.allocatable),
            amount_text(resource, use.requested) + _share(use.requested, use.allocatable),
            amount_text(resource, use.limited) + _share(use.limited, use.allocatable),
        )
    print_table(table)
    if found.unreadable:
        echo(
            f"{counted(found.unreadable, 'pod')} with a quantity that cannot be read: the sums are too small, and no "
            "agent counts with them (requests_of_pod_unreadable in the log of tas run inventory)"
        )
    for pod in found.recent[:SHOWN]:
        requests = ", ".join(f"{resource} {amount_text(resource, each)}" for resource, each in pod.requests.items())
        echo_line(f"placed {age_text(pod.age_seconds)} ago: {requests or 'no requests'}")
    if len(found.recent) > SHOWN:
        echo(f"{counted(len(found.recent) - SHOWN, 'more new pod')}: --json has them all")


def amount_text(resource: str, amount: int) -> str:
    """The amount as a person reads it: `1250m` of cpu, `2Gi` of memory."""
    return f"{amount}m" if resource == CPU else short_text(Quantity(amount * NANO))


def _share(part: int, whole: int) -> str:
    """The part of what pods can have, in whole percent, rounded down as kubectl does."""
    return f" ({100 * part // whole}%)" if whole else ""
