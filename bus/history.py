"""Room made in a bucket: by forgetting what its keys were before, or that a key was there at all."""

import asyncio

from bus.buckets import Bucket
from bus.connection import Bus

AT_ONCE = 16
"""Keys of which the history is removed at the same time."""


async def forget_history(bus: Bus, bucket: Bucket) -> int:
    """Removes all but the last revision of every key, and returns how many revisions that were.

    Readers that follow the bucket miss nothing but what has been overtaken anyway. A stream that copies it loses what
    it has not copied by then.

    Raises:
        UnavailableError, RefusedError: where it could not be done, or not to the end.
    """
    answer = await bus.api(f"STREAM.INFO.{bucket.stream}", {"subjects_filter": bucket.subject(">")})
    counts: dict[str, int] = answer["state"].get("subjects") or {}
    left = iter([subject for subject, count in counts.items() if count > 1])
    removed = 0

    async def remove() -> None:
        nonlocal removed
        for subject in left:
            purged = await bus.api(f"STREAM.PURGE.{bucket.stream}", {"filter": subject, "keep": 1})
            removed += purged["purged"]

    found = await asyncio.gather(*(remove() for _ in range(AT_ONCE)), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return removed


async def forget_deleted(bus: Bus, bucket: Bucket, key: str, *, revision: int) -> None:
    """Removes the marker of a deletion at `revision`, unless the key has been written since: then that stays.

    No watch tells of it. The next write of the key stands on revision 0, as of one that never was; and who did not hear
    of the deletion before will not hear of it any more.

    Raises:
        UnavailableError, RefusedError: where it could not be done.
    """
    await bus.api(f"STREAM.PURGE.{bucket.stream}", {"filter": bucket.subject(key), "seq": revision + 1})
