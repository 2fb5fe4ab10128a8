"""Policies of a directory for `tas up`: applied to the cluster in a box, as `kubectl apply` would after each save."""

import asyncio
from collections import defaultdict
from pathlib import Path

import structlog

from sandbox.cluster import Cluster
from sandbox.errors import PageNotFoundError, StatusError
from sandbox.resources import NAMESPACES, TASPOLICIES
from tas.directory import LAST_GOOD, NOTHING, DirectoryPlan, FileProblem, plan
from tas.manifest import policy_spec
from tas.policy import PolicyKey
from workers.policies import DirectoryReader, problem_fields

log = structlog.get_logger("applied")

LOOK_SECONDS = 0.2
"""How often the directory is read; files that have not changed are not parsed again."""

MANAGER = "tas-up"


class AppliedPolicies:
    """Keeps the cluster's policies those of the directory, by the rules of `tas run policies`.

    What cannot be read keeps what stood, a deleted file takes its policies away, a vanished directory nothing.
    """

    name = "applied-policies"

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._reader = DirectoryReader(directory)
        self._standing: dict[PolicyKey, tuple[str, int]] = {}  # the file it came from, and its generation there
        self._told: dict[str, tuple[FileProblem, ...]] = {}
        self._told_directory: str | None = None

    def unready(self) -> str | None:
        """Whoever follows the cluster says when it has the policies."""
        return None

    async def run(self) -> None:
        """Follows the directory until cancelled."""
        while True:
            listing = await asyncio.to_thread(self._reader.read)
            self._tell_directory(listing.problem)
            origins = {key: origin for key, (origin, _) in self._standing.items()}
            planned = plan(listing.files, origins, complete=listing.problem is None)
            self._apply(planned)
            await asyncio.sleep(LOOK_SECONDS)

    def _apply(self, planned: DirectoryPlan) -> None:
        told: defaultdict[str, tuple[FileProblem, ...]] = defaultdict(tuple, planned.unreadable)
        for duplicate in planned.duplicates:
            told[duplicate.origin] += (duplicate,)
        for key, filed in planned.stand.items():
            stands = (filed.origin, filed.generation)
            if self._standing.get(key) == stands:
                continue
            try:
                self._put(key, policy_spec(filed.policy))
            except (StatusError, PageNotFoundError) as error:
                problem = FileProblem(
                    origin=filed.origin,
                    subject=f"policy {key}",
                    field="metadata",
                    value=str(key),
                    reason=str(error) or "the cluster has no TASPolicies: their CustomResourceDefinition is away",
                    in_force=LAST_GOOD if key in self._standing else NOTHING,
                )
                told[filed.origin] += (problem,)
                continue
            self._standing[key] = stands
            log.info(
                "policy_stored",
                policy=str(key),
                file=filed.origin,
                generation=filed.generation,
                problems=[str(problem) for problem in filed.problems],
            )
        for key in planned.remove:
            origin, _ = self._standing.pop(key)
            if self._cluster.store.get(TASPOLICIES, key.namespace, key.name) is not None:
                self._cluster.delete(TASPOLICIES, key.namespace, key.name)
            log.info("policy_removed", policy=str(key), file=origin)
        self._tell_files(dict(told))

    def _put(self, key: PolicyKey, spec: object) -> None:
        """Raises StatusError."""
        if self._cluster.store.get(NAMESPACES, "", key.namespace) is None:
            self._cluster.create(NAMESPACES, "", {"metadata": {"name": key.namespace}}, manager=MANAGER)
        standing = self._cluster.store.get(TASPOLICIES, key.namespace, key.name)
        if standing is None:
            policy = {"apiVersion": TASPOLICIES.group_version, "kind": TASPOLICIES.kind, "spec": spec}
            self._cluster.create(TASPOLICIES, key.namespace, policy | {"metadata": {"name": key.name}}, manager=MANAGER)
            return
        patch = {"spec": _replacing(standing["spec"], spec)}
        self._cluster.patch(TASPOLICIES, key.namespace, key.name, patch, manager=MANAGER)

    def _tell_directory(self, problem: str | None) -> None:
        if problem == self._told_directory:
            return
        self._told_directory = problem
        if problem is None:
            log.info("policy_directory_readable", directory=str(self._directory))
        else:
            log.error("policy_directory_unreadable", directory=str(self._directory), error=problem)

    def _tell_files(self, told: dict[str, tuple[FileProblem, ...]]) -> None:
        for origin, problems in told.items():
            if self._told.get(origin) != problems:
                for problem in problems:
                    log.warning("policy_file_problem", file=origin, **problem_fields(problem))
        for origin in self._told.keys() - told.keys():
            log.info("policy_file_problem_over", file=origin)
        self._told = told


def _replacing(old: object, new: object) -> object:
    """The merge patch that makes `new` of `old`: at once, so that nobody sees anything in between."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return dict.fromkeys(old.keys() - new.keys()) | {key: _replacing(old.get(key), value) for key, value in new.items()}
