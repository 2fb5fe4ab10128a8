"""An extension that is served: its hooks are called so that whatever it does harms nothing but its own path.

It may raise, give what cannot be passed on, take too long or not end when it is told to: the scheduler gets an error
with its name, on its path alone. Only if it runs without awaiting it holds up the process, and `/healthz` says so.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import structlog

from tas.errors import shortened
from tas.extender.hooks import HookVerb, WrongAnswerError, hook_verbs
from tas.extender.verbs import VERBS, Record
from tas.extension import NodeView
from workers.extender_http import Answering, RefusedError
from workers.extensions import Extension
from workers.logs import Throttle

log = structlog.get_logger("extensions")

EXTENSION_SECONDS = 1.0
"""Default limit of a call: what the scheduler waits for with the configuration that we tell users to write."""

LEAVE_SECONDS = 5.0
"""How long extensions may take to be left at the end."""

MAX_LATE = 100
"""How many calls may be cut off and still not have ended before no more are made."""


class MountedExtension:
    """One extension below its path.

    Args:
        extension: As it was loaded; with a problem, every verb is answered with that.
        nodes: What it decides by; brought up to the time of each call.
        limit: Seconds after which a call is cut off.
    """

    def __init__(self, extension: Extension, nodes: NodeView, *, limit: float) -> None:
        self.extension = extension
        self.problem = extension.problem
        self._nodes = nodes
        self._limit = limit
        self._late: set[asyncio.Task[Any]] = set()
        self._told = Throttle()
        self._is_entered = hasattr(extension.held, "__aenter__")
        if self.problem is None and self._is_entered:
            self.problem = "it is being entered"

    @property
    def verbs(self) -> Mapping[str, Answering]:
        """What is served, by the last part of the path."""
        if self.extension.hooks is None:
            return dict.fromkeys([*VERBS, "bind"], self._refuse)
        served = hook_verbs(self.extension.hooks)
        return {name: partial(self._answer, name, verb) for name, verb in served.items()}

    async def run(self) -> None:
        """Tells what has become of it, and holds it entered until cancelled."""
        if self.extension.hooks is None:
            self._tell_problem(self.problem)
            return
        if not self._is_entered:
            self._tell_mounted()
            return
        try:
            async with self.extension.held:
                self.problem = None
                self._tell_mounted()
                await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # whatever it does: the others go on
            if self.problem is None:
                self._tell("exit", "extension_failed", exc_info=error)
                return
            log.error("extension_not_entered", extension=self.extension.name, exc_info=error)  # noqa: TRY400 - with SystemExit
            self.problem = f"it cannot be entered: {type(error).__name__}: {shortened(str(error))}"
            self._tell_problem(self.problem)

    def is_mounted(self) -> float:
        """1 while its hooks are asked, else 0."""
        return float(self.problem is None)

    def told(self) -> dict[str, object]:
        """How it is, for a person to read."""
        known = self.extension
        verbs = [] if self.problem else list(self.verbs)
        return {
            "name": known.name,
            "path": known.path,
            "verbs": verbs,
            "problem": self.problem,
            "target": known.target,
            "package": known.package,
        }

    def _tell_mounted(self) -> None:
        known = self.extension
        log.info(
            "extension_mounted",
            extension=known.name,
            path=known.path,
            verbs=list(self.verbs),
            target=known.target,
            package=known.package,
        )

    def _tell_problem(self, problem: str | None) -> None:
        known = self.extension
        log.error("extension_not_mounted", extension=known.name, problem=problem, target=known.target)

    def _refuse(self, _body: bytes, _now: float) -> tuple[bytes, Record]:
        raise self._error(HTTPStatus.SERVICE_UNAVAILABLE, "", str(self.problem))

    async def _answer(self, name: str, verb: HookVerb, body: bytes, now: float) -> tuple[bytes, Record]:
        asked = verb.decode(body)
        if self.problem is not None:
            raise self._error(HTTPStatus.SERVICE_UNAVAILABLE, name, self.problem)
        if len(self._late) >= MAX_LATE:
            text = f"{len(self._late)} calls were cut off and have not ended"
            raise self._error(HTTPStatus.SERVICE_UNAVAILABLE, name, text)
        self._nodes.advance(now)
        call = asyncio.create_task(self._call(name, verb, asked, now), name=f"extension {self.extension.name}: {name}")
        try:
            await asyncio.wait([call], timeout=self._limit)
        finally:  # also when this request is given up
            if not call.done():
                call.cancel()
                self._late.add(call)
                call.add_done_callback(self._forget)
        if not call.done():
            self._tell(name, "extension_timed_out", seconds=self._limit)
            raise self._error(HTTPStatus.GATEWAY_TIMEOUT, name, f"no answer within {self._limit:g} s")
        if call.cancelled():
            raise self._failed(name, asyncio.CancelledError("by itself"))
        return call.result()

    def _forget(self, call: asyncio.Task[Any]) -> None:
        self._late.discard(call)
        if not call.cancelled():
            call.exception()  # nobody waits for it any more

    async def _call(self, name: str, verb: HookVerb, asked: Any, now: float) -> tuple[bytes, Record]:
        """What the hook gives, as an answer. Raises RefusedError, whatever the hook does, unless cancelled."""
        try:
            given = verb.hook(*verb.arguments(asked, now))
            if inspect.isawaitable(given):
                given = await given
            return verb.tell(asked, given, now)
        except WrongAnswerError as error:
            self._tell(name, "extension_answer_refused", error=str(error))
            raise self._error(HTTPStatus.INTERNAL_SERVER_ERROR, name, str(error)) from error
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise self._failed(name, error) from error  # it was not we who cancelled
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit too: it is its author's, and ends nothing but this answer
            raise self._failed(name, error) from error

    def _failed(self, name: str, error: BaseException) -> RefusedError:
        self._tell(name, "extension_failed", exc_info=error)
        text = f"{type(error).__name__}: {shortened(str(error))}"
        return self._error(HTTPStatus.INTERNAL_SERVER_ERROR, name, text)

    def _tell(self, name: str, event: str, **fields: Any) -> None:
        """Logs what a hook did, once in a while if it does so again and again."""
        held_back = self._told.admit((name, event), time.monotonic())
        if held_back is not None:
            log.error(event, extension=self.extension.name, verb=name, alike_before=held_back, **fields)

    def _error(self, status: HTTPStatus, name: str, text: str) -> RefusedError:
        verb = f" {name}" if name else ""
        return RefusedError(status, f"extension {self.extension.name}{verb}: {text}")


@asynccontextmanager
async def held(mounted: Iterable[MountedExtension]) -> AsyncIterator[None]:
    """Holds extensions entered within the body, each as soon as it lets itself be entered."""
    tasks = [asyncio.create_task(each.run(), name=f"extension {each.extension.name}") for each in mounted]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVE_SECONDS)
