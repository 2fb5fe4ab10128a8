"""Policies from a directory: TASPolicy files in, POLICIES out.

The worker lives here: a pass reads the complete directory and writes the differences. A pass runs after each change
that the operating system reports (`directory_changes`), and every few seconds, since network file systems report no
changes. Every write is conditional, so several replicas may do the same.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import NODES, POLICIES, SYNCED
from bus.connection import Bus, Epoch
from bus.errors import BusError
from bus.kinds import POLICY_RECORDS
from bus.records.policies import PolicyRecord
from tas.policy.directory import DirectoryPlan, FileProblem, FileProblems, file_problems, plan
from tas.policy.policy import PolicyKey
from tas.values.backoff import Backoff
from tas.values.nouns import counted
from workers.following.policy_log import PolicyLog
from workers.following.records import Records, Stored, Write
from workers.following.synced import write_synced
from workers.policies.directory_changes import DirectoryChanges
from workers.policies.files import DirectoryReader, FolderListing, policy_record
from workers.process.logs import ThrottledLog
from workers.process.tasks import set_within, together
from workers.runtime import json_response

log = structlog.get_logger("policies")

REREAD_SECONDS = 10.0
"""How often the directory is read without a reported change; unchanged files are not parsed again."""

RETRY = Backoff(first=0.1, longest=2.0)
"""The waits after failed passes."""


class PolicyDirectory:
    """The worker. Its state can be rebuilt from POLICIES and the directory.

    Attributes:
        problems: Invalid files, and policies that are not stored because another file has the same name.
    """

    name = "policies"

    def __init__(
        self, bus: Bus, *, directory: Path, registry: CollectorRegistry, reread_seconds: float = REREAD_SECONDS
    ) -> None:
        self._bus = bus
        self._directory = directory
        self._reread_seconds = reread_seconds
        self._reader = DirectoryReader(directory)
        # The records before a wipe of the bus: for files that cannot be read now, there is no other copy.
        self._previous: dict[PolicyKey, PolicyRecord] = {}
        self._records = Records(
            bus,
            POLICY_RECORDS,
            on_epoch=self._start_epoch,
            on_batch=self._caught_up_wakes,
            on_written=self._note_written,
        )
        self._wake = asyncio.Event()
        self._changes = DirectoryChanges(directory, on_change=self._wake.set, on_failure=self._report_unwatched)
        self._read_once = False
        self._synced_epoch: Epoch | None = None
        self._waiting_for = "the directory has not been read yet"
        self._reported_directory: str | None = None
        self._throttled = ThrottledLog(log)
        self._policy_log = PolicyLog(log)
        self.problems: tuple[FileProblem, ...] = ()
        self._listed_problems = FileProblems()
        self._metrics = _Metrics(registry)

    def unready(self) -> str | None:
        """Why POLICIES may differ from the directory; None when all is stored in this epoch."""
        if self._synced_epoch is not None and self._synced_epoch is self._records.epoch:
            return None
        if not self._records.caught_up:
            return f"{POLICIES.name}: not caught up with the bus"
        return self._waiting_for

    def concerns(self) -> Iterator[str]:
        """A directory that cannot be read any more."""
        if self._reported_directory is not None and self.unready() is None:
            yield f"the directory cannot be read, so no change of it counts: {self._reported_directory}"

    def health_routes(self) -> Iterable[web.RouteDef]:
        """`/problems`: what is not in force, and why."""
        return [web.get("/problems", self._get_problems)]

    async def _get_problems(self, _request: web.Request) -> web.Response:
        return json_response({"problems": [msgspec.to_builtins(problem) for problem in self.problems]})

    async def run(self) -> None:
        """Follows the directory until cancelled."""
        await together(self._records.run(), self._changes.run(), self._reconcile())

    def _start_epoch(self) -> None:
        self._previous.update(_records_of(self._records.stored))
        self._wake.set()

    def _caught_up_wakes(self) -> None:
        if self._synced_epoch is not self._records.epoch:
            self._wake.set()

    async def _reconcile(self) -> None:
        """Runs a pass at each wake, and every few seconds. Never ends."""
        failures = 0
        while True:
            self._wake.clear()
            if await self._pass():
                failures, pause = 0, self._reread_seconds
            else:
                failures += 1
                pause = RETRY.after(failures)
            await set_within(self._wake, pause)

    async def _pass(self) -> bool:
        """Reads the directory and writes the differences. Returns whether all is stored."""
        epoch, caught_up = self._records.epoch, self._records.caught_up
        stored = dict(self._records.stored)
        listing = await asyncio.to_thread(self._reader.read)
        # After a long pause the writes expire. The revisions are older than this read of the directory: if another
        # replica has written since, the writes conflict.
        read_at = time.monotonic()
        self._report_directory(listing)
        if epoch is None or not caught_up:
            return False
        previous = {key: record for key, record in self._previous.items() if key not in stored}
        current = {key: record.origin for key, record in _records_of(stored).items()}
        planned = plan(
            listing.files,
            current | {key: record.origin for key, record in previous.items()},
            complete=listing.problem is None,
        )
        self._report_files(planned)
        desired = {key: policy_record(filed) for key, filed in planned.desired.items()}
        kept = {key: record for key, record in previous.items() if key not in planned.remove}
        removed = {key for key in planned.remove if key in current}
        if not await self._write_all(kept | desired, removed, stored, read_at):
            return False
        if self._records.epoch is epoch:
            self._previous.clear()
        else:  # the bus was wiped again meanwhile, and lacks them again, but for those whose files are gone
            for key in planned.remove:
                self._previous.pop(key, None)
        self._read_once = self._read_once or listing.problem is None
        count = len((current.keys() - removed) | kept.keys() | desired.keys())
        self._metrics.policies.set(count)
        # Until the complete directory has been read once, a missing file does not mean a deleted one.
        return self._read_once and await self._write_synced(epoch, count)

    async def _write_all(
        self,
        desired: Mapping[PolicyKey, PolicyRecord],
        removed: Collection[PolicyKey],
        stored: Mapping[PolicyKey, Stored[PolicyRecord]],
        read_at: float,
    ) -> bool:
        """Writes the differences from what is stored. Returns whether all writes succeeded."""
        writes: dict[PolicyKey, Write[PolicyRecord]] = {}
        for key, record in desired.items():
            current = stored.get(key, Stored(0))
            if not POLICY_RECORDS.same(key, record, current.record):
                writes[key] = Write(record=record, revision=current.revision, read_at=read_at)
        for key in removed:
            writes[key] = Write(record=None, revision=stored[key].revision, read_at=read_at)
        failures = await self._records.write(writes)
        if failures:
            first = next(iter(failures.values()))
            self._report_failure(f"{len(failures)} of {counted(len(writes), 'policy')} not written: {first}")
        return not failures

    def _note_written(self, key: PolicyKey, record: PolicyRecord | None, before: PolicyRecord | None) -> None:
        if record is None:
            self._metrics.writes.labels("delete").inc()
            self._policy_log.deleted(key, file=before.origin if before else None)
            return
        self._metrics.writes.labels("put").inc()
        self._policy_log.stored(key, record.problems, file=record.origin, generation=record.generation)

    async def _write_synced(self, epoch: Epoch, count: int) -> bool:
        """Writes `_synced` in both buckets. Returns whether it is written."""
        try:
            await write_synced(
                self._bus,
                POLICIES,
                epoch,
                count=count,
                writer="directory",
                cluster=False,
                file_problems=self._listed_problems,
            )
            # Without a cluster every valid name is a node.
            nodes_epoch = await self._bus.epoch(NODES)
            await write_synced(self._bus, NODES, nodes_epoch, count=0, writer="directory", cluster=False)
        except BusError as error:
            self._report_failure(f"{SYNCED} not written: {error}")
            return False
        if self._synced_epoch is not epoch:
            self._synced_epoch = epoch
            log.info("policies_synced", directory=str(self._directory), count=count)
        return True

    def _report_directory(self, listing: FolderListing) -> None:
        """Logs each change of the directory's problem."""
        self._metrics.readable.set(listing.problem is None)
        self._metrics.files.set(len(listing.files))
        if listing.problem is not None:
            self._waiting_for = f"the directory cannot be read: {listing.problem}"
        if listing.problem == self._reported_directory:
            return
        if listing.problem is None:
            log.info("policy_directory_readable", directory=str(self._directory))
        else:
            log.error("policy_directory_unreadable", directory=str(self._directory), error=listing.problem)
        self._reported_directory = listing.problem

    def _report_unwatched(self, failure: str) -> None:
        if self._reported_directory is None:
            self._throttled.warning("policy_directory_not_watched", directory=str(self._directory), error=failure)

    def _report_files(self, planned: DirectoryPlan) -> None:
        reported = planned.problems
        if self._policy_log.files(reported):
            self.problems = tuple(problem for problems in reported.values() for problem in problems)
            self._listed_problems = file_problems(self.problems)
        self._metrics.unreadable.set(len(planned.unreadable))
        self._metrics.duplicates.set(len(planned.duplicates))

    def _report_failure(self, failure: str) -> None:
        self._waiting_for = failure
        self._throttled.warning("policies_not_written", error=failure)


def _records_of(stored: Mapping[PolicyKey, Stored[PolicyRecord]]) -> dict[PolicyKey, PolicyRecord]:
    return {key: entry.record for key, entry in stored.items() if entry.record is not None}


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self.policies = gauge("tas_policies", "Policies of the directory that are stored on the bus.")
        self.files = gauge("tas_policy_files", "Policy files in the directory.")
        self.unreadable = gauge("tas_policy_files_unreadable", "Files with invalid content.")
        self.duplicates = gauge("tas_policy_duplicates", "Policies not stored because another file has the same name.")
        self.readable = gauge("tas_policy_directory_readable", "1 if the complete directory can be listed, else 0.")
        self.writes = Counter("tas_policy_writes", "Policies written to the bus.", ["operation"], registry=registry)
        for operation in ("put", "delete"):
            self.writes.labels(operation)
