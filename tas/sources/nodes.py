"""Which node a name or an address means, by what the nodes themselves report.

A series often names its node by an address, `172.20.3.4:9100`. The API server has the addresses of each node.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from ipaddress import IPv6Address, ip_address

from tas.errors import shortened
from tas.values.names import is_subdomain

MAX_REMEMBERED = 50_000
"""For so many texts the node is remembered."""

MAX_REMEMBERED_TEXT = 300
"""The longest text that is remembered: a name and a port have fewer characters."""

MAX_COMPARED = 256
"""To find the nearest name, a text is compared with so many around it by their beginning, and as many by their end."""

MAX_COMPARED_TEXT = 64
"""So many characters of a text are compared."""

MAX_NEAREST = 512
"""For so many texts the nearest name is remembered."""

_SHARED = ""


def host_of(instance: str) -> str:
    """The host in a label `instance`: without the port, and without the brackets of an IPv6 address."""
    if instance.startswith("["):
        host, bracket, rest = instance[1:].partition("]")
        return host if bracket and (not rest or (rest[0] == ":" and rest[1:].isdigit())) else instance
    host, colon, port = instance.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else instance


def _ip(text: str) -> str | None:
    """An IP address in its one spelling; IPv4 also if it is mapped into IPv6. None if the text is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def _key(text: str) -> tuple[str, bool]:
    """A text in the spelling in which texts are compared, and whether it is an IP address."""
    lower = text.lower()
    address = _ip(lower)
    return (lower, False) if address is None else (address, True)


class NodeNames:
    """The nodes of a cluster with their addresses: finds the node that a text means. Safe for several threads.

    A name is written in lower case (RFC 1123), so case does not matter. `addresses` has those of each node, IP
    addresses and names of hosts. While `is_complete` is False, as without a cluster, every other valid name is a node.
    """

    def __init__(self, addresses: Mapping[str, Collection[str]], *, is_complete: bool) -> None:
        self._names = frozenset(addresses)
        self._is_complete = is_complete
        self._owners: dict[str, str] = {}
        self._sharing: dict[str, list[str]] = {}
        for node in sorted(addresses):
            for key in {_key(address)[0] for address in addresses[node]}:
                owner = self._owners.setdefault(key, node)
                if owner != node:
                    self._owners[key] = _SHARED
                    self._sharing.setdefault(key, [owner] if owner else []).append(node)
        self._found: tuple[dict[str, str | None], dict[str, str | None]] = ({}, {})
        self._nearest: dict[str, str] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all nodes are known; else every valid name is one."""
        return self._is_complete

    def exists(self, node: str) -> bool:
        """Whether there may be a node of this name; its spelling is that of `find`."""
        return not self._is_complete or node in self._names

    def find(self, text: str, *, is_instance: bool = False) -> str | None:
        """The node that a label means; None if it means none, or it is not sure which.

        `is_instance`: the label has the address from which a value comes, perhaps with a port, and not the name of a
        node: then a name of one node that is an address of another means neither.
        """
        found = self._found[is_instance]
        try:
            return found[text]
        except KeyError:
            pass
        node = self._node_of(host_of(text) if is_instance else text, is_instance=is_instance)
        if len(text) <= MAX_REMEMBERED_TEXT:
            if len(found) >= MAX_REMEMBERED:
                found.clear()
            found[text] = node
        return node

    def _node_of(self, text: str, *, is_instance: bool) -> str | None:
        key, is_ip = _key(text)
        owner = self._owners.get(key)
        if key in self._names:
            return key if owner in (None, key) or not (is_instance or is_ip) else None
        if owner is not None:
            return owner or None
        return key if not self._is_complete and is_subdomain(key) else None

    def why_not(self, text: str, *, is_instance: bool = False) -> str:
        """Why `find` found no node: a reason that continues "the label has this text"."""
        key, _ = _key(host_of(text) if is_instance else text)
        owners = {*self._sharing.get(key, ()), *filter(None, (self._owners.get(key),)), *self._names & {key}}
        if len(owners) > 1:
            some = sorted(owners)
            others = f" and {len(some) - 2} more" if len(some) > 2 else ""
            return f"is an address of several nodes, {some[0]}, {some[1]}{others}: it counts for none of them"
        if not self._is_complete:
            return "must be a lowercase DNS subdomain (RFC 1123)"
        nearest = self._nearest_to(key)
        known = f"; the nearest is {nearest}" if nearest else ": the cluster has no nodes"
        return f"is no name of a node of the cluster, and no address of one{known}"

    def lost_by(self, later: "NodeNames") -> frozenset[str]:
        """The nodes that do not exist any more in `later`, or have lost an address."""
        lost = {node for key, node in self._owners.items() if node and later._owners.get(key) != node}
        return frozenset(lost | (self._names - later._names))

    @cached_property
    def _by_start(self) -> Sequence[str]:
        return sorted(self._names | {address for address, owner in self._owners.items() if owner})

    @cached_property
    def _by_end(self) -> Sequence[str]:
        return sorted(name[::-1] for name in self._by_start)

    def _nearest_to(self, key: str) -> str:
        """The known name or address that is most like `key`, as text with its node; empty without any."""
        if key not in self._nearest:
            if len(self._nearest) >= MAX_NEAREST:
                self._nearest.clear()
            self._nearest[key] = self._most_like(key)
        return self._nearest[key]

    def _most_like(self, key: str) -> str:
        near = {*_around(self._by_start, key), *(name[::-1] for name in _around(self._by_end, key[::-1]))}
        matcher = SequenceMatcher(None, "", key[:MAX_COMPARED_TEXT], autojunk=False)

        def likeness(name: str) -> float:
            matcher.set_seq1(name)
            return matcher.ratio()

        best = max(sorted(near), key=likeness, default="")
        if not best:
            return ""
        return shortened(best) if best in self._names else f"{shortened(best)} of {self._owners[best]}"


def _around(names: Sequence[str], text: str) -> Sequence[str]:
    at = bisect_left(names, text)
    return names[max(0, at - MAX_COMPARED // 2) : at + MAX_COMPARED // 2]


ANY_NODE = NodeNames({}, is_complete=False)
"""Without a cluster: every valid name is a node."""


def any_node() -> NodeNames:
    """`ANY_NODE`, for sources without a list of nodes."""
    return ANY_NODE
