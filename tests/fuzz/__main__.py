"""`make fuzz`: searches for messages that break the bounds of a decoder, for `TAS_FUZZ_SECONDS` each (10 by default).

First all shapes of `hostile`, at the size of the largest message as far as the time allows, then mutations of valid
messages. It prints a line for each decoder, and stores findings in `tests/fuzz/corpus/`. The exit code is 1 if there
are any. `TAS_FUZZ_SEED` repeats a run. `--list` prints what holds for each decoder.
"""

import hashlib
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.fuzz.cost import cost, grows_linearly, is_slow, memory
from tests.fuzz.decoders import DECODERS, Decoder
from tests.fuzz.hostile import plain_shapes, shapes
from tests.fuzz.mutated import mutated
from tests.fuzz.test_corpus import CORPUS, LEAST_BYTES

SECONDS = float(os.environ.get("TAS_FUZZ_SECONDS", "10"))
SEED = int(os.environ.get("TAS_FUZZ_SEED", str(time.time_ns() % 10**9)))
SMALL = 20_000
"""The size in bytes at which all shapes are tried."""

STEP_SECONDS = 5e-9
"""What a step of the loop takes at least, on any machine."""

MAX_STORED = 100_000
"""A longer finding is described, and not stored."""


@dataclass
class Search:
    """The search of one decoder, and its worst figures so far."""

    decoder: Decoder
    calls: int = 0
    largest: int = 0
    seconds_per_byte: float = 0.0
    bytes_per_byte: float = 0.0
    kept: int = 0
    findings: dict[str, bytes] = field(default_factory=dict)

    def run(self, chance: random.Random) -> None:
        """Searches until its time is over."""
        end = time.monotonic() + SECONDS
        for stage, share in ((self._small(chance), 0.4), (self._large(chance), 0.7), (self._mutated(chance), 1.0)):
            stop = end - SECONDS * (1 - share)
            for _ in stage:
                if time.monotonic() > stop:
                    break

    def _small(self, chance: random.Random) -> Iterator[None]:
        """All shapes at a small size, in any order, also with their memory."""
        some = list(shapes(self.decoder))
        chance.shuffle(some)
        for name, shape in some:
            self._try(name, shape(min(SMALL, self.decoder.largest)), with_memory=chance.random() < 0.2)
            yield

    def _large(self, chance: random.Random) -> Iterator[None]:
        """Shapes at the size of the largest message: the growth of the time."""
        some = list(plain_shapes(self.decoder))
        chance.shuffle(some)
        for size in (self.decoder.largest // 16, self.decoder.largest):
            for name, shape in some:
                large = shape(size)
                self.largest = max(self.largest, len(large))
                if not grows_linearly(self.decoder, shape, size):
                    self._found(f"{name} of {len(large)} bytes: its time grows more than linearly", large)
                self._try(name, large)
                yield

    def _mutated(self, chance: random.Random) -> Iterator[None]:
        while True:
            self._try("mutation", mutated(self.decoder, chance), with_memory=chance.random() < 0.02)
            yield

    def _try(self, name: str, data: bytes, *, with_memory: bool = False) -> None:
        self.calls += 1
        size = max(len(data), LEAST_BYTES)
        found = cost(self.decoder, data)
        if found.error is not None:
            self._found(f"{name}: {type(found.error).__name__}: {str(found.error)[:200]}", data)
        self.seconds_per_byte = max(self.seconds_per_byte, found.seconds / size)
        # Most take a small part of what is allowed: those need no loop beside them.
        if found.seconds > size * self.decoder.steps_per_byte * STEP_SECONDS and is_slow(self.decoder, data, size):
            self._found(f"{name}: {found.seconds:.3f} s for {len(data)} bytes", data)
        if with_memory:
            peak, kept = memory(self.decoder, data)
            self.bytes_per_byte = max(self.bytes_per_byte, peak / size)
            self.kept = max(self.kept, kept)
            if peak > size * self.decoder.bytes_per_byte:
                self._found(f"{name}: {peak} bytes of memory for {len(data)} bytes", data)
            if kept > self.decoder.kept:
                self._found(f"{name}: {kept} bytes are kept of {len(data)} bytes", data)

    def _found(self, text: str, data: bytes) -> None:
        kind = text.partition(": ")[2][:24] or text
        if not any(kind in known for known in self.findings):
            self.findings[text] = data

    def __str__(self) -> str:
        return (
            f"{self.decoder.name:22} {self.calls:8} {self.largest:10} {1e9 * self.seconds_per_byte:9.0f} "
            f"{self.bytes_per_byte:9.1f} {self.kept:9} {len(self.findings):9}"
        )


def main() -> int:
    """Fuzzes all decoders, or those that the arguments name."""
    if sys.argv[1:] == ["--list"]:
        print(*DECODERS, sep="\n")
        return 0
    chosen = [each for each in DECODERS if not sys.argv[1:] or each.name in sys.argv[1:]]
    print(f"seed {SEED}, {SECONDS:g} s for each of {len(chosen)} decoders")
    print(f"{'decoder':22} {'calls':>8} {'largest':>10} {'ns/byte':>9} {'peak B/B':>9} {'kept B':>9} {'findings':>9}")
    failed = False
    for decoder in chosen:
        search = Search(decoder)
        search.run(random.Random(f"{SEED} {decoder.name}"))
        print(search, flush=True)
        for text, data in search.findings.items():
            failed = True
            print(f"    {text}\n    stored as {_stored(decoder, data)}", flush=True)
    return int(failed)


def _stored(decoder: Decoder, data: bytes) -> str:
    if len(data) > MAX_STORED:
        return f"nothing: it has {len(data)} bytes"
    folder = CORPUS / decoder.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:12]
    path.write_bytes(data)
    return str(path)


if __name__ == "__main__":
    sys.exit(main())
