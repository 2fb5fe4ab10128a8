"""Why the samples of a scrape are not stored, as far as the stored samples of the node show."""

from tas.errors import InvalidInputError
from tas.samples.capacity import within_capacity
from tas.samples.sample import MAX_SAMPLE_AGE, NodeSamples, Scrape, kept_metrics, merge


def refusal(node: str, known: NodeSamples, scrape: Scrape) -> InvalidInputError | None:
    """Why not all metrics of `scrape` can be stored for a node with the samples `known`; None if they can."""
    accepted, refused = within_capacity(node, known, [scrape])
    if refused:
        return refused[0]
    if kept_metrics(merge(known, accepted), scrape, scrape.sequence) == scrape.metrics.keys():
        return None
    before = max(each.time for each in known) - scrape.time
    reason = f"must be at most {MAX_SAMPLE_AGE:g} s before the newest sample of the node, and is {before:.0f} s before"
    return InvalidInputError(f"sample {node}/{scrape.source}", "measured", scrape.measured, reason)
