"""Which rights are missing? The rights are those of deploy/rbac."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from tas.diagnosis.finding import Finding, Missing, Severity, command, finding, ok, some, unknown
from tas.policy.policy import API_VERSION

NAMESPACE = "telemetry-aware-scheduling"
ORIGINAL = "telemetry-aware-scheduling-service-account"
FOLDER = "tas-files"
SELF = ""
"""Stands for the user of the kubeconfig."""

CUSTOM_METRICS = "custom.metrics.k8s.io"
"""The group in which a metric of nodes is the resource `nodes/<metric>`."""

_POLICIES = API_VERSION.partition("/")[0]


class Right(NamedTuple):
    """A right in one namespace or the whole cluster; `resource` with its subresource, such as `nodes/status`."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}{where}"


def _rights(verbs: str, *resources: str, group: str = "") -> tuple[Right, ...]:
    return tuple(Right(verb, resource, group) for resource in resources for verb in verbs.split())


_WATCH = (
    *_rights("list watch", "taspolicies", group=_POLICIES),
    *_rights("patch", "taspolicies/status", group=_POLICIES),
    *_rights("get list watch", "nodes"),
    *_rights("list watch", "pods"),
)
_LABELS = (
    *_rights("get list watch patch", "nodes"),
    *_rights("list", "taspolicies", group=_POLICIES),
    Right("create", "events", namespace="default"),
)
_MARKS = (
    *_rights("get list watch patch", "nodes"),
    *_rights("patch", "nodes/status"),
    *_rights("list", "taspolicies", group=_POLICIES),
)
_RESOURCES = (*_rights("get list watch", "nodes"), *_rights("patch", "nodes/status"))
_COLLECT = _rights("list", "nodes", group="metrics.k8s.io")
_NOTIFY = _rights("create patch", "events", group="events.k8s.io")
ACCOUNTS: Mapping[str, tuple[Right, ...]] = {
    "tas-watch": _WATCH,
    "tas-labels": _LABELS,
    "tas-collect": _COLLECT,
    "tas-resources": _RESOURCES,
    "tas-marks": _MARKS,
    "tas-notify": _NOTIFY,
    "tas-gpu": (*_rights("get", "pods"), *_rights("create", "pods/binding")),
    "tas-inventory": (*_rights("list watch patch", "nodes"), *_rights("get list watch", "pods")),
    "tas-evictions": (*_rights("get", "nodes"), *_rights("get list watch patch", "pods")),
    "tas-all": tuple(dict.fromkeys((*_WATCH, *_LABELS, *_MARKS, *_RESOURCES, *_COLLECT, *_NOTIFY))),
}
"""The rights of each account in deploy/rbac, without the metrics of `CUSTOM_METRICS`: each cluster has other ones."""

TOGETHER: tuple[Right, ...] = tuple(dict.fromkeys((*_WATCH, *_LABELS, *_COLLECT)))
"""The rights that `tas run all` always needs."""

FILES: Mapping[str, str] = {ORIGINAL: "original.yaml"} | {
    name: f"{name.removeprefix('tas-')}.yaml" for name in ACCOUNTS
}


class Reviewed(msgspec.Struct, frozen=True, kw_only=True):
    """What the API server says about the rights of one account.

    Attributes:
        account: The name of the ServiceAccount; `SELF`: the user of the kubeconfig.
        allowed: By right.
    """

    account: str
    allowed: Mapping[Right, bool]


def rights_of(account: str) -> tuple[Right, ...]:
    """The rights that an account needs."""
    return ACCOUNTS.get(account, TOGETHER)


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
    names: tuple[str, ...] = (FILES.get(account, ""),)
    if account == ORIGINAL:
        names = ("watch.yaml", "labels.yaml", "collect.yaml", FILES[ORIGINAL])
    files = [word for name in names for word in ("-f", f"{FOLDER}/rbac/{name}".rstrip("/"))]
    return f"{command('tas', 'files', '--to', FOLDER)} && {command('kubectl', 'apply', *files)}"
