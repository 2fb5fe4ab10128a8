"""Is there a descheduler, is its version one that works, and can it evict in this cluster?"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from tas.diagnosis.finding import Finding, Missing, Severity, finding, ok, some, unknown
from tas.enforcing.node_resource import RESOURCE
from tas.policy.policy import Policy, StrategyType

Version = tuple[int, int, int]

FIRST_BROKEN: Version = (0, 24, 0)
FIRST_MENDED: Version = (0, 27, 1)
"""facts.md c48"""

CHECKS = tuple(f"descheduler.{name}" for name in ("present", "version", "resource", "nodes"))
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


class DeschedulerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What matters for a descheduler.

    Attributes:
        images: Of the containers of all pods that are a descheduler.
        requested: Whether a pod requests `telemetry/scheduling`.
    """

    images: Collection[str] | Missing
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
    for each in (facts.policies, facts.images, facts.nodes):
        if isinstance(each, Missing):
            for check in CHECKS:
                yield unknown(check, each)
            return
    assert not isinstance(facts.policies, Missing)
    assert not isinstance(facts.images, Missing)
    assert not isinstance(facts.nodes, Missing)
    if not any(StrategyType.DESCHEDULE in policy.strategies for policy in facts.policies):
        yield ok("descheduler.present", "no policy has the strategy deschedule: a descheduler is not needed")
        return
    yield _nodes(facts.nodes)
    if not facts.images:
        what = "no pod runs a descheduler; one outside the cluster is not visible"
        yield finding("descheduler.present", Severity.HINT, what, "docs/moving-pods.md shows how to install one")
        return
    yield ok("descheduler.present", f"{some(facts.images)} runs")
    offering = all(node.offers for node in facts.nodes)
    for image in sorted(set(facts.images)):
        yield from _version(image, offering=offering, requested=facts.requested)


def _version(image: str, *, offering: bool, requested: bool) -> Iterator[Finding]:
    offer = "tas run all … --node-resource 1000 (or tas run resources)"
    version = version_of(image)
    if version is None:
        yield unknown("descheduler.version", Missing(f"the tag of {image} has no version"))
    elif FIRST_BROKEN <= version < FIRST_MENDED and not offering:
        what = f"{image}: 0.24 to 0.27.0 evict no pod that requests {RESOURCE} while a node does not offer it"
        yield finding("descheduler.version", Severity.ERROR, what, f"install 0.27.1 or newer; or {offer}")
        return
    else:
        yield ok("descheduler.version", f"{image} is a version that works")
    if requested and not offering:
        what = f"pods request {RESOURCE}, and not all nodes offer it"
        yield finding("descheduler.resource", Severity.ERROR, what, offer)
    else:
        yield ok("descheduler.resource", f"pods that request {RESOURCE} fit nodes, as far as this resource matters")


def _nodes(nodes: Sequence[NodeState]) -> Finding:
    ready = [node.name for node in nodes if node.ready]
    if len(ready) < 2:
        what = f"{len(ready)} of {len(nodes)} nodes is ready: the descheduler gives up below two"
        return finding("descheduler.nodes", Severity.WARNING, what, "add a node; kubectl get nodes")
    return ok("descheduler.nodes", f"{len(ready)} nodes are ready")
