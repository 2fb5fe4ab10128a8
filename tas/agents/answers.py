"""Whether what an agent returns can be used: wherever an agent is asked, of the product or of somebody else."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tas.agents.agent import Passes, Scores
from tas.errors import shortened
from tas.extender.hooks import InvalidHookResultError
from tas.values.nouns import counted


def checked_passes(found: object, names: Sequence[str]) -> Passes:
    """The answer for the filter of these candidates. Raises InvalidHookResultError."""
    if not isinstance(found, Passes):
        raise InvalidHookResultError(f"{shortened(found)}: filter must return Passes")
    _check_array("known", found.known, names, np.bool_)
    _check_array("passed", found.passed, names, np.bool_)
    if not isinstance(found.reason, str) or not found.reason:
        raise InvalidHookResultError(f"reason = {shortened(found.reason)}: a rejected node has a reason")
    return found


def checked_scores(found: object, names: Sequence[str]) -> Scores:
    """The answer for the scores of these candidates. Raises InvalidHookResultError."""
    if not isinstance(found, Scores):
        raise InvalidHookResultError(f"{shortened(found)}: score must return Scores")
    _check_array("known", found.known, names, np.bool_)
    _check_array("values", found.values, names, np.float64)
    wrong = found.known & ~((found.values >= 0) & (found.values <= 1))  # NaN is neither
    if wrong.any():
        at = int(wrong.argmax())
        raise InvalidHookResultError(f"{names[at]} = {found.values[at]}: a score is a number from 0 to 1")
    return found


def _check_array(field: str, value: object, names: Sequence[str], kind: type[Any]) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != kind or value.shape != (len(names),):
        wanted = f"{counted(len(names), 'value')} of {kind.__name__}"
        raise InvalidHookResultError(f"{field} = {shortened(value)}: must be {wanted}")
