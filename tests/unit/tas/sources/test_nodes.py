"""Which node a name or an address means."""

import pytest

from tas.sources.nodes import ANY_NODE, NodeNames, host_of

CLUSTER = NodeNames(
    {
        "node-1": ["172.20.3.4", "fd00::1", "node-1.internal.example"],
        "node-2": ["172.20.3.5", "10.0.0.9", "node-2"],
        "node-3": ["172.20.3.6", "10.0.0.9"],
        "192.0.2.7": ["192.0.2.7"],
        "192.0.2.8": [],
        "node-4": ["192.0.2.8", "node-5"],
        "node-5": [],
    },
    is_complete=True,
)


@pytest.mark.parametrize(
    ("instance", "node"),
    [
        pytest.param("172.20.3.4:20257", "node-1", id="an address with a port"),
        pytest.param("172.20.3.4", "node-1", id="without a port"),
        pytest.param("[fd00::1]:9100", "node-1", id="IPv6 with a port"),
        pytest.param("[fd00::1]", "node-1", id="IPv6 in brackets"),
        pytest.param("fd00::1", "node-1", id="IPv6 without brackets"),
        pytest.param("[FD00:0:0::0001]:9100", "node-1", id="another spelling of IPv6"),
        pytest.param("fd00:0000:0000:0000:0000:0000:0000:0001", "node-1", id="the longest spelling of IPv6"),
        pytest.param("::ffff:172.20.3.4", "node-1", id="IPv4 mapped into IPv6"),
        pytest.param("[::ffff:ac14:304]:9100", "node-1", id="IPv4 mapped into IPv6, in its other spelling"),
        pytest.param("node-1.Internal.example:9100", "node-1", id="a name among the addresses"),
        pytest.param("Node-1:9100", "node-1", id="an upper-case letter"),
        pytest.param("192.0.2.7:9100", "192.0.2.7", id="a node whose name is its address"),
        pytest.param("10.0.0.9:9100", None, id="an address of two nodes"),
        pytest.param("192.0.2.8:9100", None, id="the name of one node and the address of another"),
        pytest.param("node-5:9100", None, id="the name of one node and the host name of another"),
        pytest.param("172.20.3.7:9100", None, id="an address of no node"),
        pytest.param("node-9:9100", None, id="a name of no node"),
        pytest.param("fd00::1:9100", None, id="IPv6 with a port but without brackets is another address"),
        pytest.param("[172.20.3.4:9100", None, id="an open bracket"),
        pytest.param("", None, id="empty"),
        pytest.param(":9100", None, id="only a port"),
    ],
)
def test_an_instance_means_the_node_with_this_name_or_address(instance: str, node: str | None) -> None:
    assert CLUSTER.find(instance, is_instance=True) == node
    assert CLUSTER.find(instance, is_instance=True) == node  # as remembered


@pytest.mark.parametrize(
    ("text", "node"),
    [
        pytest.param("NODE-1", "node-1", id="a name"),
        pytest.param("172.20.3.4", "node-1", id="an address"),
        pytest.param("node-5", "node-5", id="a name counts before the host name of another node"),
        pytest.param("192.0.2.8", None, id="as an address it may be either node"),
        pytest.param("node-1:9100", None, id="no port"),
    ],
)
def test_a_label_of_names_means_the_node_with_this_name_before_any_address(text: str, node: str | None) -> None:
    assert CLUSTER.find(text) == node


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("10.0.0.9:9100", "is an address of several nodes, node-2, node-3: it counts for none of them"),
        ("192.0.2.8:9100", "is an address of several nodes, 192.0.2.8, node-4: it counts for none of them"),
        ("172.20.3.7:9100", "no address of one; the nearest is '172.20.3.4' of node-1"),
        ("nodo-2:9100", "is no name of a node of the cluster, and no address of one; the nearest is 'node-2'"),
        ("ode-3", "the nearest is 'node-3'"),
        ("node-33", "the nearest is 'node-3'"),
    ],
)
def test_a_reason_names_the_nearest_node_or_those_that_share_an_address(text: str, reason: str) -> None:
    assert CLUSTER.find(text, is_instance=True) is None
    assert CLUSTER.why_not(text, is_instance=True).endswith(reason)


def test_a_cluster_without_nodes_has_no_nearest_one() -> None:
    assert NodeNames({}, is_complete=True).why_not("a").endswith("no address of one: the cluster has no nodes")


def test_without_a_cluster_every_valid_name_is_a_node() -> None:
    for name in ("a", "10.0.0.1", "a.example"):
        assert ANY_NODE.find(name) == ANY_NODE.find(f"{name}:9100", is_instance=True) == name
    assert ANY_NODE.find("[fd00::1]:9100", is_instance=True) is None
    assert ANY_NODE.why_not("a_b") == "must be a lowercase DNS subdomain (RFC 1123)"


def test_until_the_list_is_complete_known_addresses_count_and_other_names_are_nodes() -> None:
    nodes = NodeNames({"a": ["10.0.0.1", "10.0.0.9"], "b": ["10.0.0.9"]}, is_complete=False)
    assert [nodes.find(text) for text in ("10.0.0.1", "10.0.0.9", "c")] == ["a", None, "c"]


def test_a_node_that_is_gone_or_has_lost_an_address_is_named() -> None:
    before = NodeNames({"a": ["10.0.0.1"], "b": ["10.0.0.2"], "c": ["10.0.0.3"], "d": []}, is_complete=True)
    after = NodeNames({"a": ["10.0.0.1", "10.0.0.9"], "b": ["10.0.0.4"], "c": [], "e": ["10.0.0.3"]}, is_complete=True)
    assert before.lost_by(after) == {"b", "c", "d"}
    assert before.lost_by(before) == frozenset()


@pytest.mark.parametrize("size", [300, 15_000])
def test_among_many_nodes_the_nearest_is_found_by_few_comparisons(size: int) -> None:
    nodes = NodeNames({f"worker-{number:05}": [] for number in range(size)}, is_complete=True)
    for text, nearest in (("worker-0O123", "worker-00123"), ("orker-00123", "worker-00123"), ("worker-l0123", None)):
        reason = nodes.why_not(text)
        assert "the nearest is 'worker-" in reason
        assert nearest is None or reason.endswith(f"'{nearest}'")


@pytest.mark.parametrize("instance", ["a:b", "[::1", "[::1]x", "[::1]:x", "::"])
def test_what_is_no_host_and_port_stays_as_it_is(instance: str) -> None:
    assert host_of(instance) == instance
