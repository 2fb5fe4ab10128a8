"""Finds the problems of TASPolicy manifests, with their lines, before somebody applies them.

The parser is `tas.policy.manifest`, as for policies in force; what that parser refuses, the CRD refuses, too.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from tas.errors import InvalidInputError, shortened
from tas.policy.manifest import is_another_kind, parse_manifest, reason_alone
from tas.policy.policy import API_VERSION, KIND, Policy, PolicyKey, Problem
from workers.process.manifests import Lines, ManifestError, objects, read_yaml_lines

_LAST_STEP = re.compile(r"(\.[^.\[]+|\[[^\[]*\]|^[^.\[]+)$")
_WHERE = re.compile(r"line (\d+)")


class Severity(StrEnum):
    """`error`: the API server refuses the object. `warning`: it is accepted, but a part of it has no effect."""

    ERROR = "error"
    WARNING = "warning"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem: place, object, field, value and reason. `line` counts from 1."""

    file: str
    line: int
    severity: Severity
    subject: str
    field: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.severity}: {self.subject}: {self.field} = {self.value}: {self.reason}"


class Linted(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a file: its policies with their lines, the number of other objects, and the problems."""

    policies: tuple[tuple[PolicyKey, int], ...] = ()
    others: int = 0
    findings: tuple[Finding, ...] = ()


def lint(file: str, data: bytes) -> Linted:
    """The problems of the manifests in `data`, YAML or JSON; objects of other kinds are only counted."""
    try:
        documents = read_yaml_lines(data)  # also for JSON, to get the lines
        found = [(each, lines, prefix) for document, lines in documents for each, prefix in _objects(document)]
    except ManifestError as error:
        where = _WHERE.search(str(error))
        line = int(where[1]) if where else 1
        return Linted(findings=(_unreadable(file, line, data, str(error)),))
    if not found:
        return Linted(findings=(_unreadable(file, 1, data, "holds no policy"),))
    policies: list[tuple[PolicyKey, int]] = []
    findings: list[Finding] = []
    others = 0
    for manifest, lines, prefix in found:
        if is_another_kind(manifest):
            others += 1
            continue
        policy, errors, problems = _parsed(manifest)
        findings += (
            Finding(
                file=file,
                line=_line_of(lines, prefix, error.field),
                severity=Severity.ERROR,
                subject=errors[0].subject,
                field=error.field,
                value=error.value,
                reason=error.reason,
            )
            for error in errors
        )
        if policy is None:
            continue
        if not errors:
            policies.append((policy.key, _line_of(lines, prefix, "metadata.name")))
        subject = errors[0].subject if errors else f"policy {policy.key}"
        findings += (
            Finding(
                file=file,
                line=_line_of(lines, prefix, problem.field),
                severity=Severity.ERROR if problem.refused else Severity.WARNING,
                subject=subject,
                field=problem.field,
                value=problem.value,
                reason=reason_alone(problem),
            )
            for problem in problems
        )
    return Linted(policies=tuple(policies), others=others, findings=tuple(findings))


def same_names(linted: dict[str, Linted]) -> Iterator[Finding]:
    """A warning for each policy whose name was used before: if both are applied, only one exists."""
    first: dict[PolicyKey, str] = {}
    for file, each in linted.items():
        for key, line in each.policies:
            if key in first:
                reason = f"the same name is at {first[key]}"
                yield Finding(
                    file=file,
                    line=line,
                    severity=Severity.WARNING,
                    subject=f"policy {key}",
                    field="metadata.name",
                    value=repr(key.name),
                    reason=reason,
                )
            else:
                first[key] = f"{file}:{line}"


def _objects(document: object) -> Iterator[tuple[object, str]]:
    """The objects of a document, each with its field in the document."""
    for index, each in enumerate(objects([document])):
        yield each, "" if each is document else f"items[{index}]"


def _parsed(manifest: object) -> tuple[Policy | None, list[InvalidInputError], tuple[Problem, ...]]:
    """The policy, the invalid fields of its head, and the problems of its spec, which are found all the same."""
    errors: list[InvalidInputError] = []
    while True:
        try:
            policy, problems = parse_manifest(manifest)
        except InvalidInputError as error:
            errors.append(error)
            if not isinstance(manifest, dict) or not manifest:  # an empty object lacks everything: that is one problem
                return None, errors, ()
            manifest = _with_valid(manifest, error.field)
        else:
            return policy, errors, problems


def _with_valid(manifest: Mapping[object, object], field: str) -> dict[object, object]:
    """The manifest with a valid value in an invalid field of its head."""
    metadata = manifest.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    head: dict[str, object] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "unnamed"},
        "metadata.name": known | {"name": "unnamed"},
        "metadata.namespace": known | {"namespace": "default"},
    }
    return {**manifest, field.partition(".")[0]: head[field]}


def _line_of(lines: Lines, prefix: str, field: str) -> int:
    """The line of a field; if the field is missing, the line of the nearest field around it."""
    path = f"{prefix}.{field}" if prefix and field else prefix or field
    while path and path not in lines:
        shorter = _LAST_STEP.sub("", path)
        path = shorter if shorter != path else ""
    return lines.get(path, 1)


def _unreadable(file: str, line: int, data: bytes, reason: str) -> Finding:
    return Finding(
        file=file,
        line=line,
        severity=Severity.ERROR,
        subject="file",
        field="content",
        value=shortened(data.decode(errors="replace")),
        reason=reason,
    )
