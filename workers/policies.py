"""Policies from a directory: TASPolicy files in, POLICIES out.

The directory is the truth and the bucket follows it: a pass reads all of the directory and writes what differs. Passes
come with each change that the system tells of, and every few seconds without one, since network file systems tell
nothing. Every write stands on the revision that was compared, so several replicas may do the same.
"""

import asyncio
import hashlib
import json
import os
import stat
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge
from watchfiles import awatch

from bus.buckets import NODES, POLICIES, SYNCED
from bus.connection import Bus, Epoch
from bus.errors import BusError
from bus.messages import PolicyRecord, decode_policy, encode_policy
from bus.subjects import parse_policy_key, policy_key
from tas.directory import DirectoryPlan, FiledPolicy, FileProblem, PolicyFile, plan
from tas.errors import InvalidInputError, shortened
from tas.manifest import parse_manifest, reason_alone
from tas.policy import PolicyKey
from workers.logs import Throttle
from workers.manifests import MAX_BYTES, ManifestError, objects, read_json, read_yaml
from workers.records import RecordKind, Records, Stored, Write
from workers.runtime import json_response
from workers.synced import write_synced

log = structlog.get_logger("policies")

SUFFIXES = {".yaml": read_yaml, ".yml": read_yaml, ".json": read_json}

REREAD_SECONDS = 10.0
"""How often the directory is read without being told of a change; unchanged files are not parsed again."""

RETRY_SECONDS = (0.1, 2.0)
"""The first and the longest wait after a pass that could not do all it should."""

MISSING_SECONDS = 1.0
"""How often a directory that is away is looked for."""

QUIET_MILLISECONDS = 50
"""A change is acted on when nothing more has changed for so long: a file is often written in several steps."""

BUSY_MILLISECONDS = 500
"""A change is acted on after so long even if more keep coming."""

MAX_RECORD_BYTES = 512 << 10
"""The largest policy as it stands on the bus: half of what a server takes by default."""

_UID_NAMESPACE = uuid.UUID("8c5a2c0e-6e0f-5d0f-9f6b-3b1f6f1f7c55")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What the directory holds. `problem` says what of it could not be listed: then an absence means nothing."""

    files: tuple[PolicyFile, ...]
    problem: str | None


class DirectoryReader:
    """Reads all policy files below a directory. What has not changed since the last time is not parsed again.

    Names that begin with a dot are left out, as the `..data` of a mounted ConfigMap; linked files are followed, linked
    directories are not.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._parsed: dict[str, tuple[bytes, PolicyFile]] = {}  # by path: digest of the content, and what it says

    def read(self) -> Listing:
        """The directory as it is now. Blocks; raises nothing."""
        problems: list[OSError] = []
        parsed: dict[str, tuple[bytes, PolicyFile]] = {}
        files: list[PolicyFile] = []
        for path in self._paths(problems):
            origin = _origin(path.relative_to(self._directory))
            try:
                data = _content(path)
            except FileNotFoundError as error:
                if path.is_symlink():  # it points nowhere now, as while somebody replaces what it points to
                    files.append(_unreadable(origin, "path", path.name, error.strerror or "not found"))
                continue
            except OSError as error:
                files.append(_unreadable(origin, "path", path.name, error.strerror or str(error)))
                continue
            digest = hashlib.sha256(data).digest()
            known = self._parsed.get(origin)
            file = known[1] if known is not None and known[0] == digest else parse_file(origin, path.suffix, data)
            parsed[origin] = (digest, file)
            files.append(file)
        self._parsed = parsed
        told = "; ".join(f"{error.filename}: {error.strerror}" for error in problems)
        return Listing(files=tuple(files), problem=told or None)

    def _paths(self, problems: list[OSError]) -> Iterator[Path]:
        for folder, subfolders, names in os.walk(self._directory, onerror=problems.append):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in names:
                if not name.startswith(".") and Path(name).suffix in SUFFIXES:
                    yield Path(folder, name)


def _origin(path: Path) -> str:
    """The path as text that every JSON encoder takes, whatever bytes its name is made of."""
    return os.fsencode(path.as_posix()).decode(errors="backslashreplace")


def _content(path: Path) -> bytes:
    """The file's bytes, one more than may be at most. Raises OSError."""
    # A pipe would otherwise be waited for until somebody writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "no regular file", str(path))
        return file.read(MAX_BYTES + 1)


