"""A program whose allocator keeps memory free after a burst: between the pieces of the burst are some that stay."""

import signal

PIECES = 40_000
PIECE_BYTES = 1000
BURST_BYTES = PIECES * PIECE_BYTES
KEPT = 100
"""One piece of so many stays: less than a page of each of them."""

if __name__ == "__main__":
    burst = [bytes(PIECE_BYTES) for _ in range(PIECES)]
    kept = burst[::KEPT]
    del burst
    print("ready", flush=True)
    while kept:
        signal.pause()
