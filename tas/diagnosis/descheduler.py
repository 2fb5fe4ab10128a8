"""Is there a descheduler, is its version one that works, and can it evict in this cluster?"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from tas.diagnosis.finding import Finding, Missing, Severity, command, finding, none_checked, ok, some, unknown
from tas.diagnosis.owner import Owner
from tas.enforcing.node_resource import RESOURCE
from tas.policy.policy import Policy, StrategyType
from tas.values.nouns import counted

Version = tuple[int, int, int]

FIRST_BROKEN: Version = (0, 24, 0)
FIRST_MENDED: Version = (0, 27, 1)
"""facts.md c48"""

OFFER = command("tas", "run", "resources", "--kubeconfig", "FILE")
OFFER_MEND = f"let each node offer {RESOURCE}, by this worker or by --node-resource 1000 of tas run all"

_IMAGE = re.compile(r"(?:^|/)descheduler(?:@|:|$)")
_TAG = re.compile(r":v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


class NodeState(NamedTuple):
    """A node.

    Attributes:
        ready: Whether it is Ready.
        offers: Whether it offers `telemetry/scheduling`.
    """

    name: str
    ready: bool
    offers: bool


class Descheduler(NamedTuple):
    """A container with an image of the descheduler."""

    image: str
    owner: Owner


class DeschedulerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What matters for a descheduler.

    Attributes:
        found: The deschedulers among all pods.
        requested: Whether a pod requests `telemetry/scheduling`.
    """

    found: Collection[Descheduler] | Missing
    nodes: Sequence[NodeState] | Missing
    policies: Collection[Policy] | Missing
    requested: bool


def is_descheduler(image: str) -> bool:
    """Whether an image is a descheduler, by its name."""
    return _IMAGE.search(image) is not None


def version_of(image: str) -> Version | None:
    """The version of an image by its tag, such as `0.36.0`; None without one."""
    name = image.partition("@")[0]
    found = _TAG.search(name, name.rfind("/") + 1)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


def check_descheduler(facts: DeschedulerFacts) -> Iterator[Finding]:
    """The findings about deschedulers."""
    for each in (facts.policies, facts.found, facts.nodes):
        if isinstance(each, Missing):
            yield from none_checked("descheduler", each)
            return
    assert not isinstance(facts.policies, Missing)
    assert not isinstance(facts.found, Missing)
    assert not isinstance(facts.nodes, Missing)
    if not any(StrategyType.DESCHEDULE in policy.strategies for policy in facts.policies):
        yield ok("descheduler.present", "no policy has the strategy deschedule: a descheduler is not needed")
        return
    yield _nodes(facts.nodes)
    if not facts.found:
        what = "no pod runs a descheduler; one outside the cluster is not visible"
        yield finding("descheduler.present", Severity.HINT, what, "install one as docs/how-to/moving-pods.md shows")
        return
    yield ok("descheduler.present", f"{some(f'{each.owner} ({each.image})' for each in facts.found)} runs")
    lacking = facts.requested and not all(node.offers for node in facts.nodes)
    versions = [_version(each, lacking=lacking) for each in sorted(set(facts.found))]
    yield from versions
    if any(each.severity is Severity.ERROR for each in versions):
        return  # the same mends both
    if lacking:
        what = f"pods request {RESOURCE}, and not all nodes offer it"
        yield finding("descheduler.resource", Severity.ERROR, what, OFFER_MEND, run=OFFER)
    else:
        yield ok("descheduler.resource", f"pods that request {RESOURCE} fit nodes, as far as this resource matters")


def _version(found: Descheduler, *, lacking: bool) -> Finding:
    """`lacking`: pods request the resource, and not all nodes offer it."""
    image, version = found.image, version_of(found.image)
    if version is None:
        return unknown("descheduler.version", Missing(f"the tag of {image} ({found.owner}) has no version"))
    if FIRST_BROKEN <= version < FIRST_MENDED and lacking:
        what = f"{found.owner} runs {image}: 0.24 to 0.27.0 evict no pod that requests {RESOURCE} if no node offers it"
        mend = f"set the image to a newer version, and {OFFER_MEND}"
        return finding("descheduler.version", Severity.ERROR, what, mend, run=OFFER)
    return ok("descheduler.version", f"{image} is a version that works")


def _nodes(nodes: Sequence[NodeState]) -> Finding:
    ready = [node.name for node in nodes if node.ready]
    if len(ready) < 2:
        all_of = f"of {counted(len(nodes), 'node')}"
        what = f"{counted(len(ready), f'{all_of} is', f'{all_of} are')} ready: the descheduler gives up below two"
        return finding("descheduler.nodes", Severity.WARNING, what, "add a node", run="kubectl get nodes")
    return ok("descheduler.nodes", f"{len(ready)} nodes are ready")