def parse_file(origin: str, suffix: str, data: bytes) -> PolicyFile:
    """What a file says. `suffix` is one of `SUFFIXES`."""
    try:
        manifests = list(objects(SUFFIXES[suffix](data)))
    except ManifestError as error:
        return _unreadable(origin, "content", data[:80].decode(errors="replace"), str(error))
    if not manifests:
        # No deletion: a file that is just being written is empty too.
        return _unreadable(origin, "content", "", "holds no policy; to remove its policies, remove the file")
    policies: list[FiledPolicy] = []
    problems: list[FileProblem] = []
    for manifest in manifests:
        parsed = _parse(origin, manifest)
        if isinstance(parsed, FiledPolicy):
            policies.append(parsed)
        else:
            problems += parsed
    return PolicyFile(origin=origin, policies=tuple(policies), problems=tuple(problems))


def _parse(origin: str, manifest: object) -> FiledPolicy | list[FileProblem]:
    try:
        policy, problems = parse_manifest(manifest)
    except InvalidInputError as error:
        return [
            FileProblem(origin=origin, subject=error.subject, field=error.field, value=error.value, reason=error.reason)
        ]
    subject = f"policy {policy.key}"
    refused = [
        FileProblem(
            origin=origin, subject=subject, field=problem.field, value=problem.value, reason=reason_alone(problem)
        )
        for problem in problems
        if problem.refused
    ]
    if refused:
        return refused
    spec = manifest.get("spec") if isinstance(manifest, dict) else None
    filed = FiledPolicy(origin=origin, policy=policy, generation=generation_of(spec), problems=problems)
    size = len(encode_policy(policy_record(filed)))
    if size > MAX_RECORD_BYTES:
        reason = f"must be at most {MAX_RECORD_BYTES} bytes on the bus"
        return [FileProblem(origin=origin, subject=subject, field="spec", value=f"{size} bytes", reason=reason)]
    return filed


def _unreadable(origin: str, field: str, value: str, reason: str) -> PolicyFile:
    problem = FileProblem(origin=origin, subject="file", field=field, value=shortened(value), reason=reason)
    return PolicyFile(origin=origin, problems=(problem,))


def generation_of(spec: object) -> int:
    """A positive number that changes exactly when the spec does; small enough for every JSON reader (48 bits)."""
    canonical = json.dumps(spec, sort_keys=True)  # the one encoder that takes integers of any size
    return int.from_bytes(hashlib.sha256(canonical.encode()).digest()[:6]) + 1


def policy_record(filed: FiledPolicy) -> PolicyRecord:
    """How a policy of a file stands on the bus."""
    return PolicyRecord(
        policy=filed.policy,
        uid=str(uuid.uuid5(_UID_NAMESPACE, str(filed.policy.key))),
        generation=filed.generation,
        problems=filed.problems,
        origin=filed.origin,
    )


POLICY_RECORDS: RecordKind[PolicyKey, PolicyRecord] = RecordKind(
    bucket=POLICIES, key=policy_key, parse_key=parse_policy_key, encode=encode_policy, decode=decode_policy
)


