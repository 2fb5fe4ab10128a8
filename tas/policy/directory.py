"""Which policies of a directory are in force when files are added, deleted, unreadable or duplicate.

An unreadable edit is not a deletion: the policies of the last good version stay in force until the file is readable
again, or deleted. If two files have a policy of one name, the first path counts.
"""

import hashlib
import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tas.errors import InvalidInputError, shortened
from tas.policy.manifest import is_another_kind, parse_manifest, reason_alone
from tas.policy.policy import Policy, PolicyKey, Problem

_UID_NAMESPACE = uuid.UUID("8c5a2c0e-6e0f-5d0f-9f6b-3b1f6f1f7c55")


class FilePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy of a file.

    `origin` is the path of the file within the directory. `generation` changes exactly when the spec changes.
    `spec` is as written in the file. `problems` are the accepted problems.
    """

    origin: str
    policy: Policy
    generation: int
    spec: Any = None
    problems: tuple[Problem, ...] = ()


MAX_FILE_PROBLEMS = 100
"""The most problems of a file that are reported: each is a log line, and a file of 1 MiB can have 90,000."""

_POLICY = "policy "

LAST_GOOD = "last good version"
OTHER = "another definition of this name"
NOTHING = "nothing"


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file that is not in force: the object, the field, the value, and the reason.

    `in_force` is what is in force instead: `LAST_GOOD`, `OTHER` or `NOTHING`.
    """

    origin: str
    subject: str
    field: str
    value: str
    reason: str
    in_force: str = NOTHING

    def __str__(self) -> str:
        return f"file {self.origin}: {self.subject}: {self.field} = {self.value}: {self.reason}"


MAX_LISTED_PROBLEMS = 100
MAX_LISTED_BYTES = 64 << 10
"""The most problems, and the most bytes of their JSON, that are stored on the bus: a directory may have any number."""


class FileProblems(msgspec.Struct, frozen=True, kw_only=True):
    """The problems of a directory's files that are listed, and the number of all others."""

    listed: tuple[FileProblem, ...] = ()
    others: int = 0

    def leave_last_good(self, key: PolicyKey, origin: str) -> bool:
        """Whether a stored policy is the last good version of a file that has been edited since then."""
        return any(
            problem.in_force == LAST_GOOD
            and problem.origin == origin
            and problem.subject in ("file", f"{_POLICY}{key}")
            for problem in self.listed
        )


def file_problems(problems: Iterable[FileProblem]) -> FileProblems:
    """`problems` within the limits. The first problem of each file comes before any second one."""
    found = list(problems)
    seen: Counter[str] = Counter()
    ranks = []
    for problem in found:
        ranks.append(seen[problem.origin])
        seen[problem.origin] += 1
    listed: list[int] = []
    free = MAX_LISTED_BYTES
    for index in sorted(range(len(found)), key=ranks.__getitem__)[:MAX_LISTED_PROBLEMS]:
        free -= len(msgspec.json.encode(found[index]))
        if free < 0:
            break
        listed.append(index)
    return FileProblems(listed=tuple(found[index] for index in sorted(listed)), others=len(found) - len(listed))


class PolicyFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one file: its policies in order, and the problems of its unreadable parts."""

    origin: str
    policies: tuple[FilePolicy, ...] = ()
    problems: tuple[FileProblem, ...] = ()


def policy_file(origin: str, manifests: Sequence[object]) -> PolicyFile:
    """The content of a file with these manifests, each as decoded from JSON or YAML. Other kinds are left out."""
    if not manifests:
        # No deletion: a file that is just being written is empty too.
        return unreadable_file(origin, "content", "", "holds no policy; to remove its policies, remove the file")
    policies: list[FilePolicy] = []
    problems: list[FileProblem] = []
    for manifest in manifests:
        if is_another_kind(manifest):
            continue
        parsed = _file_policy(origin, manifest)
        if isinstance(parsed, FilePolicy):
            policies.append(parsed)
        else:
            problems += parsed
    if len(problems) > MAX_FILE_PROBLEMS:
        further = unreadable_file(
            origin, "content", f"{len(problems)} problems", f"only the first {MAX_FILE_PROBLEMS} are listed"
        )
        problems[MAX_FILE_PROBLEMS:] = further.problems
    return PolicyFile(origin=origin, policies=tuple(policies), problems=tuple(problems))


def unreadable_file(origin: str, field: str, value: str, reason: str) -> PolicyFile:
    """A file of which nothing can be read."""
    problem = FileProblem(origin=origin, subject="file", field=field, value=shortened(value), reason=reason)
    return PolicyFile(origin=origin, problems=(problem,))


def file_policy_uid(key: PolicyKey) -> str:
    """The uid of a policy that no API server has given one: the same in every process."""
    return str(uuid.uuid5(_UID_NAMESPACE, str(key)))


def generation_of(spec: object) -> int:
    """A positive number that changes exactly when the spec does; small enough for every JSON reader (48 bits)."""
    canonical = json.dumps(spec, sort_keys=True)  # the one encoder that takes integers of any size
    return int.from_bytes(hashlib.sha256(canonical.encode()).digest()[:6]) + 1


def _file_policy(origin: str, manifest: object) -> FilePolicy | list[FileProblem]:
    try:
        policy, problems = parse_manifest(manifest)
    except InvalidInputError as error:
        return [
            FileProblem(origin=origin, subject=error.subject, field=error.field, value=error.value, reason=error.reason)
        ]
    subject = f"{_POLICY}{policy.key}"
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
    return FilePolicy(origin=origin, policy=policy, generation=generation_of(spec), spec=spec, problems=problems)


class DirectoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The policies to store, the policies to remove, and the problems to report.

    A stored policy that is in neither `desired` nor `remove` stays unchanged.
    """

    desired: Mapping[PolicyKey, FilePolicy]
    remove: frozenset[PolicyKey]
    unreadable: Mapping[str, tuple[FileProblem, ...]]
    duplicates: tuple[FileProblem, ...]

    @property
    def problems(self) -> Mapping[str, tuple[FileProblem, ...]]:
        """All that is to be reported, by file."""
        found: defaultdict[str, tuple[FileProblem, ...]] = defaultdict(tuple, self.unreadable)
        for duplicate in self.duplicates:
            found[duplicate.origin] += (duplicate,)
        return dict(found)


def plan(files: Iterable[PolicyFile], stored: Mapping[PolicyKey, str], *, complete: bool) -> DirectoryPlan:
    """The plan for a directory with `files`, while the policies `stored` (each with the path of its file) are in force.

    An absence is a deletion only with a `complete` listing of the directory, and only for a policy from a file: the
    origin "" means that the policy has another writer.
    """
    stored_by_file = defaultdict(list)
    for key, origin in stored.items():
        stored_by_file[origin].append(key)
    holder: dict[PolicyKey, str] = {}
    desired: dict[PolicyKey, FilePolicy] = {}
    unreadable: dict[str, tuple[FileProblem, ...]] = {}
    duplicates: list[FileProblem] = []
    for file in sorted(files, key=lambda file: file.origin):
        for file_policy in file.policies:
            key = file_policy.policy.key
            if key in holder:
                duplicates.append(_duplicate(file_policy, holder[key]))
                continue
            holder[key] = file.origin
            desired[key] = file_policy
        if file.problems:
            unreadable[file.origin] = file.problems
            # The unreadable part may be any of the file's stored policies, so none of them is removed.
            for key in stored_by_file[file.origin]:
                holder.setdefault(key, file.origin)
    remove = frozenset(key for key, origin in stored.items() if complete and origin and key not in holder)
    kept = {key: origin for key, origin in holder.items() if key not in desired}
    # Sets of names, since a file can have thousands of problems, and the directory as many policies.
    in_force = _InForce(
        others=frozenset(map(str, desired)), kept=frozenset(map(str, kept)), files=frozenset(kept.values())
    )
    unreadable = {
        origin: tuple(msgspec.structs.replace(problem, in_force=in_force.instead_of(problem)) for problem in problems)
        for origin, problems in unreadable.items()
    }
    return DirectoryPlan(desired=desired, remove=remove, unreadable=unreadable, duplicates=tuple(duplicates))


class _InForce(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force: the policies of readable parts, and those of earlier versions with their files."""

    others: frozenset[str]
    kept: frozenset[str]
    files: frozenset[str]

    def instead_of(self, problem: FileProblem) -> str:
        if problem.subject.startswith(_POLICY):
            name = problem.subject.removeprefix(_POLICY)
            if name in self.others:
                return OTHER
            return LAST_GOOD if name in self.kept else NOTHING
        return LAST_GOOD if problem.origin in self.files else NOTHING


def _duplicate(file_policy: FilePolicy, holder: str) -> FileProblem:
    return FileProblem(
        origin=file_policy.origin,
        subject=f"{_POLICY}{file_policy.policy.key}",
        field="metadata.name",
        value=repr(file_policy.policy.key.name),
        reason=f"the policy of this name in file {holder} is in force",
        in_force=OTHER,
    )
