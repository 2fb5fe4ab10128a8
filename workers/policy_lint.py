"""What is wrong with manifests of TASPolicy, line by line, before anybody applies them.

The rules are those of `tas.manifest`, which reads policies in force; what it calls refused, the CRD refuses too.
"""

import re
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from tas.errors import InvalidInputError, shortened
from tas.manifest import parse_manifest, reason_alone
from tas.policy import API_VERSION, KIND, PolicyKey
from workers.manifests import Lines, ManifestError, objects, read_yaml_lines

_LAST_STEP = re.compile(r"(\.[^.\[]+|\[[^\[]*\]|^[^.\[]+)$")
_WHERE = re.compile(r"line (\d+)")
_GROUP = API_VERSION.partition("/")[0]


class Severity(StrEnum):
    """`error`: the API server would not take it. `warning`: it is taken, and a part of it does not count."""

    ERROR = "error"
    WARNING = "warning"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong: where, with whom, which field, what stood there, and why. `line` counts from 1."""

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
    """What a file holds: its policies, the number of objects of other kinds, and what is wrong."""

    policies: tuple[tuple[PolicyKey, int], ...] = ()
    others: int = 0
    findings: tuple[Finding, ...] = ()


def lint(file: str, data: bytes) -> Linted:
    """All that is wrong with the manifests in `data`, YAML or JSON; objects of other kinds are only counted."""
    try:
        documents = read_yaml_lines(data)  # JSON is read so too, for its lines
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
        if _is_another_kind(manifest):
            others += 1
            continue
        try:
            policy, problems = parse_manifest(manifest)
        except InvalidInputError as error:
            finding = Finding(
                file=file,
                line=_line_of(lines, prefix, error.field),
                severity=Severity.ERROR,
                subject=error.subject,
                field=error.field,
                value=error.value,
                reason=error.reason,
            )
            findings.append(finding)
            continue
        policies.append((policy.key, _line_of(lines, prefix, "metadata.name")))
        findings += (
            Finding(
                file=file,
                line=_line_of(lines, prefix, problem.field),
                severity=Severity.ERROR if problem.refused else Severity.WARNING,
                subject=f"policy {policy.key}",
                field=problem.field,
                value=problem.value,
                reason=reason_alone(problem),
            )
            for problem in problems
        )
    return Linted(policies=tuple(policies), others=others, findings=tuple(findings))


def same_names(linted: dict[str, Linted]) -> Iterator[Finding]:
    """A warning for each policy whose name stands a second time: who applies both files gets only one of them."""
    first: dict[PolicyKey, str] = {}
    for file, each in linted.items():
        for key, line in each.policies:
            if key in first:
                reason = f"the same name stands at {first[key]}"
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
    """The objects of a document, each with the field of the document that holds it."""
    for index, each in enumerate(objects([document])):
        yield each, "" if each is document else f"items[{index}]"


def _is_another_kind(manifest: object) -> bool:
    """Whether it is plainly something else; what is nearly a policy is not."""
    if not isinstance(manifest, dict):
        return False
    version, kind = manifest.get("apiVersion"), manifest.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    return version.partition("/")[0] != _GROUP and kind.lower() != KIND.lower()


def _line_of(lines: Lines, prefix: str, field: str) -> int:
    """The line of a field, or of the nearest that stands around it: what is missing has no line of its own."""
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
