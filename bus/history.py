"""Space freed in a bucket: purges of the history of its keys, and of tombstones."""

import asyncio
from collections.abc import Mapping

from bus.buckets import Bucket
from bus.connection import Bus

MAX_CONCURRENT = 16
"""Keys whose history is purged at the same time."""


async def purge_history(bus: Bus, bucket: Bucket, *, before: Mapping[str, int] | None = None) -> int:
    """Purges all but the last revision of every key, and returns the number of purged revisions.

    With `before`, only what these keys have before the given revisions. Watches miss only revisions that were replaced
    by later ones. A stream that copies the bucket loses what it has not copied yet.
    Raises UnavailableError, RefusedError; then some revisions may have been purged.
    """
    answer = await bus.api(f"STREAM.INFO.{bucket.stream}", {"subjects_filter": bucket.subject(">")})
    counts: dict[str, int] = answer["state"].get("subjects") or {}
    has_history = [subject for subject, count in counts.items() if count > 1]
    if before is None:
        what = {subject: {"keep": 1} for subject in has_history}
    else:
        what = {each: {"seq": before[key]} for each in has_history if (key := bucket.key(each)) in before}
    left = iter(what.items())
    removed = 0

    async def remove() -> None:
        nonlocal removed
        for subject, part in left:
            purged = await bus.api(f"STREAM.PURGE.{bucket.stream}", {"filter": subject, **part})
            removed += purged["purged"]

    found = await asyncio.gather(*(remove() for _ in range(MAX_CONCURRENT)), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return removed


async def purge_tombstone(bus: Bus, bucket: Bucket, key: str, *, revision: int) -> None:
    """Purges the tombstone of a key at `revision`; a later revision of the key stays.

    No watch delivers the purge: a watch that has not received the tombstone before never will. The next write of the
    key expects revision 0, as for a new key.
    Raises UnavailableError, RefusedError.
    """
    await bus.api(f"STREAM.PURGE.{bucket.stream}", {"filter": bucket.subject(key), "seq": revision + 1})
