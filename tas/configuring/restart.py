"""Has the scheduler come back after its manifest changed, and has it read its files?"""

from collections.abc import Mapping

SLACK_SECONDS = 1.0
"""A file that is written while a scheduler starts: the times of processes and files have other roundings."""


def not_read(started: float, changed: Mapping[str, float]) -> list[str]:
    """The files that have changed since a scheduler started; times in seconds since 1970."""
    return [path for path, at in changed.items() if at > started + SLACK_SECONDS]


class Restart:
    """Follows what a scheduler answers, until it has started again and has answered for some seconds.

    Args:
        before: The certificate that the scheduler presented before the change; None: it presented none.
        own_certificate: Whether the scheduler makes a new certificate at each start.
        steady: How many seconds it must answer without a gap.
    """

    def __init__(self, before: str | None, *, own_certificate: bool, steady: float) -> None:
        self._before = before
        self._own = own_certificate and before is not None
        self._steady = steady
        self._restarted = before is None
        self._since: float | None = None

    def saw(self, now: float, certificate: str | None, *, is_slow: bool = False) -> bool:
        """Whether the scheduler is back.

        Args:
            now: In seconds, from any beginning.
            certificate: The one with which the scheduler says that it is alive; None: it does not.
            is_slow: Whether only its time was over.
        """
        if certificate is None:
            # Without a new certificate at each start, only a pause shows that there was one. To be slow is none.
            self._restarted = self._restarted or not (self._own or is_slow)
            self._since = None
            return False
        self._restarted = self._restarted or certificate != self._before
        if not self._restarted:
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= self._steady
