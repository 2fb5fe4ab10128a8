"""The custom metrics API: `nodes/*/<metric>` for each metric that policies use, as the original asked."""

import asyncio
import time
from functools import partial

from tas.errors import InvalidInputError
from tas.sources.custom_metrics import GROUP, decode_group, decode_metric_values
from tas.sources.reading import Batch, Gathering, combined
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import KubernetesError, NotFoundError, ThrottledError
from workers.kubernetes.resources import CUSTOM_METRICS
from workers.sources.base import Reader, SourceError

MAX_ANSWER_BYTES = 8 << 20
"""The largest answer that is read: some 20,000 nodes."""

AT_ONCE = 8
"""Metrics that are asked for at the same time."""

METRIC_SECONDS = 3.0
"""How long the answer for one metric may take: the others of the same look wait for it."""

TURN_SECONDS = 3.5
"""How long a metric waits for its turn: the version, the turn and the answer take less than `collect` gives a look."""

PAUSE_SECONDS = (2.0, 60.0)
"""For how long a metric that alone does not come is left out, at first and at most."""

DISCOVER_SECONDS = 60.0
"""How often is asked which version the group prefers, beside at once when it seems to have changed."""


class CustomMetrics:
    """The source. It keeps which version is served, and which metrics are left out for a while."""

    def __init__(self, name: str, client: KubernetesClient) -> None:
        self.name = name
        self._client = client
        self._version: str | None = None
        self._discover_at = float("-inf")
        self._leave_until = float("-inf")
        self._slow: dict[str, _Slow] = {}
        self._waiting: set[str] = set()  # those whose turn has not come: they are asked first by the next look
        self._reader = Reader()

    async def read(self, metrics: frozenset[str]) -> Batch:
        """As a source's; a metric that the API does not know is `missing`."""
        self._must_not_be_left_alone()
        version = await self._served_version()
        now = time.monotonic()
        self._slow = {metric: slow for metric, slow in self._slow.items() if metric in metrics}
        left_out = {metric for metric, slow in self._slow.items() if now < slow.until}
        asked = sorted(metrics - left_out, key=lambda metric: (metric not in self._waiting, metric))
        self._waiting = set(asked)
        turns = asyncio.Semaphore(AT_ONCE)
        outcomes = await asyncio.gather(*(self._read_one(metric, version, turns) for metric in asked))
        failures = [outcome for outcome in outcomes if isinstance(outcome, _Failure)]
        if failures and len(failures) == len(outcomes):
            raise SourceError(failures[0].reason, retry_after=self._leave_until - time.monotonic())
        batches = [outcome for outcome in outcomes if isinstance(outcome, Batch)]
        return combined([*batches, self._missing(failures, left_out)])

    async def _read_one(self, metric: str, version: str, turns: asyncio.Semaphore) -> "Batch | _Failure":
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await turns.acquire()
        except TimeoutError:
            return _Failure(metric, f"no turn within {TURN_SECONDS:g} s, the other metrics took it: the next is its")
        try:
            self._waiting.discard(metric)
            return await self._answer(metric, version)
        finally:
            turns.release()

    async def _answer(self, metric: str, version: str) -> "Batch | _Failure":
        path = f"/apis/{GROUP}/{version}/nodes/*/{metric}"
        try:
            async with asyncio.timeout(METRIC_SECONDS):
                body = await self._client.read(CUSTOM_METRICS, path, max_bytes=MAX_ANSWER_BYTES)
            return await self._reader.read(partial(decode_metric_values, body, metric), size=len(body))
        except TimeoutError:
            return _Failure(metric, f"no answer within {METRIC_SECONDS:g} s", slow=True)
        except NotFoundError as error:
            if error.status.reason == "NotFound":
                return _unknown(metric)
            self._version = None  # nothing is served under this path: the group may have another version now
            return _Failure(metric, str(error))
        except ThrottledError as error:
            self._leave_until = max(self._leave_until, time.monotonic() + error.retry_after)
            return _Failure(metric, str(error))
        except (KubernetesError, InvalidInputError) as error:
            return _Failure(metric, str(error))

    def _missing(self, failures: "list[_Failure]", left_out: set[str]) -> Batch:
        """What of a look that gave something did not come, and is left out of the next ones if it was slow."""
        now = time.monotonic()
        gathering = Gathering()
        for failure in failures:
            gathering.miss(failure.metric, failure.reason)
            if failure.slow:
                before = self._slow.get(failure.metric)
                self._slow[failure.metric] = _Slow(failure.reason, now, before)
        for metric in left_out:
            gathering.miss(metric, self._slow[metric].reason)
        failed = {failure.metric for failure in failures}
        self._slow = {metric: slow for metric, slow in self._slow.items() if metric in failed | left_out}
        return gathering.batch()

    def _must_not_be_left_alone(self) -> None:
        left = self._leave_until - time.monotonic()
        if left > 0:
            raise SourceError("it asked to be left alone for a while (429)", retry_after=left)

    async def _served_version(self) -> str:
        """The version to ask for. While that cannot be found out, the last one stands. Raises SourceError."""
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


class _Failure:
    """Why one metric did not come; `slow` if it was only waited for in vain."""

    def __init__(self, metric: str, reason: str, *, slow: bool = False) -> None:
        self.metric = metric
        self.reason = reason
        self.slow = slow


class _Slow:
    """A metric that is left out until a time, each time in a row for twice as long."""

    def __init__(self, reason: str, now: float, before: "_Slow | None") -> None:
        first, longest = PAUSE_SECONDS
        self.reason = reason
        self._pause: float = first if before is None else min(2 * before._pause, longest)
        self.until = now + self._pause


def _unknown(metric: str) -> Batch:
    gathering = Gathering()
    gathering.miss(metric, "the custom metrics API does not know it (404)")
    return gathering.batch()


def _no_version(error: Exception) -> SourceError:
    if isinstance(error, TimeoutError):
        return SourceError(f"/apis/{GROUP}: no answer within {METRIC_SECONDS:g} s")
    if isinstance(error, NotFoundError):
        return SourceError(f"the cluster serves no custom metrics API ({GROUP}): is an adapter installed?")
    retry_after = error.retry_after if isinstance(error, ThrottledError) else 0.0
    return SourceError(str(error), retry_after=retry_after)
