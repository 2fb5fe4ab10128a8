"""Interrupts a call before any of its lines, as the time limit of an agent does."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from workers.agents.interrupting import InterruptedCallError


def is_interrupted(line: int, call: Callable[[], object], *, within: type) -> bool:
    """Whether the call runs more than `line` lines of the class `within`; then it is interrupted before the next."""
    left = line

    def trace(frame: FrameType, what: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_qualname.startswith(f"{within.__qualname__}."):
            return None
        if what == "line":
            left -= 1
            if left < 0:
                raise InterruptedCallError("too slow")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except InterruptedCallError:
        return True
    finally:
        sys.settrace(before)
    return False
