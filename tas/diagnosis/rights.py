"""Which rights are missing? The rights are those of deploy/rbac."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from tas.diagnosis.finding import Finding, Missing, Severity, command, finding, ok, some, unknown

NAMESPACE = "telemetry-aware-scheduling"
ORIGINAL = "telemetry-aware-scheduling-service-account"
FOLDER = "tas-files"
SELF = ""
"""Stands for the user of the kubeconfig."""

CUSTOM_METRICS = "custom.metrics.k8s.io"
"""The group in which a metric of nodes is the resource `nodes/<metric>`."""


class Right(NamedTuple):
    """A right in one namespace or the whole cluster; `resource` with its subresource, such as `nodes/status`."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}{where}"


def rights_in(text: str) -> tuple[Right, ...]:
    """The rights of a text such as `get list: nodes; patch: nodes/status; create: events in default`."""
    found: list[Right] = []
    for part in text.split("; "):
        verbs, _, resources = part.partition(": ")
        for each in resources.split(", "):
            full, _, namespace = each.partition(" in ")
            resource, _, group = full.partition(".")
            found += [Right(verb, resource, group, namespace) for verb in verbs.split()]
    return tuple(found)


class Reviewed(msgspec.Struct, frozen=True, kw_only=True):
    """What the API server says about the rights of one account.

    Attributes:
        account: The name of the ServiceAccount; `SELF`: the user of the kubeconfig.
        allowed: By right.
    """

    account: str
    allowed: Mapping[Right, bool]


def check_rights(reviews: list[Reviewed] | Missing) -> Iterator[Finding]:
    """The findings about rights, one for each account."""
    if isinstance(reviews, Missing):
        yield unknown("rights.accounts", reviews)
        return
    for review in reviews:
        who = "the user of the kubeconfig" if review.account == SELF else review.account
        lacking = [right for right, allowed in review.allowed.items() if not allowed]
        if not lacking:
            yield ok("rights.accounts", f"{who} has all {len(review.allowed)} rights")
            continue
        mend = "apply the roles again"
        if review.account == SELF:
            mend = "bind these roles to the user, or run each worker with its account"
        what = f"{who} may not: {some(map(str, lacking), 6)}"
        yield finding("rights.accounts", Severity.ERROR, what, mend, run=_apply(review.account))


def _apply(account: str) -> str:
    """Writes the roles of an account to a new folder, and applies them."""
    names: tuple[str, ...] = ("",)
    if account == ORIGINAL:
        names = ("watch.yaml", "labels.yaml", "collect.yaml", "original.yaml")
    elif account != SELF:
        names = (f"{account.removeprefix('tas-')}.yaml",)
    files = [word for name in names for word in ("-f", f"{FOLDER}/rbac/{name}".rstrip("/"))]
    return f"{command('tas', 'files', '--to', FOLDER)} && {command('kubectl', 'apply', *files)}"