class PolicyDirectory:
    """The worker. Besides what stands in POLICIES it keeps nothing that reading the directory would not give again.

    Attributes:
        problems: What does not stand, and why: unreadable files, then policies whose name another file has.
    """

    name = "policies"

    def __init__(
        self, bus: Bus, *, directory: Path, registry: CollectorRegistry, reread_seconds: float = REREAD_SECONDS
    ) -> None:
        self._bus = bus
        self._directory = directory
        self._reread_seconds = reread_seconds
        self._reader = DirectoryReader(directory)
        # What stood before the bus was wiped: of files that cannot be read just now nobody else has it.
        self._held: dict[PolicyKey, PolicyRecord] = {}
        self._records = Records(
            bus,
            POLICY_RECORDS,
            on_epoch=self._begin_epoch,
            on_batch=self._caught_up_wakes,
            on_written=self._note_written,
        )
        self._wake = asyncio.Event()
        self._read_once = False
        self._synced_epoch: Epoch | None = None
        self._waiting_for = "the directory has not been read yet"
        self._told: dict[str, tuple[FileProblem, ...]] = {}
        self._told_directory: str | None = None
        self._warnings = Throttle()
        self.problems: tuple[FileProblem, ...] = ()
        self._metrics = _Metrics(registry)

    def unready(self) -> str | None:
        """Why the directory does not stand in POLICIES yet; once it does in this life of the bus, None."""
        if self._synced_epoch is not None and self._synced_epoch is self._records.epoch:
            return None
        if not self._records.caught_up:
            return f"{POLICIES.name}: not caught up with the bus"
        return self._waiting_for

    def health_routes(self) -> Iterable[web.RouteDef]:
        """`/problems`: what of the directory does not stand, and why."""
        return [web.get("/problems", self._get_problems)]

    async def _get_problems(self, _request: web.Request) -> web.Response:
        return json_response({"problems": [msgspec.to_builtins(problem) for problem in self.problems]})

    async def run(self) -> None:
        """Follows the directory until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._records.run())
            tasks.create_task(self._follow_changes())
            tasks.create_task(self._reconcile())

    # Following POLICIES

    def _begin_epoch(self) -> None:
        self._held.update(_records_of(self._records.stored))
        self._wake.set()

    def _caught_up_wakes(self) -> None:
        if self._synced_epoch is not self._records.epoch:
            self._wake.set()

    # Following the directory

    async def _follow_changes(self) -> None:
        """Wakes the reconciliation at each change. Runs until cancelled."""
        while True:
            try:
                await self._follow_one_directory()
            except* (OSError, RuntimeError) as errors:
                # It is away, or the system watches no more of them, or a file's name is no text: then reading it again
                # and again has to do.
                if self._told_directory is None:
                    reason = "; ".join(str(error) for error in errors.exceptions)
                    self._warn("policy_directory_not_watched", directory=str(self._directory), error=reason)
                await asyncio.sleep(MISSING_SECONDS)
            self._wake.set()

    async def _follow_one_directory(self) -> None:
        """Returns when another directory stands in the watched one's place. Raises OSError, RuntimeError."""
        watched = await asyncio.to_thread(_identity, self._directory)
        stands = False
        changes = awatch(
            self._directory,
            watch_filter=None,
            step=QUIET_MILLISECONDS,
            debounce=BUSY_MILLISECONDS,
            rust_timeout=int(MISSING_SECONDS * 1000),
            yield_on_timeout=True,
        )
        async with aclosing(changes):
            async for changed in changes:
                # The first time round says that the watch stands: what changed before it did is looked at once more.
                if changed or not stands:
                    self._wake.set()
                stands = True
                if await asyncio.to_thread(_identity, self._directory) != watched:
                    return

    # Making POLICIES the same as the directory

    async def _reconcile(self) -> None:
        """A pass at each wake, and one every few seconds without. Runs until cancelled."""
        wait, longest = RETRY_SECONDS
        while True:
            self._wake.clear()
            if await self._pass():
                wait, pause = RETRY_SECONDS[0], self._reread_seconds
            else:
                pause = wait = min(2 * wait, longest)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _pass(self) -> bool:
        """Reads the directory and writes what differs. Returns whether all stands that should."""
        epoch, caught_up = self._records.epoch, self._records.caught_up
        stored = dict(self._records.stored)
        listing = await asyncio.to_thread(self._reader.read)
        # From here a pause makes the writes expire. The revisions are older than the reading: whoever wrote since with
        # a newer reading makes ours conflict.
        read_at = time.monotonic()
        self._tell_directory(listing)
        if epoch is None or not caught_up:
            return False
        held = {key: record for key, record in self._held.items() if key not in stored}
        standing = {key: record.origin for key, record in _records_of(stored).items()}
        planned = plan(
            listing.files,
            standing | {key: record.origin for key, record in held.items()},
            complete=listing.problem is None,
        )
        self._tell_files(planned)
        wished = {key: policy_record(filed) for key, filed in planned.stand.items()}
        kept = {key: record for key, record in held.items() if key not in planned.remove}
        removed = {key for key in planned.remove if key in standing}
        if not await self._write_all(kept | wished, removed, stored, read_at):
            return False
        self._held.clear()
        self._read_once = self._read_once or listing.problem is None
        count = len((standing.keys() - removed) | kept.keys() | wished.keys())
        self._metrics.policies.set(count)
        # Until the whole directory has been read once, nobody may take what is missing for gone.
        return self._read_once and await self._write_synced(epoch, count)

    async def _write_all(
        self,
        wished: Mapping[PolicyKey, PolicyRecord],
        removed: Collection[PolicyKey],
        stored: Mapping[PolicyKey, Stored[PolicyRecord]],
        read_at: float,
    ) -> bool:
        """Writes what differs from what is stored. Returns whether all of it stands now."""
        writes: dict[PolicyKey, Write[PolicyRecord]] = {}
        for key, record in wished.items():
            standing = stored.get(key, Stored(0))
            if not POLICY_RECORDS.same(key, record, standing.record):
                writes[key] = Write(record=record, revision=standing.revision, read_at=read_at)
        for key in removed:
            writes[key] = Write(record=None, revision=stored[key].revision, read_at=read_at)
        failures = await self._records.write(writes)
        if failures:
            first = next(iter(failures.values()))
            self._tell_failure(f"{len(failures)} of {len(writes)} policies not written: {first}")
        return not failures

    def _note_written(self, key: PolicyKey, record: PolicyRecord | None, before: PolicyRecord | None) -> None:
        if record is None:
            self._metrics.writes.labels("remove").inc()
            log.info("policy_removed", policy=str(key), file=before.origin if before else None)
            return
        self._metrics.writes.labels("put").inc()
        log.info(
            "policy_stored",
            policy=str(key),
            file=record.origin,
            generation=record.generation,
            problems=[str(problem) for problem in record.problems],
        )

    async def _write_synced(self, epoch: Epoch, count: int) -> bool:
        """Says in both buckets that all of the directory stands. Returns whether it is said."""
        try:
            await write_synced(self._bus, POLICIES, epoch, count=count, by="directory", cluster=False)
            # Nobody lists nodes here: every valid name is one.
            nodes_epoch = await self._bus.epoch(NODES)
            await write_synced(self._bus, NODES, nodes_epoch, count=0, by="directory", cluster=False)
        except BusError as error:
            self._tell_failure(f"{SYNCED} not written: {error}")
            return False
        if self._synced_epoch is not epoch:
            self._synced_epoch = epoch
            log.info("policies_synced", directory=str(self._directory), count=count)
        return True

    # What is told

    def _tell_directory(self, listing: Listing) -> None:
        """Once for each change of what is wrong with the directory itself."""
        self._metrics.readable.set(listing.problem is None)
        self._metrics.files.set(len(listing.files))
        if listing.problem is not None:
            self._waiting_for = f"the directory cannot be read: {listing.problem}"
        if listing.problem == self._told_directory:
            return
        if listing.problem is None:
            log.info("policy_directory_readable", directory=str(self._directory))
        else:
            log.error("policy_directory_unreadable", directory=str(self._directory), error=listing.problem)
        self._told_directory = listing.problem

    def _tell_files(self, planned: DirectoryPlan) -> None:
        """Once for each change of what is wrong with a file."""
        told: defaultdict[str, tuple[FileProblem, ...]] = defaultdict(tuple, planned.unreadable)
        for duplicate in planned.duplicates:
            told[duplicate.origin] += (duplicate,)
        for origin, problems in told.items():
            if self._told.get(origin) != problems:
                for problem in problems:
                    log.warning("policy_file_problem", file=origin, **problem_fields(problem))
        for origin in self._told.keys() - told.keys():
            log.info("policy_file_problem_over", file=origin)
        self._told = dict(told)
        self.problems = tuple(problem for problems in told.values() for problem in problems)
        self._metrics.unreadable.set(len(planned.unreadable))
        self._metrics.duplicates.set(len(planned.duplicates))

    def _tell_failure(self, failure: str) -> None:
        self._waiting_for = failure
        self._warn("policies_not_written", error=failure)

    def _warn(self, event: str, **fields: str) -> None:
        held_back = self._warnings.admit(event, time.monotonic())
        if held_back is not None:
            log.warning(event, alike_before=held_back, **fields)


