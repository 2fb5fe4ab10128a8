"""The custom metrics API: `nodes/*/<metric>` for each metric in policies, as in the original."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple

from tas.errors import InvalidInputError
from tas.sources.custom_metrics import GROUP, decode_group, decode_metric_values
from tas.sources.nodes import NodeNames, any_node
from tas.sources.result import ResultBuilder, SourceResult, combined
from tas.values.blanks import ANY
from workers.collect.sources.base import Reader, SourceError, Turns
from workers.collect.sources.config import ConfigFile
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import KubernetesError, NotFoundError, ThrottledError
from workers.kubernetes.resources import CUSTOM_METRICS

MAX_ANSWER_BYTES = 8 << 20
"""The largest response that is read: some 20,000 nodes."""

MAX_CONCURRENT = 8
"""Metrics that are requested at the same time."""

METRIC_SECONDS = 3.0
"""Time limit of the request for a metric: the other metrics of the poll wait for it."""

TURN_SECONDS = 3.5
"""How long a metric waits for a slot. Version, slot and request together stay below the limit of a poll."""

PAUSE_SECONDS = (2.0, 60.0)
"""How long a metric that times out is skipped: the first and the longest time."""

DISCOVER_SECONDS = 60.0
"""How often the preferred version of the group is requested; also at once when it seems to have changed."""


class CustomMetrics:
    """The source. It keeps the served version, and the metrics that are skipped for a while."""

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
        self._version: str | None = None
        self._discover_at = float("-inf")
        self._retry_at = float("-inf")
        self._skipped: dict[str, _Skipped] = {}
        self._turns = Turns(MAX_CONCURRENT)
        self._reader = Reader()

    async def read(self, metrics: frozenset[str]) -> SourceResult:
        """As for every source; a metric that the API does not have is `missing`."""
        self._check_retry_after()
        version = await self._served_version()
        now = time.monotonic()
        self._skipped = {metric: slow for metric, slow in self._skipped.items() if metric in metrics}
        skipped = {metric for metric, slow in self._skipped.items() if now < slow.until}
        requested = self._turns.order(metrics, skipped)
        outcomes = await asyncio.gather(*(self._read_one(metric, version) for metric in requested))
        failures = [outcome for outcome in outcomes if isinstance(outcome, _Failure)]
        if failures and len(failures) == len(outcomes):
            raise SourceError(failures[0].reason, retry_after=self._retry_at - time.monotonic())
        results = [outcome for outcome in outcomes if isinstance(outcome, SourceResult)]
        return combined([*results, self._missing(failures, skipped)])

    async def _read_one(self, metric: str, version: str) -> "SourceResult | _Failure":
        async with AsyncExitStack() as slot:
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await slot.enter_async_context(self._turns.slot(metric))
            except TimeoutError:
                reason = f"not requested within {TURN_SECONDS:g} s: other metrics came first; first in the next poll"
                return _Failure(metric, reason, without_turn=True)
            self._turns.had(metric)
            found = await self._request(metric, version)
            if isinstance(found, _Failure) and found.slow:
                self._turns.had(metric, in_time=False)
            return found

    async def _request(self, metric: str, version: str) -> "SourceResult | _Failure":
        path = f"/apis/{GROUP}/{version}/nodes/*/{metric}"
        try:
            async with asyncio.timeout(METRIC_SECONDS):
                body = await self._client.read(CUSTOM_METRICS, path, max_bytes=MAX_ANSWER_BYTES)
            rules = ANY if self._config is None else (await self._config.current()).mappings.of(metric).rules
            return await self._reader.read(
                partial(decode_metric_values, body, metric, rules, nodes=self._nodes()), size=len(body)
            )
        except TimeoutError:
            return _Failure(metric, f"no answer within {METRIC_SECONDS:g} s", slow=True)
        except NotFoundError as error:
            if error.status.reason == "NotFound":
                return _unknown(metric)
            self._version = None  # this path is not served: the group may have another version now
            return _Failure(metric, str(error))
        except ThrottledError as error:
            self._retry_at = max(self._retry_at, time.monotonic() + error.retry_after)
            return _Failure(metric, str(error))
        except (KubernetesError, InvalidInputError) as error:
            return _Failure(metric, str(error))

    def _missing(self, failures: "list[_Failure]", skipped: set[str]) -> SourceResult:
        """The missing metrics of a successful poll; slow ones are skipped in the next polls."""
        now = time.monotonic()
        builder = ResultBuilder()
        for failure in failures:
            builder.add_missing(failure.metric, failure.reason, without_turn=failure.without_turn)
            if failure.slow:
                before = self._skipped.get(failure.metric)
                self._skipped[failure.metric] = _Skipped(failure.reason, now, before)
        for metric in skipped:
            builder.add_missing(metric, self._skipped[metric].reason)
        failed = {failure.metric for failure in failures}
        self._skipped = {metric: slow for metric, slow in self._skipped.items() if metric in failed | skipped}
        return builder.result()

    def _check_retry_after(self) -> None:
        remaining = self._retry_at - time.monotonic()
        if remaining > 0:
            raise SourceError("the API server asked to wait (429)", retry_after=remaining)

    async def _served_version(self) -> str:
        """The version to request; the last known one if the request for it fails. Raises SourceError."""
        now = time.monotonic()
        if self._version is not None and now < self._discover_at:
            return self._version
        try:
            async with asyncio.timeout(METRIC_SECONDS):
                body = await self._client.read(CUSTOM_METRICS, f"/apis/{GROUP}", max_bytes=MAX_ANSWER_BYTES)
            self._version = decode_group(body)
            self._discover_at = now + DISCOVER_SECONDS
        except (TimeoutError, KubernetesError, InvalidInputError) as error:
            if self._version is None:
                raise _no_version(error) from error
        return self._version


class _Failure(NamedTuple):
    """Why a metric is missing; `slow` if its request timed out, `without_turn` if it was not requested."""

    metric: str
    reason: str
    slow: bool = False
    without_turn: bool = False


class _Skipped:
    """A metric that is skipped until a time, after each further timeout for twice as long."""

    def __init__(self, reason: str, now: float, before: "_Skipped | None") -> None:
        first, longest = PAUSE_SECONDS
        self.reason = reason
        self._pause: float = first if before is None else min(2 * before._pause, longest)
        self.until = now + self._pause


def _unknown(metric: str) -> SourceResult:
    builder = ResultBuilder()
    builder.add_missing(metric, "the custom metrics API does not know it (404)")
    return builder.result()


def _no_version(error: Exception) -> SourceError:
    if isinstance(error, TimeoutError):
        return SourceError(f"/apis/{GROUP}: no answer within {METRIC_SECONDS:g} s")
    if isinstance(error, NotFoundError):
        return SourceError(f"the cluster serves no custom metrics API ({GROUP}): is an adapter installed?")
    retry_after = error.retry_after if isinstance(error, ThrottledError) else 0.0
    return SourceError(str(error), retry_after=retry_after)
