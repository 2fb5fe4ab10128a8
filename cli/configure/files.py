"""Files of the machine: all are written, or none."""

import fcntl
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

_NEW = "tas-new"
_INTERIM = "tas-interim"
"""How the names end under which contents wait until a file is replaced."""


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
        interim: If given, what an existing file has before the file of the step before is replaced: it fits that
            file as it was, and as it will be.
    """

    path: Path
    before: Stored | None
    content: bytes | None
    mode: int = 0o644
    owner: tuple[int, int] | None = None
    interim: bytes | None = None

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


def undone(steps: Sequence[Step]) -> None:
    """Restores the files that `write_all` has written.

    Raises NotRestoredError for files that have changed since, or cannot be restored.
    """
    inverse: list[Step] = []
    for step in (step for step in steps if step.changes):
        now = stored(step.path)
        if (now.content if now is not None else None) != step.content:
            raise NotRestoredError(f"{step.path} has changed since; not restored: {_names(steps)}")
        inverse.append(_inverse(step, now))
    try:
        # What did not exist is deleted last: until then something may use it.
        write_all(sorted(inverse, key=lambda step: step.content is None))
    except FilesError as error:
        raise NotRestoredError(f"{error}; not restored: {_names(steps)}") from error


def _inverse(step: Step, now: Stored | None) -> Step:
    """The step that restores a file which is `now` as given."""
    before = step.before
    if before is None:
        return Step(path=step.path, before=now, content=None)
    return Step(path=step.path, before=now, content=before.content, mode=before.mode, owner=before.owner)


def _names(steps: Sequence[Step]) -> str:
    return ", ".join(str(step.path) for step in steps if step.changes)


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


def write_all(steps: Sequence[Step], *, folder_mode: int | None = None) -> None:
    """Replaces the files in this order, or none of them.

    `folder_mode` is that of each new folder, whatever the umask; None: 755, less what the umask takes away.

    All contents are on the disk before the first file is replaced: so a full disk changes nothing, and a process that
    is killed rarely leaves a new file beside an old one; what such a process left is deleted. Of two processes that
    write in one folder, one fails.

    Raises:
        FilesError: if a file cannot be written; all are as before.
        NotRestoredError: the same, and some of them could not be restored.
    """
    changes = [step for step in steps if step.changes]
    made: list[Path] = []
    staged: list[Path] = []
    done: list[Step] = []
    with ExitStack() as locks:
        try:
            places = (_unfinished(step.path, suffix) for step in steps for suffix in (_NEW, _INTERIM))
            left_over = [path for path in places if path.exists()]
            for step in changes:
                _make_folders(step.path.parent, folder_mode, made)
            for folder in sorted({path.parent for path in (*(step.path for step in changes), *left_over)}):
                locks.enter_context(_locked(folder))
            for path in left_over:
                path.unlink(missing_ok=True)
            _replace(changes, staged, done)
        except BaseException as error:
            for path in staged:
                _discard(path)
            left = _undo(done, made)
            reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            if left:
                raise NotRestoredError(f"{reason}; not restored: {', '.join(left)}") from error
            if isinstance(error, OSError):
                raise FilesError(f"{reason}; every file is as before") from error
            raise


def _replace(changes: Sequence[Step], staged: list[Path], done: list[Step]) -> None:
    """Adds to `staged` each file beside its target, and to `done` each step that is taken. Raises as `write_all`."""
    writes = _with_interims(changes)
    # The last step of a file has no interim; an interim waits under a name of its own.
    places = [_unfinished(step.path, _INTERIM if step.interim is not None else _NEW) for step in writes]
    for step, unfinished in zip(writes, places, strict=True):
        staged.append(unfinished)
        _stage(unfinished, step)
    for number, (step, unfinished) in enumerate(zip(writes, places, strict=True), 1):
        _check_unchanged(step)
        done.append(step)
        _finish(unfinished, step)
        if step.path.parent not in (following.path.parent for following in writes[number : number + 1]):
            _sync(step.path.parent)  # at once for all files of a folder that follow each other


def _with_interims(changes: Sequence[Step]) -> list[Step]:
    """The steps, and one more for each interim content."""
    writes: list[Step] = []
    for step in changes:
        before = step.before
        if step.interim is not None and before is not None and writes:
            writes.insert(-1, replace(step, content=step.interim))
            before = replace(before, content=step.interim)
        writes.append(replace(step, before=before, interim=None))
    return writes


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises FilesError if another process is writing in the folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FilesError(f"{folder}: another process is writing there; every file is as before") from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)


def _check_unchanged(step: Step) -> None:
    if stored(step.path) != step.before:
        raise FilesError(f"{step.path}: has changed meanwhile")


def _undo(done: Sequence[Step], made: Sequence[Path]) -> list[str]:
    left: list[str] = []
    for step in reversed(done):
        try:
            if stored(step.path) != step.before:
                _write(_inverse(step, None))
        except (OSError, FilesError):
            left.append(str(step.path))
    for folder in reversed(made):
        try:
            folder.rmdir()
        except OSError:
            left.append(str(folder))
    return left


def _make_folders(folder: Path, mode: int | None, made: list[Path]) -> None:
    """Adds to `made` each folder that was missing. Raises OSError."""
    missing: list[Path] = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=0o755)
        made.append(each)
        if mode is not None:
            each.chmod(mode)


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Writes a file at once, and its folder to the disk. Raises OSError."""
    _write(Step(path=path, before=None, content=content, mode=mode))


def _write(step: Step) -> None:
    """Replaces a file at once, and writes its folder to the disk. Raises OSError."""
    unfinished = _unfinished(step.path)
    _stage(unfinished, step)
    _finish(unfinished, step)
    _sync(step.path.parent)


def _stage(unfinished: Path, step: Step) -> None:
    """Writes the new content of a file beside it. The kubelet ignores the dot (facts.md c42). Raises OSError."""
    if step.content is None:
        return
    unfinished.unlink(missing_ok=True)  # of a write that was killed
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(step.content)
            file.flush()
            _keep_attributes(step.path, descriptor)
            kept = step.before if step.owner is None else None
            os.fchmod(descriptor, kept.mode if kept is not None else step.mode)
            if (wanted := kept.owner if kept is not None else step.owner) is not None:
                os.fchown(descriptor, *wanted)
            os.fsync(descriptor)
    except OSError as error:
        _discard(unfinished)
        raise OSError(error.errno, error.strerror, str(step.path)) from error


def _keep_attributes(path: Path, descriptor: int) -> None:
    """Gives a file what the one that it replaces has beside mode and owner. Where that is not possible, it has none."""
    if sys.platform == "linux":
        for name in ("security.selinux", "system.posix_acl_access"):
            with suppress(OSError):
                os.setxattr(descriptor, name, os.getxattr(path, name))


def _finish(unfinished: Path, step: Step) -> None:
    """Replaces a file by what `_stage` wrote: readers see the old file or the new one. Without content: deletes it."""
    if step.content is None:
        step.path.unlink(missing_ok=True)
        return
    try:
        unfinished.rename(step.path)
    except OSError as error:
        _discard(unfinished)
        raise OSError(error.errno, error.strerror, str(step.path)) from error


def _discard(unfinished: Path) -> None:
    """Deletes a content that waits; it stays on a disk that has become read-only, and the next run deletes it."""
    with suppress(OSError):
        unfinished.unlink(missing_ok=True)


def _unfinished(path: Path, suffix: str = _NEW) -> Path:
    return path.with_name(f".{path.name}.{suffix}")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
