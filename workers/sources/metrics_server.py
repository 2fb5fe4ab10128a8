"""The metrics API, for clusters with just metrics-server: `cpu` in cores and `memory` in bytes of every node."""

from functools import partial

from tas.errors import InvalidInputError
from tas.sources.metrics_api import GROUP, METRICS, decode_node_metrics
from tas.sources.reading import Batch, Gathering
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import KubernetesError, NotFoundError, ThrottledError
from workers.kubernetes.resources import NODE_METRICS
from workers.sources.base import Reader, SourceError

MAX_ANSWER_BYTES = 16 << 20
"""The largest answer that is read: some 20,000 nodes with all their labels."""


class MetricsServer:
    """The source."""

    def __init__(self, name: str, client: KubernetesClient) -> None:
        self.name = name
        self._client = client
        self._reader = Reader()

    async def read(self, metrics: frozenset[str]) -> Batch:
        """As a source's; nothing is asked where policies use neither of the two."""
        if not metrics & METRICS:
            return _without_asking(metrics)
        try:
            body = await self._client.read(NODE_METRICS, NODE_METRICS.path(), max_bytes=MAX_ANSWER_BYTES)
            return await self._reader.read(partial(decode_node_metrics, body, metrics), size=len(body))
        except NotFoundError as error:
            raise SourceError(f"the cluster serves no metrics API ({GROUP}): is metrics-server installed?") from error
        except ThrottledError as error:
            raise SourceError(str(error), retry_after=error.retry_after) from error
        except (KubernetesError, InvalidInputError) as error:
            raise SourceError(str(error)) from error


def _without_asking(metrics: frozenset[str]) -> Batch:
    gathering = Gathering()
    for metric in metrics:
        gathering.miss(metric, f"the metrics API has only {' and '.join(sorted(METRICS))}")
    return gathering.batch()
