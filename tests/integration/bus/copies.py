"""A server of a cluster whose copy of a stream is behind (facts.md n74)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bus import consumers
from bus.buckets import Bucket, Stream
from bus.link import Link


@contextmanager
def copy_without(of: Stream | Bucket, *missing: str) -> Iterator[None]:
    """Consumers of a stream are on a server whose copy lacks these subjects.

    They have a filter of the other ones: so a real server counts, and delivers, what such a copy has.
    """
    create = consumers.create

    async def created(link: Link, stream: str, config: dict[str, Any], **options: Any) -> tuple[str, dict[str, Any]]:
        if stream == of.stream:
            answer = await link.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"}, seconds=2)
            filters = config["filter_subjects"]
            wanted = {each for each in answer["state"]["subjects"] if any(_matches(each, one) for one in filters)}
            config = config | {"filter_subjects": sorted({*wanted, "none"}.difference(missing))}
        return await create(link, stream, config, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers, "create", created)
        yield


def _matches(subject: str, pattern: str) -> bool:
    return subject == pattern or (pattern.endswith(">") and subject.startswith(pattern[:-1]))
