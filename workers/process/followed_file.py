"""A file of settings that is read again when it changes. While it is invalid, what was made of it stays."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from tas.errors import line_of
from workers.process.errors import StartError
from workers.process.manifests import MAX_BYTES, ManifestError, read_yaml

T = TypeVar("T")

CHECK_SECONDS = 1.0
"""How often the file is read. A change counts once it is read twice, since the file may still be being written."""


class FollowedFile(Generic[T]):
    """A file, of which `make` makes something of its document. `make` raises StartError for an invalid document.

    `kind` is the name of the file in errors. `readable` gets 1 after each attempt if the file is in force, else 0,
    `refused` each reason why it is not. `recovered` is called when the file has the content again that is in force.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[Any], Awaitable[T]],
        *,
        kind: str,
        readable: Callable[[float], object],
        refused: Callable[[str], object],
        recovered: Callable[[], object],
    ) -> None:
        self._path = path
        self._make = make
        self._kind = kind
        self._readable = readable
        self._refused = refused
        self._recovered = recovered
        self._content: bytes | None = None

    @property
    def origin(self) -> str:
        """The name of the file in errors."""
        return f"{self._kind} {self._path}"

    async def load(self) -> T:
        """What is made of the file at the start. Blocks while the file is read. Raises StartError."""
        self._content = self._read()
        made = await self._make(self._parse(self._content))
        self._readable(1.0)
        return made

    async def changed(self) -> T:
        """Waits for other contents, and returns what is made of them. Invalid contents are reported once."""
        pending, refused, problem = self._content, None, ""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                content = await asyncio.to_thread(self._read)
                if content != pending:
                    pending = content
                elif content == self._content:
                    self._readable(1.0)
                    if problem:
                        self._recovered()
                    refused, problem = None, ""
                elif content != refused:
                    refused = content
                    made = await self._make(await asyncio.to_thread(self._parse, content))
                    self._content = content
                    self._readable(1.0)
                    return made
            except StartError as error:
                self._readable(0.0)
                if str(error) != problem:
                    problem = str(error)
                    self._refused(line_of(problem))

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except OSError as error:
            raise StartError(f"{self.origin}: {error.strerror or error}") from error

    def _parse(self, content: bytes) -> object:
        """The document; None for an empty file, the list of them if there are several."""
        try:
            documents = read_yaml(content)
        except ManifestError as error:
            raise StartError(f"{self.origin}: {error}") from error
        return documents[0] if len(documents) == 1 else documents or None
