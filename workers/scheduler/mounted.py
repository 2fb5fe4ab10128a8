"""A mounted extension: its errors affect only its own path.

If a hook raises, returns an invalid result, takes too long or ignores its cancellation, the scheduler gets an error
with the extension's name, on that path alone. Only a hook that runs without awaiting blocks the process; the log then
has `event_loop_stalled`.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import structlog

from tas.errors import InvalidInputError, shortened
from tas.extender.hooks import HookVerb, InvalidHookResultError, hook_verbs
from tas.extender.verbs import VERBS, Record
from tas.extension import NodeView
from workers.process.logs import ThrottledLog
from workers.scheduler.extensions import Extension
from workers.scheduler.http import RefusedError, VerbHandler

log = structlog.get_logger("extensions")

EXTENSION_SECONDS = 1.0
"""Default time limit of a call: the scheduler's timeout in the documented configuration."""

EXIT_SECONDS = 5.0
"""Time limit for leaving the extensions' context managers at the end."""

MAX_UNFINISHED = 100
"""Limit of cancelled calls that have not ended: above it, hooks are not called any more."""


class MountedExtension:
    """An extension below its path.

    Args:
        extension: The loaded extension; if it has a problem, every verb gets 503 with that problem.
        nodes: Its view of nodes, advanced to the time of each call.
        limit: Seconds after which a call is cancelled.
        incomplete: Why what it reads is not complete; None if it is. Before, every verb gets 503 with the reason.
    """

    def __init__(
        self,
        extension: Extension,
        nodes: NodeView,
        *,
        limit: float,
        incomplete: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.extension = extension
        self.problem = extension.problem
        self._nodes = nodes
        self._limit = limit
        self._incomplete = incomplete
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._throttled = ThrottledLog(log, extension=extension.name)
        self._is_entered = hasattr(extension.instance, "__aenter__")
        if self.problem is None and self._is_entered:
            self.problem = "it is starting"

    @property
    def verbs(self) -> Mapping[str, VerbHandler]:
        """Its handlers, by the last part of the path."""
        if self.extension.hooks is None:
            return dict.fromkeys([*VERBS, "bind"], self._refuse)
        served = hook_verbs(self.extension.hooks)
        return {name: partial(self._answer, name, verb) for name, verb in served.items()}

    async def run(self) -> None:
        """Enters the extension's context manager until cancelled, and logs the result."""
        if self.extension.hooks is None:
            self._log_problem(self.problem)
            return
        if not self._is_entered:
            self._log_mounted()
            return
        try:
            async with self.extension.instance:
                self.problem = None
                self._log_mounted()
                await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # any error: the other extensions are served
            if self.problem is None:
                self._log_failure("exit", "extension_failed", exc_info=error)
                return
            log.error("extension_start_failed", extension=self.extension.name, exc_info=error)  # noqa: TRY400 - with SystemExit
            self.problem = f"it cannot start: {type(error).__name__}: {shortened(str(error))}"
            self._log_problem(self.problem)

    def is_mounted(self) -> float:
        """1 while its hooks are called, else 0."""
        return float(self._current_problem() is None)

    def describe(self) -> dict[str, object]:
        """Its state, for a person to read."""
        extension, problem = self.extension, self._current_problem()
        verbs = [] if problem else list(self.verbs)
        return {
            "name": extension.name,
            "path": extension.path,
            "verbs": verbs,
            "problem": problem,
            "target": extension.target,
            "package": extension.package,
        }

    def _current_problem(self) -> str | None:
        return self.problem or self._incomplete()

    def _log_mounted(self) -> None:
        extension = self.extension
        log.info(
            "extension_mounted",
            extension=extension.name,
            path=extension.path,
            verbs=list(self.verbs),
            target=extension.target,
            package=extension.package,
        )

    def _log_problem(self, problem: str | None) -> None:
        extension = self.extension
        log.error("extension_not_mounted", extension=extension.name, problem=problem, target=extension.target)

    def _refuse(self, _body: bytes, _now: float) -> tuple[bytes, Record]:
        raise self._error(HTTPStatus.SERVICE_UNAVAILABLE, "", str(self.problem))

    async def _answer(self, name: str, verb: HookVerb, body: bytes, now: float) -> tuple[bytes, Record]:
        arguments = verb.decode(body)
        if (problem := self._current_problem()) is not None:
            raise self._error(HTTPStatus.SERVICE_UNAVAILABLE, name, problem)
        if len(self._unfinished) >= MAX_UNFINISHED:
            text = f"{len(self._unfinished)} cancelled calls have not ended"
            raise self._error(HTTPStatus.SERVICE_UNAVAILABLE, name, text)
        self._nodes.advance(now)
        with self._failing(name), _named(called := f"extension {self.extension.name}: {name}"):
            result = verb.hook(*verb.arguments(arguments, now))
            if not inspect.isawaitable(result):  # done: no task, which takes longer than most hooks
                return verb.respond(arguments, result, now)
        call = asyncio.create_task(self._finish(name, verb, arguments, result, now), name=called)
        try:
            await asyncio.wait([call], timeout=self._limit)
        finally:  # also if the client leaves
            if not call.done():
                call.cancel()
                self._unfinished.add(call)
                call.add_done_callback(self._forget)
        if not call.done():
            self._log_failure(name, "extension_timed_out", seconds=self._limit)
            raise self._error(HTTPStatus.GATEWAY_TIMEOUT, name, f"no answer within {self._limit:g} s")
        if call.cancelled():
            raise self._failed(name, asyncio.CancelledError("by itself"))
        return call.result()

    def _forget(self, call: asyncio.Task[Any]) -> None:
        self._unfinished.discard(call)
        if not call.cancelled():
            call.exception()  # retrieved, so that asyncio does not log it

    async def _finish(
        self, name: str, verb: HookVerb, arguments: Any, result: Awaitable[Any], now: float
    ) -> tuple[bytes, Record]:
        """The awaited result of a hook as a response. Raises RefusedError for any error of the hook."""
        with self._failing(name):
            return verb.respond(arguments, await result, now)

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        """Raises RefusedError for any error of the hook that is called in the body, unless the body is cancelled."""
        try:
            yield
        except InvalidHookResultError as error:
            self._log_failure(name, "extension_answer_refused", error=str(error))
            raise self._error(HTTPStatus.INTERNAL_SERVER_ERROR, name, str(error)) from error
        except InvalidInputError:
            raise  # a field of the pod that the hook has read
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise self._failed(name, error) from error  # the hook cancelled itself
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit too: it ends only this response
            raise self._failed(name, error) from error

    def _failed(self, name: str, error: BaseException) -> RefusedError:
        self._log_failure(name, "extension_failed", exc_info=error)
        text = f"{type(error).__name__}: {shortened(str(error))}"
        return self._error(HTTPStatus.INTERNAL_SERVER_ERROR, name, text)

    def _log_failure(self, name: str, event: str, **fields: Any) -> None:
        self._throttled.error(event, name, verb=name, **fields)

    def _error(self, status: HTTPStatus, name: str, text: str) -> RefusedError:
        verb = f" {name}" if name else ""
        return RefusedError(status, f"extension {self.extension.name}{verb}: {text}")


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Names the current task within the body: the log of a stall has this name (`workers.process.stalls`)."""
    task = asyncio.current_task()
    assert task is not None, "requests are answered in tasks"
    before = task.get_name()
    task.set_name(name)
    try:
        yield
    finally:
        task.set_name(before)


@asynccontextmanager
async def entered(mounted: Iterable[MountedExtension]) -> AsyncIterator[None]:
    """Keeps the context managers of extensions entered within the body."""
    tasks = [
        asyncio.create_task(extension.run(), name=f"extension {extension.extension.name}") for extension in mounted
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=EXIT_SECONDS)
