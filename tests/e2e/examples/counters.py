"""Counters of nodes that grow while a test runs."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread


class Counters:
    """Counters by node and name, which a thread writes twice a second.

    `rates` may be changed at any time: the growth of a counter in one second.
    """

    def __init__(
        self, rates: Mapping[str, Mapping[str, float]], write: Callable[[str, Mapping[str, float]], None]
    ) -> None:
        self.rates = {node: dict(names) for node, names in rates.items()}
        self._totals = {node: dict.fromkeys(names, 1000.0) for node, names in rates.items()}
        self._bursts: list[tuple[str, str, float]] = []
        self._write = write
        self._ended = Event()

    def burst(self, node: str, name: str, growth: float) -> None:
        """Raises one counter at once."""
        self._bursts.append((node, name, growth))

    @contextmanager
    def growing(self) -> Iterator[None]:
        """The counters grow until the context ends."""
        thread = Thread(target=self._grow)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _grow(self) -> None:
        before = time.monotonic()
        while not self._ended.is_set():
            now = time.monotonic()
            for node, totals in self._totals.items():
                for name, rate in self.rates[node].items():
                    totals[name] += rate * (now - before)
            before = now
            while self._bursts:
                node, name, growth = self._bursts.pop()
                self._totals[node][name] += growth
            for node, totals in self._totals.items():
                self._write(node, totals)
            self._ended.wait(0.5)


def write_file(file: Path, text: str) -> None:
    """Writes a file that another program reads at any time: it is never incomplete."""
    file.with_name(f".{file.name}").write_text(text)
    file.with_name(f".{file.name}").rename(file)
