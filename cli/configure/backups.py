"""Backups of the files that a run changes, from which `tas configure revert` restores them."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path

import msgspec

from bus.records.codec import UNREADABLE
from cli.configure.files import FilesError, Step, stored, write_new

INDEX = "index.json"


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a backup.

    Attributes:
        file: Its name there; None: there was no file.
        written: The digest of what the run then wrote.
        interim: The digest of what it had meanwhile; empty: nothing else.
    """

    path: str
    file: str | None
    mode: int = 0
    uid: int = 0
    gid: int = 0
    sha256: str = ""
    written: str = ""
    interim: str = ""


class _Index(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup has, and by which version and which flags of `tas configure` it was made.

    Attributes:
        number: One more than that of the backup before: a clock may go back. 0: of a version that had no numbers.
    """

    created: str
    files: list[_Entry]
    number: int = 0
    version: str = ""
    flags: dict[str, str] = {}


def back_up(folder: Path, steps: Sequence[Step], now: datetime, *, version: str, flags: Mapping[str, str]) -> Path:
    """A new folder in `folder` with the files that the steps change.

    Raises FilesError; then there is no such folder.
    """
    try:
        target = _new_folder(folder, f"backup_{now:%Y-%m-%d}")
    except OSError as error:
        raise FilesError(f"no backup: {error.filename}: {error.strerror}; every file is as before") from error
    written: list[Path] = []
    try:
        number = 1 + max(_numbers(folder), default=0)
        entries: list[_Entry] = []
        for step in steps:
            before = step.before
            after = "" if step.content is None else _digest(step.content)
            if before is None:
                entries.append(_Entry(path=str(step.path), file=None, written=after))
                continue
            name = step.path.name if not (target / step.path.name).exists() else f"{len(entries)}-{step.path.name}"
            written.append(target / name)
            write_new(target / name, before.content, 0o600)
            uid, gid = before.owner
            entries.append(
                _Entry(
                    path=str(step.path), file=name, mode=before.mode, uid=uid, gid=gid,
                    sha256=_digest(before.content), written=after,
                    interim="" if step.interim is None else _digest(step.interim),
                )
            )  # fmt: skip
        index = _Index(created=now.isoformat(), files=entries, number=number, version=version, flags=dict(flags))
        written.append(target / INDEX)
        write_new(target / INDEX, msgspec.json.format(msgspec.json.encode(index)), 0o600)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            target.rmdir()
        raise FilesError(f"no backup: {error.filename}: {error.strerror}; every file is as before") from error
    return target


def _new_folder(folder: Path, stem: str) -> Path:
    for number in count(1):
        target = folder / f"{stem}_{number}"
        with suppress(FileExistsError):
            target.mkdir(mode=0o700)
            return target
    raise AssertionError("numbers end")


def newest_backup(folder: Path) -> Path:
    """The backup that was made last. Raises FilesError if there is none."""
    found = _by_age(folder)
    if not found:
        raise FilesError(f"{folder}: has no backup of this user; --backup DIR takes any")
    return found[-1]


def prune(folder: Path, keep: int) -> list[Path]:
    """Deletes all backups but the newest `keep`, and returns the deleted ones.

    Only files of a backup are deleted: a folder with others stays. Raises FilesError.
    """
    gone = _by_age(folder)[:-keep]
    for backup in gone:
        delete(backup)
    return gone


def delete(backup: Path) -> None:
    """Deletes the files of a backup, and its folder if no others are in it. Raises FilesError."""
    names = [entry.file for entry in _index(backup).files if entry.file is not None]
    try:
        # The index is last: without it, a folder is no backup.
        for name in [*(name for name in names if "/" not in name), INDEX]:
            (backup / name).unlink(missing_ok=True)
        if not any(backup.iterdir()):
            backup.rmdir()
    except OSError as error:
        raise FilesError(f"{backup}: is not deleted: {error.strerror}") from error


def _by_age(folder: Path) -> list[Path]:
    found = [(index.number, index.created, path) for path in _backups(folder) for index in [_index(path)]]
    return [path for *_, path in sorted(found)]


def _numbers(folder: Path) -> Iterator[int]:
    """The numbers of the backups that can be read: one that cannot stops no other."""
    for path in _backups(folder):
        with suppress(FilesError):
            yield _index(path).number


def _backups(folder: Path) -> list[Path]:
    """Those of this user: in a folder such as /tmp, those of others would say which files are written, and how."""
    return [path for path in folder.glob("backup_*") if _is_own(path) and (path / INDEX).exists()]


def _is_own(path: Path) -> bool:
    with suppress(FileNotFoundError):  # another user may delete what is its own meanwhile
        return path.lstat().st_uid == os.geteuid()
    return False


def steps_of_backup(backup: Path) -> list[Step]:
    """The steps that restore the files of a backup. Raises FilesError if the backup is not complete.

    Files that did not exist are deleted last: until then something may use them.
    """
    steps: list[Step] = []
    for entry in _index(backup).files:
        path = Path(entry.path)
        content = None
        if entry.file is not None:
            try:
                content = (backup / entry.file).read_bytes()
            except OSError as error:
                raise FilesError(f"{backup / entry.file}: {error.strerror}") from error
            if _digest(content) != entry.sha256:
                raise FilesError(f"{backup / entry.file}: is not as it was written")
        steps.append(
            Step(path=path, before=stored(path), content=content, mode=entry.mode, owner=(entry.uid, entry.gid))
        )
    return sorted(steps, key=lambda step: step.content is None)


def changed_since(backup: Path) -> list[str]:
    """The files that are neither as before the run of a backup, nor as the run wrote them. Raises FilesError."""
    found: list[str] = []
    for entry in _index(backup).files:
        now = stored(Path(entry.path))
        digest = None if now is None else _digest(now.content)
        before = None if entry.file is None else entry.sha256
        if digest not in (before, entry.written, entry.interim):
            found.append(entry.path)
    return found


def _index(backup: Path) -> _Index:
    try:
        return msgspec.json.decode((backup / INDEX).read_bytes(), type=_Index)
    except OSError as error:
        raise FilesError(f"{backup / INDEX}: {error.strerror}") from error
    except UNREADABLE as error:
        raise FilesError(f"{backup / INDEX}: {error}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
