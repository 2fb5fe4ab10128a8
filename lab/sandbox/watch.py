"""A watch: the changes of the selected objects, as lines of a stream."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

from lab.sandbox.cluster import Cluster
from lab.sandbox.errors import StatusError
from lab.sandbox.forms import Form
from lab.sandbox.resources import Object, Resource
from lab.sandbox.selectors import Matches
from lab.sandbox.store import Change, ForgottenError, encode, partial, whole

Tabled = Callable[[Sequence[Object], Object], Object]
"""Makes a table of objects and metadata."""


class Watch:
    """The watch of one client; `tabled` makes its tables, of which only the first has column definitions."""

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource,
        *,
        namespace: str,
        matches: Matches,
        form: Form,
        tabled: Tabled,
        wants_bookmarks: bool,
    ) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self._resource = resource
        self._namespace = namespace
        self._matches = matches
        self._form = form
        self._tabled = tabled
        self._has_head = False
        self._wants_bookmarks = wants_bookmarks

    async def lines(self, version: int, *, seconds: float, bookmark_seconds: float) -> AsyncIterator[bytes]:
        """The events after this version, several lines at a time; empty after a wake of the store without events.

        With version 0 the first events are the existing objects. The watch ends after `seconds`, with an error event if
        the history was forgotten, and when the resource is no longer served. A bookmark also comes before its end.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        if version == 0:
            yield b"".join(self._existing())
            version = self._store.version
        sent = version
        while True:
            try:
                changes = self._store.changes_after(self._resource, version)
            except ForgottenError as error:
                yield _line("ERROR", encode(StatusError(410, str(error)).to_object()))
                return
            version = max(version, self._store.version)
            if events := b"".join(self._events(changes)):
                sent = version
            yield events
            if not self._cluster.serves(self._resource):
                return
            try:
                async with asyncio.timeout(min(ends - loop.time(), bookmark_seconds)):
                    await self._store.wait_beyond(version)
            except TimeoutError:
                if self._wants_bookmarks and version > sent:
                    sent = version
                    yield _line("BOOKMARK", encode(self._bookmark(version)))
                if loop.time() >= ends:
                    return

    def _existing(self) -> Iterator[bytes]:
        if self._form is not Form.NOTHING:
            for each in self._store.items(self._resource, self._namespace):
                if self._matches(each):
                    yield _line("ADDED", self._encoded(Change(0, "ADDED", self._resource, each, None)))

    def _events(self, changes: Iterable[Change]) -> Iterator[bytes]:
        """The events of changes: ADDED if the selector begins to match, DELETED if it no longer matches."""
        for change in changes:
            if self._namespace not in ("", change.key[0]) or self._form is Form.NOTHING:
                continue
            was = change.before is not None and self._matches(change.before)
            is_now = change.type != "DELETED" and self._matches(change.now)
            if is_now:
                yield _line("MODIFIED" if was else "ADDED", self._encoded(change))
            elif was:
                yield _line("DELETED", self._encoded(change.as_deletion()))

    def _encoded(self, change: Change) -> bytes:
        if self._form is Form.TABLE:
            return encode(self._table([change.now]))
        return change.partial if self._form is Form.PARTIAL else change.whole

    def _table(self, objects: Sequence[Object]) -> Object:
        version = objects[0]["metadata"]["resourceVersion"]
        table = self._tabled(objects, {"resourceVersion": version})
        if self._has_head:
            table["columnDefinitions"] = None
        self._has_head = True
        return table

    def _bookmark(self, version: int) -> Object:
        empty = {"metadata": {"resourceVersion": str(version)}}
        if self._form is Form.TABLE:
            return self._tabled([], empty["metadata"])
        return partial(empty) if self._form is Form.PARTIAL else whole(self._resource, empty)


def _line(kind: str, encoded: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), encoded)
