"""Ends a call that runs too long without awaiting, by an exception in it. Else it would block the whole process.

A thread watches the time, and sends a signal to the main thread, whose handler raises the exception. So a call costs
two assignments. A loop of Python ends so, and a sleep; a call into C that does not return does not.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CHECK_SECONDS = 0.05
"""How often the thread looks: a call may take so much longer than its limit."""

SIGNAL = signal.SIGVTALRM
"""No library of ours uses this signal."""


class InterruptedCallError(BaseException):
    """A call took too long. No `Exception`, so that the code that takes too long does not handle it by chance."""


class Interrupter:
    """Watches the calls of the event loop, which is in the main thread: there is one call at a time."""

    def __init__(self) -> None:
        self._deadline = inf
        self._seconds = inf

    def bounded(self, function: Callable[P, T], seconds: float) -> Callable[P, T]:
        """`function`, which raises InterruptedCallError after `seconds`, while within `watching`."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            self._seconds = seconds
            self._deadline = time.monotonic() + seconds
            try:
                return function(*args, **kwargs)
            finally:
                self._deadline = inf

        return call

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ends calls within the body. In another thread than the main thread it does nothing: no signal gets there."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before, ended = signal.signal(SIGNAL, self._interrupt), threading.Event()
        thread = threading.Thread(
            target=self._watch, args=(threading.get_ident(), ended), name="interrupter", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            # The default action of the signal would end the process.
            signal.signal(SIGNAL, signal.SIG_IGN if before in (None, signal.SIG_DFL) else before)

    def _watch(self, main: int, ended: threading.Event) -> None:
        while not ended.wait(CHECK_SECONDS):
            if time.monotonic() >= self._deadline:
                signal.pthread_kill(main, SIGNAL)

    def _interrupt(self, *_: object) -> None:
        if time.monotonic() >= self._deadline:  # else the call has just ended
            self._deadline = inf
            raise InterruptedCallError(f"no answer within {self._seconds:g} s")
