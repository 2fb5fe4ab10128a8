"""Settings of all tests, and the table of times by folder."""

import gc
import logging
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from operator import itemgetter
from pathlib import Path, PurePosixPath

import pytest
import structlog
from hypothesis import HealthCheck, settings

# If it is set, every `tas` that a test starts compiles the product again, and every worker compiles all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_BYTES = 2 << 30
"""How much room the files of all tests may need at the same time."""


def keeps_files_in_memory() -> bool:
    """Whether `tmp_path` may be in shared memory: large enough, and programs in it can be executed."""
    if sys.platform != "linux" or not os.access(SHARED_MEMORY, os.W_OK):
        return False
    found = os.statvfs(SHARED_MEMORY)
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= SHARED_MEMORY_BYTES


# On a disk, a third of the processor time of a server that creates its streams is the writing of their files.
if "TMPDIR" not in os.environ and keeps_files_in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHARED_MEMORY))

EXAMPLES = int(os.environ.get("TAS_EXAMPLES", "25"))
"""How many examples a property test tries. They are new ones in each run; `make ci` and `make nightly` try more."""

# On a machine that also runs other programs, the time of an example is no property of the code.
settings.register_profile("tas", max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tas")

# By default, a traceback in the log is a drawing with all variables: 15 ms of processor time, and up to a second.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.set_exc_info,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", key="time"),
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["time", "level", "event"], drop_missing=True),
    ]
)

pytest_plugins = ("tests.flakes", "tests.spread", "tests.integration.removal.tally")
"""Here, because the process that starts the workers of pytest-xdist may load no other conftest."""


GARBAGE = (10_000, 10, 10)
"""When garbage is collected: rarely, for most is freed without it. It took 4 % of the processor time of the tests.

So a socket or a coroutine that a test leaves in a circle of objects may fail a later test: look at earlier ones, too.
"""


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """For a test that configures the logging of its process."""
    root = logging.getLogger()
    handlers, level, configuration = root.handlers[:], root.level, structlog.get_config()
    yield
    structlog.configure(**configuration)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freezes the collected tests: they stay until the end, so no garbage collection has to visit them."""
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GARBAGE)
    return result


class _Times:
    """Adds up the times of tests by folder."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = str(PurePosixPath(report.nodeid.partition("::")[0]).parent)
        self._seconds[folder] += report.duration
        self._tests[folder] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints a table if there is more than one folder, the longest time first."""
        if len(self._seconds) > 1:
            terminalreporter.section("time by folder")
            for folder, seconds in sorted(self._seconds.items(), key=itemgetter(1), reverse=True):
                terminalreporter.write_line(f"{seconds:8.1f} s {self._tests[folder]:6} tests  {folder}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Times(), "tas-times")
