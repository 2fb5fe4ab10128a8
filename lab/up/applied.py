"""Applies the policies of a directory to the simulated cluster of `tas up`, as `kubectl apply` after each save."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
from aiohttp import web

from bus.connection import Bus
from bus.errors import BusError
from lab.sandbox.cluster import Cluster
from lab.sandbox.errors import PageNotFoundError, StatusError
from lab.sandbox.resources import NAMESPACES, TASPOLICIES
from tas.policy.directory import (
    LAST_GOOD,
    NOTHING,
    DirectoryPlan,
    FilePolicy,
    FileProblem,
    FileProblems,
    file_problems,
    plan,
)
from tas.policy.manifest import policy_spec
from tas.policy.policy import PolicyKey
from workers.following.policy_log import PolicyLog
from workers.following.synced import write_file_problems
from workers.policies.files import DirectoryReader
from workers.runtime import json_response

log = structlog.get_logger("applied")

POLL_INTERVAL_SECONDS = 0.2
"""How often the directory is read. Unchanged files are not parsed again."""

STORE_INTERVAL_SECONDS = 1.0

MANAGER = "tas-up"


class AppliedPolicies:
    """Applies the directory's policies to the cluster, by the rules of `tas run policies`.

    A file that cannot be read leaves its policies unchanged. A deleted file deletes its policies; a deleted directory
    deletes nothing.

    Attributes:
        problems: The invalid files, and the policies that the cluster refuses.
        file_problems: The same within limits.
    """

    name = "applied-policies"

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._reader = DirectoryReader(directory)
        self._applied: dict[PolicyKey, tuple[str, int]] = {}  # the file and the generation in the file
        self._reported_directory: str | None = None
        self._policy_log = PolicyLog(log)
        self.problems: tuple[FileProblem, ...] = ()
        self.file_problems = FileProblems()

    def unready(self) -> str | None:
        """Always ready: the worker `watch` reports when it has the policies."""
        return None

    def health_routes(self) -> Iterable[web.RouteDef]:
        """`/problems/files`: the invalid files, and what is in force instead. `/problems` has those of policies."""
        return [web.get("/problems/files", self._get_problems)]

    async def _get_problems(self, _request: web.Request) -> web.Response:
        return json_response({"problems": [msgspec.to_builtins(each) for each in self.problems]})

    async def run(self) -> None:
        """Follows the directory until cancelled."""
        while True:
            listing = await asyncio.to_thread(self._reader.read)
            self._log_directory(listing.problem)
            origins = {key: origin for key, (origin, _) in self._applied.items()}
            planned = plan(listing.files, origins, complete=listing.problem is None)
            self._apply(planned)
            await asyncio.sleep(POLL_INTERVAL_SECONDS)

    def _apply(self, planned: DirectoryPlan) -> None:
        problems: defaultdict[str, tuple[FileProblem, ...]] = defaultdict(tuple, planned.unreadable)
        for duplicate in planned.duplicates:
            problems[duplicate.origin] += (duplicate,)
        for key, filed in planned.desired.items():
            version = (filed.origin, filed.generation)
            if self._applied.get(key) == version:
                continue
            try:
                self._put(key, _as_written(filed))
            except (StatusError, PageNotFoundError) as error:
                problem = FileProblem(
                    origin=filed.origin,
                    subject=f"policy {key}",
                    field="metadata",
                    value=str(key),
                    reason=str(error)
                    or "the cluster does not serve TASPolicies: their CustomResourceDefinition is missing",
                    in_force=LAST_GOOD if key in self._applied else NOTHING,
                )
                problems[filed.origin] += (problem,)
                continue
            self._applied[key] = version
            self._policy_log.stored(key, filed.problems, file=filed.origin, generation=filed.generation)
        for key in planned.remove:
            origin, _ = self._applied.pop(key)
            if self._cluster.store.get(TASPOLICIES, key.namespace, key.name) is not None:
                self._cluster.delete(TASPOLICIES, key.namespace, key.name)
            self._policy_log.deleted(key, file=origin)
        if self._policy_log.files(dict(problems)):
            self.problems = tuple(problem for of_file in problems.values() for problem in of_file)
            self.file_problems = file_problems(self.problems)

    def _put(self, key: PolicyKey, spec: object) -> None:
        if self._cluster.store.get(NAMESPACES, "", key.namespace) is None:
            self._cluster.create(NAMESPACES, "", {"metadata": {"name": key.namespace}}, manager=MANAGER)
        current = self._cluster.store.get(TASPOLICIES, key.namespace, key.name)
        if current is None:
            policy = {"apiVersion": TASPOLICIES.group_version, "kind": TASPOLICIES.kind, "spec": spec}
            self._cluster.create(TASPOLICIES, key.namespace, policy | {"metadata": {"name": key.name}}, manager=MANAGER)
            return
        patch = {"spec": _replacing(current["spec"], spec)}
        self._cluster.patch(TASPOLICIES, key.namespace, key.name, patch, manager=MANAGER)

    def _log_directory(self, problem: str | None) -> None:
        if problem == self._reported_directory:
            return
        self._reported_directory = problem
        if problem is None:
            log.info("policy_directory_readable", directory=str(self._directory))
        else:
            log.error("policy_directory_unreadable", directory=str(self._directory), error=problem)


class StoredProblems:
    """Stores the problems of files on the bus, for `tas get policies`: the worker `watch` knows only the cluster."""

    name = "stored-problems"

    def __init__(self, bus: Bus, applied: AppliedPolicies) -> None:
        self._bus = bus
        self._applied = applied

    def unready(self) -> str | None:
        """Always ready."""
        return None

    async def run(self) -> None:
        """Compares every second until cancelled: each new list of `watch` is stored without problems."""
        while True:
            with suppress(BusError):  # the next comparison writes
                await write_file_problems(self._bus, self._applied.file_problems)
            await asyncio.sleep(STORE_INTERVAL_SECONDS)


def _as_written(filed: FilePolicy) -> object:
    """The spec of the file, so that the workers see and report its mistakes; without any that JSON cannot have."""
    if _has_large_number(filed.spec):
        return policy_spec(filed.policy)
    return msgspec.json.decode(msgspec.json.encode(filed.spec))


def _has_large_number(value: object) -> bool:
    """Whether an integer has more than 64 bits, which an API server does not take."""
    if isinstance(value, dict | list):
        return any(map(_has_large_number, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and value.bit_length() > 63


def _replacing(old: object, new: object) -> object:
    """The merge patch that changes `old` to `new` in one step."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return dict.fromkeys(old.keys() - new.keys()) | {key: _replacing(old.get(key), value) for key, value in new.items()}
