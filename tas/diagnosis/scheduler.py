"""Is the scheduler configured: an entry for the extender, valid, alike on all control plane nodes?"""

from collections.abc import Iterator, Sequence

import msgspec

from tas.configuring.configuration import plugins_of, with_extenders
from tas.configuring.control_planes import SchedulerState, differences
from tas.configuring.extenders import DEFAULT_WEIGHT, TELEMETRY_RESOURCE, Object
from tas.configuring.versions import EMPTY_NODES
from tas.diagnosis.descheduler import OFFER, NodeState
from tas.diagnosis.extender import CONFIGURE
from tas.diagnosis.finding import Finding, Missing, Severity, finding, none_checked, ok, some, unknown
from tas.diagnosis.url import url_of
from tas.errors import InvalidInputError, shortened, without_password

NEWEST = 36
"""The minor version whose rules apply where that of the scheduler is not known."""

LOW_WEIGHT = 3
ON_EACH = "on each control plane node"


class SchedulerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler.

    Attributes:
        configuration: Its KubeSchedulerConfiguration, as decoded.
        origin: The file of the configuration.
        minor: Its minor version; None: not known.
        control_planes: The schedulers of all control plane nodes.
    """

    configuration: object | Missing
    origin: str = ""
    minor: int | None = None
    control_planes: Sequence[SchedulerState] | Missing
    nodes: Sequence[NodeState] | Missing


def entry_of(configuration: object) -> Object | None:
    """The entry of `extenders` for telemetry: with the resource of telemetry, else for all pods. None without one."""
    entries = configuration.get("extenders") if isinstance(configuration, dict) else None
    mappings = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    named = [each for each in mappings if TELEMETRY_RESOURCE in managed_by(each)]
    every = [
        each for each in mappings if not managed_by(each) and (each.get("filterVerb") or each.get("prioritizeVerb"))
    ]
    return next(iter(named or every), None)


def managed_by(entry: Object) -> frozenset[str]:
    """The names in `managedResources`."""
    managed = entry.get("managedResources")
    return frozenset(
        str(each["name"])
        for each in (managed if isinstance(managed, list) else [])
        if isinstance(each, dict) and "name" in each
    )


def check_scheduler(facts: SchedulerFacts) -> Iterator[Finding]:
    """The findings about the scheduler."""
    yield _alike(facts.control_planes)
    if isinstance(facts.configuration, Missing):
        yield _configured_by_annotations(facts.configuration, facts.control_planes)
        yield from none_checked("scheduler", facts.configuration, but=("scheduler.configured", "scheduler.alike"))
        return
    entry = entry_of(facts.configuration)
    yield _configured(facts.origin, entry)
    yield _valid(facts)
    if entry is None:
        return
    yield _verifies(entry)
    yield _weight(entry)
    yield _names(entry, facts.minor)
    yield _outage(entry)
    yield _resource(entry, facts.nodes)


def _configured(origin: str, entry: Object | None) -> Finding:
    if entry is None:
        what = f"{origin} has no extender for telemetry"
        return finding("scheduler.configured", Severity.ERROR, what, ON_EACH, run=CONFIGURE)
    prefix = without_password(str(entry.get("urlPrefix", "")))
    if url_of(prefix) is None:
        what = f"{origin}: urlPrefix = {shortened(prefix)}: must be http(s)://HOST:PORT/PATH"
        return finding("scheduler.configured", Severity.ERROR, what, ON_EACH, run=CONFIGURE)
    return ok("scheduler.configured", f"{origin} has the extender {prefix}")


def _configured_by_annotations(missing: Missing, states: Sequence[SchedulerState] | Missing) -> Finding:
    if not isinstance(states, Missing) and states and all(state.digest for state in states):
        return ok("scheduler.configured", f"tas configure has configured {some(state.node for state in states)}")
    return unknown("scheduler.configured", missing)


def _alike(states: Sequence[SchedulerState] | Missing) -> Finding:
    if isinstance(states, Missing):
        return unknown("scheduler.alike", states)
    if not states:
        mend = "check where the scheduler runs; docs/reference/doctor.md says how to check a second scheduler"
        return unknown("scheduler.alike", Missing("no control plane node is visible", mend))
    if all(state.digest is None and state.ready is not None for state in states):
        what = f"no scheduler has the annotation of tas configure: {some(state.node for state in states)}"
        return unknown("scheduler.alike", Missing(what, ON_EACH, CONFIGURE))
    if found := differences(states):
        return finding("scheduler.alike", Severity.ERROR, "; ".join(found), "on these nodes", run=CONFIGURE)
    return ok("scheduler.alike", f"the schedulers of {len(states)} control plane nodes are configured alike")


def _valid(facts: SchedulerFacts) -> Finding:
    document = facts.configuration if isinstance(facts.configuration, dict) else {}
    try:
        # It runs with its plugins: which it has beside those of a stock one is not known here.
        new, notices = with_extenders(document, facts.minor or NEWEST, (), None, plugins_of(document))
    except InvalidInputError as error:
        mend = f"correct the field in {facts.origin}"
        return finding("scheduler.valid", Severity.ERROR, f"{facts.origin}: {error}", mend)
    if new.get("apiVersion") != document.get("apiVersion"):
        return finding("scheduler.valid", Severity.ERROR, f"{facts.origin}: {notices[0]}", ON_EACH, run=CONFIGURE)
    if facts.minor is None:
        missing = "the version of the scheduler is not known"
        return unknown(
            "scheduler.valid", Missing(missing, "give --kubeconfig, or run tas doctor on a control plane node")
        )
    return ok("scheduler.valid", f"kube-scheduler 1.{facts.minor} reads {facts.origin}")


def _verifies(entry: Object) -> Finding:
    url, tls = url_of(str(entry.get("urlPrefix", ""))), entry.get("tlsConfig")
    tls = tls if isinstance(tls, dict) else {}
    if url is None:
        return unknown("scheduler.verifies", Missing("urlPrefix is no URL"))
    if url.scheme == "http":
        if url.is_loopback:
            return ok("scheduler.verifies", "plain HTTP, on this machine only")
        what = "plain HTTP across machines: whoever reaches the port can ask, and can answer"
        mend = "create certificates: docs/how-to/tls.md"
        return finding("scheduler.verifies", Severity.WARNING, what, mend, run=CONFIGURE)
    has_authority = bool(tls.get("caFile") or tls.get("caData"))
    if tls.get("insecure") or (entry.get("enableHTTPS") and not has_authority):
        what = "the scheduler verifies no certificate: it has no caFile, or is insecure"
        return finding("scheduler.verifies", Severity.WARNING, what, ON_EACH, run=CONFIGURE)
    by = "a CA" if has_authority else "the authorities of its system"
    return ok("scheduler.verifies", f"the scheduler verifies the extender by {by}")


def _weight(entry: Object) -> Finding:
    weight = entry.get("weight", 0)
    if not entry.get("prioritizeVerb"):
        what = "the entry has no prioritizeVerb: scheduleonmetric has no effect"
        return finding("scheduler.weight", Severity.WARNING, what, ON_EACH, run=CONFIGURE)
    if isinstance(weight, int) and 0 < weight < LOW_WEIGHT:
        what = f"the weight is {weight}: one step of a score is {weight * 10} of the scheduler's own 1200 points"
        return finding("scheduler.weight", Severity.HINT, what, ON_EACH, run=f"{CONFIGURE} --weight {DEFAULT_WEIGHT}")
    return ok("scheduler.weight", f"the weight is {weight}")


def _names(entry: Object, minor: int | None) -> Finding:
    if not entry.get("nodeCacheCapable"):
        what = "nodeCacheCapable is not true: each request has whole nodes"
        if minor is None or minor >= EMPTY_NODES:
            what += f", and from 1.{EMPTY_NODES} on the scheduler's own scores for resources see every node as empty"
        return finding("scheduler.names", Severity.WARNING, what, ON_EACH, run=CONFIGURE)
    return ok("scheduler.names", "requests have names of nodes only")


def _outage(entry: Object) -> Finding:
    if not entry.get("ignorable") and not managed_by(entry):
        what = "ignorable is not true, and the entry has no managedResources"
        return finding("scheduler.outage", Severity.WARNING, what, ON_EACH, run=CONFIGURE)
    effect = "are placed without policies" if entry.get("ignorable") else "with the resource wait"
    return ok("scheduler.outage", f"while no extender answers, pods {effect}")


def _resource(entry: Object, nodes: Sequence[NodeState] | Missing) -> Finding:
    managed = entry.get("managedResources")
    counted = [
        str(each.get("name"))
        for each in (managed if isinstance(managed, list) else [])
        if isinstance(each, dict) and not each.get("ignoredByScheduler")
    ]
    if TELEMETRY_RESOURCE not in counted:
        return ok("scheduler.resource", "the scheduler needs no node to offer the resource")
    if isinstance(nodes, Missing):
        return unknown("scheduler.resource", nodes)
    lacking = [node.name for node in nodes if not node.offers]
    if lacking:
        what = f"ignoredByScheduler is not true, and {some(lacking)} do not offer {TELEMETRY_RESOURCE}"
        severity = Severity.ERROR if len(lacking) == len(nodes) else Severity.WARNING
        mend = f"{ON_EACH}; or let each node offer the resource: {OFFER}"
        return finding("scheduler.resource", severity, what, mend, run=CONFIGURE)
    return ok("scheduler.resource", f"all nodes offer {TELEMETRY_RESOURCE}")
