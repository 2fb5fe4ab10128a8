"""Files of the machine: written all or none, with a backup from which a later run restores them."""

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

INDEX = "index.json"


class FilesError(Exception):
    """No file has changed; the message names the file and the reason."""


class NotRestoredError(FilesError):
    """Some files have changed, and could not be restored; the message names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A file as it is: its content, mode and owner."""

    content: bytes
    mode: int
    owner: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One file and its new content.

    Attributes:
        before: The file when the content was planned; None: there was none.
        content: None: the file is deleted.
        mode: Of a new file; an existing file keeps its mode and owner.
        owner: If given, mode and owner are set also for an existing file.
    """

    path: Path
    before: Stored | None
    content: bytes | None
    mode: int = 0o644
    owner: tuple[int, int] | None = None

    @property
    def changes(self) -> bool:
        """Whether the file is not as it is to be."""
        return self.content != (self.before.content if self.before is not None else None)


def stored(path: Path) -> Stored | None:
    """A regular file; None if there is none. Raises FilesError for all else, and for a symbolic link."""
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            raise FilesError(f"{path}: is a symbolic link to {path.readlink()}: give the file itself")
        if not stat.S_ISREG(found.st_mode):
            raise FilesError(f"{path}: is no regular file")
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FilesError(f"{path}: {error.strerror}") from error
    return Stored(content=content, mode=stat.S_IMODE(found.st_mode), owner=(found.st_uid, found.st_gid))


def why_not_writable(path: Path) -> str | None:
    """Why a file cannot be written, without a write; None if nothing speaks against it."""
    # Also root leaves a file alone that nobody may write.
    if path.exists() and not (os.access(path, os.W_OK) and path.stat().st_mode & 0o222):
        return f"{path}: is read-only"
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder}: is no folder"
    return None if os.access(folder, os.W_OK) else f"{folder}: is read-only"


def write_all(steps: Sequence[Step]) -> None:
    """Writes the files in this order, each at once, or none of them.

    Raises:
        FilesError: if a file cannot be written; all are as before.
        NotRestoredError: the same, and some of them could not be restored.
    """
    done: list[Step] = []
    made: list[Path] = []
    try:
        for step in steps:
            if not step.changes:
                continue
            _check_unchanged(step)
            made += _make_folders(step.path.parent)
            done.append(step)
            _write(step.path, step.content, step.before, step.mode, step.owner)
    except BaseException as error:
        left = _undo(done, made)
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        if left:
            raise NotRestoredError(f"{reason}; not restored: {', '.join(left)}") from error
        if isinstance(error, OSError):
            raise FilesError(f"{reason}; every file is as before") from error
        raise


def _check_unchanged(step: Step) -> None:
    if stored(step.path) != step.before:
        raise FilesError(f"{step.path}: has changed meanwhile")


def _undo(done: Sequence[Step], made: Sequence[Path]) -> list[str]:
    left: list[str] = []
    for step in reversed(done):
        try:
            before = step.before
            if stored(step.path) != before:
                owner = before.owner if before is not None else None
                _write(step.path, before.content if before else None, None, before.mode if before else 0, owner)
        except (OSError, FilesError):
            left.append(str(step.path))
    for folder in reversed(made):
        try:
            folder.rmdir()
        except OSError:
            left.append(str(folder))
    return left


def _make_folders(folder: Path) -> list[Path]:
    missing: list[Path] = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=0o755)
    return list(reversed(missing))


def _write(path: Path, content: bytes | None, before: Stored | None, mode: int, owner: tuple[int, int] | None) -> None:
    """Replaces a file at once: readers see the old file or the new one. The kubelet ignores the dot (facts.md c42)."""
    if content is None:
        path.unlink(missing_ok=True)
        _sync(path.parent)
        return
    unfinished = path.with_name(f".{path.name}.tas-new")
    unfinished.unlink(missing_ok=True)
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            kept = before if owner is None else None
            os.fchmod(descriptor, kept.mode if kept is not None else mode)
            if (wanted := kept.owner if kept is not None else owner) is not None:
                os.fchown(descriptor, *wanted)
            os.fsync(descriptor)
        unfinished.rename(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Backups


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a backup; `file` is its name there, None: there was no file."""

    path: str
    file: str | None
    mode: int = 0
    uid: int = 0
    gid: int = 0
    sha256: str = ""


class _Index(msgspec.Struct, frozen=True, kw_only=True):
    created: str
    files: list[_Entry]


def back_up(folder: Path, steps: Sequence[Step], now: datetime) -> Path:
    """A new folder in `folder` with the files that the steps change.

    Raises FilesError; then there is no such folder.
    """
    number = 1
    while (target := folder / f"backup_{now:%Y-%m-%d}_{number}").exists():
        number += 1
    written: list[Path] = []
    try:
        target.mkdir(mode=0o700)
        entries: list[_Entry] = []
        for step in steps:
            before = step.before
            if before is None:
                entries.append(_Entry(path=str(step.path), file=None))
                continue
            name = step.path.name if not (target / step.path.name).exists() else f"{len(entries)}-{step.path.name}"
            written.append(target / name)
            _write(target / name, before.content, None, 0o600, None)
            uid, gid = before.owner
            digest = _digest(before.content)
            entries.append(_Entry(path=str(step.path), file=name, mode=before.mode, uid=uid, gid=gid, sha256=digest))
        written.append(target / INDEX)
        index = msgspec.json.format(msgspec.json.encode(_Index(created=now.isoformat(), files=entries)))
        _write(target / INDEX, index, None, 0o600, None)
        _sync(folder)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        if target.exists():
            target.rmdir()
        raise FilesError(f"no backup: {error.filename}: {error.strerror}; every file is as before") from error
    return target


def newest_backup(folder: Path) -> Path:
    """The backup that was made last. Raises FilesError if there is none."""
    found = [(_index(path).created, path) for path in folder.glob("backup_*") if (path / INDEX).exists()]
    if not found:
        raise FilesError(f"{folder}: has no backup")
    return max(found)[1]


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


def _index(backup: Path) -> _Index:
    try:
        return msgspec.json.decode((backup / INDEX).read_bytes(), type=_Index)
    except OSError as error:
        raise FilesError(f"{backup / INDEX}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise FilesError(f"{backup / INDEX}: {error}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
