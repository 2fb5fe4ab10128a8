"""The limit of metrics of one node, so that no source can fill the bus or displace another source."""

from collections.abc import Iterable

import msgspec

from tas.errors import InvalidInputError
from tas.samples.sample import MAX_METRICS_PER_NODE, NodeSamples, Scrape, metric_count


def within_capacity(
    node: str, known: NodeSamples, incoming: Iterable[Scrape], *, limit: int = MAX_METRICS_PER_NODE
) -> tuple[list[Scrape], list[InvalidInputError]]:
    """`incoming` without pairs of source and metric beyond `limit`, and an error for each scrape with refused pairs.

    A pair that is in `known` is always accepted. New pairs are accepted in the order of `incoming`.
    """
    scrapes = list(incoming)
    if metric_count(known) + metric_count(tuple(scrapes)) <= limit:
        return scrapes, []
    pairs = {(scrape.source, metric) for scrape in known for metric in scrape.metrics}
    taken: list[Scrape] = []
    refused: list[InvalidInputError] = []
    for scrape in scrapes:
        metrics = {}
        for metric, value in scrape.metrics.items():
            if (scrape.source, metric) in pairs or len(pairs) < limit:
                pairs.add((scrape.source, metric))
                metrics[metric] = value
        left_out = [metric for metric in scrape.metrics if metric not in metrics]
        if left_out:
            reason = f"with {len(left_out) - 1} more beyond the {limit} pairs of source and metric a node may have"
            refused.append(InvalidInputError(f"samples {node}/{scrape.source}", "metrics", left_out[0], reason))
        if metrics:
            taken.append(scrape if not left_out else msgspec.structs.replace(scrape, metrics=metrics))
    return taken, refused
