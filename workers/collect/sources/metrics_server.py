"""The metrics API, for clusters with just metrics-server: `cpu` in cores and `memory` in bytes of every node."""

from collections.abc import Callable
from functools import partial

from tas.errors import InvalidInputError
from tas.sources.metrics_api import GROUP, METRICS, decode_node_metrics
from tas.sources.nodes import NodeNames, any_node
from tas.sources.result import ResultBuilder, SourceResult
from tas.sources.series import Mappings
from workers.collect.sources.base import Reader, SourceError
from workers.collect.sources.config import ConfigFile
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import KubernetesError, NotFoundError, ThrottledError
from workers.kubernetes.resources import NODE_METRICS

MAX_ANSWER_BYTES = 16 << 20
"""The largest response that is read: some 20,000 nodes with all their labels."""


class MetricsServer:
    """The source."""

    def __init__(
        self,
        name: str,
        client: KubernetesClient,
        config: ConfigFile | None = None,
        *,
        nodes: Callable[[], NodeNames] = any_node,
    ) -> None:
        self.name = name
        self._nodes = nodes
        self._client = client
        self._config = config
        self._reader = Reader()

    async def read(self, metrics: frozenset[str]) -> SourceResult:
        """As for every source; no request is sent if policies use neither metric."""
        if not metrics & METRICS:
            return _without_asking(metrics)
        try:
            body = await self._client.read(NODE_METRICS, NODE_METRICS.path(), max_bytes=MAX_ANSWER_BYTES)
            mappings = Mappings() if self._config is None else (await self._config.current()).mappings
            rules = {metric: mappings.of(metric).rules for metric in METRICS}
            return await self._reader.read(
                partial(decode_node_metrics, body, metrics, rules, nodes=self._nodes()), size=len(body)
            )
        except NotFoundError as error:
            raise SourceError(f"the cluster serves no metrics API ({GROUP}): is metrics-server installed?") from error
        except ThrottledError as error:
            raise SourceError(str(error), retry_after=error.retry_after) from error
        except (KubernetesError, InvalidInputError) as error:
            raise SourceError(str(error)) from error


def _without_asking(metrics: frozenset[str]) -> SourceResult:
    builder = ResultBuilder()
    for metric in metrics:
        builder.add_missing(metric, f"the metrics API has only {' and '.join(sorted(METRICS))}")
    return builder.result()
