"""Reads the policy files below a directory."""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bus.records.policies import PolicyRecord
from tas.policy.directory import (
    FilePolicy,
    PolicyFile,
    file_policy_uid,
    policy_file,
    unreadable_file,
)
from workers.process.manifests import MAX_BYTES, SUFFIXES, ManifestError, objects


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderListing:
    """The files of the directory. With a `problem` the list is incomplete, so a missing file means nothing."""

    files: tuple[PolicyFile, ...]
    problem: str | None


class DirectoryReader:
    """Reads all policy files below a directory; unchanged files are not parsed again.

    Names that begin with a dot are ignored, such as `..data` of a mounted ConfigMap. Links to files are followed, links
    to directories are not.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._parsed: dict[str, tuple[bytes, PolicyFile]] = {}  # by path: digest of the content, parsed content

    def read(self) -> FolderListing:
        """The current content of the directory. Blocks; raises nothing."""
        problems: list[OSError] = []
        parsed: dict[str, tuple[bytes, PolicyFile]] = {}
        files: list[PolicyFile] = []
        for path in self._paths(problems):
            origin = _origin(path.relative_to(self._directory))
            try:
                data = _content(path)
            except FileNotFoundError as error:
                if path.is_symlink():  # a broken link, for example while its target is replaced
                    files.append(unreadable_file(origin, "path", path.name, error.strerror or "not found"))
                continue
            except OSError as error:
                files.append(unreadable_file(origin, "path", path.name, error.strerror or str(error)))
                continue
            digest = hashlib.sha256(data).digest()
            known = self._parsed.get(origin)
            file = known[1] if known is not None and known[0] == digest else parse_file(origin, path.suffix, data)
            parsed[origin] = (digest, file)
            files.append(file)
        self._parsed = parsed
        reported = "; ".join(f"{error.filename}: {error.strerror}" for error in problems)
        return FolderListing(files=tuple(files), problem=reported or None)

    def _paths(self, problems: list[OSError]) -> Iterator[Path]:
        for folder, subfolders, names in os.walk(self._directory, onerror=problems.append):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in names:
                if not name.startswith(".") and Path(name).suffix in SUFFIXES:
                    yield Path(folder, name)


def _origin(path: Path) -> str:
    """The path as valid Unicode text, also if the name has invalid bytes."""
    return os.fsencode(path.as_posix()).decode(errors="backslashreplace")


def _content(path: Path) -> bytes:
    """The file's bytes, at most one more than the limit. Raises OSError."""
    # Without O_NONBLOCK the open of a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file", str(path))
        return file.read(MAX_BYTES + 1)


def parse_file(origin: str, suffix: str, data: bytes) -> PolicyFile:
    """The parsed file. `suffix` is one of `SUFFIXES`."""
    try:
        manifests = list(objects(SUFFIXES[suffix](data)))
    except ManifestError as error:
        # Without the content: a link may lead to a file that others must not see, as a secret.
        return unreadable_file(origin, "content", f"{len(data)} bytes", str(error))
    return policy_file(origin, manifests)


def policy_record(filed: FilePolicy) -> PolicyRecord:
    """The record of a file's policy for the bus."""
    return PolicyRecord(
        policy=filed.policy,
        uid=file_policy_uid(filed.policy.key),
        generation=filed.generation,
        problems=filed.problems,
        origin=filed.origin,
    )