def _identity(directory: Path) -> tuple[int, int]:
    """What tells a directory from another that stands in its place later. Raises OSError."""
    status = directory.stat()
    return (status.st_dev, status.st_ino)


def _records_of(stored: Mapping[PolicyKey, Stored[PolicyRecord]]) -> dict[PolicyKey, PolicyRecord]:
    return {key: entry.record for key, entry in stored.items() if entry.record is not None}


def problem_fields(problem: FileProblem) -> dict[str, str]:
    """The fields of a log event that tells of `problem`, beside `file`."""
    return {
        "object": problem.subject,
        "field": problem.field,
        "value": problem.value,
        "reason": problem.reason,
        "in_force": problem.in_force,
    }


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.policies = Gauge("tas_policies", "Policies of the directory that stand on the bus.", registry=registry)
        self.files = Gauge("tas_policy_files", "Policy files in the directory.", registry=registry)
        self.unreadable = Gauge(
            "tas_policy_files_unreadable", "Files of which something cannot be read.", registry=registry
        )
        self.duplicates = Gauge(
            "tas_policy_duplicates", "Policies left out since another file has one of the name.", registry=registry
        )
        self.readable = Gauge(
            "tas_policy_directory_readable", "1 while all of the directory can be listed, else 0.", registry=registry
        )
        self.writes = Counter("tas_policy_writes", "Policies written to the bus.", ["operation"], registry=registry)
        for operation in ("put", "remove"):
            self.writes.labels(operation)
