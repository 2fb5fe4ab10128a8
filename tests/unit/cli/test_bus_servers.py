"""What `tas bus check` says about the servers of a closed bus."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from bus.rights.credentials import parse_credentials
from bus.rights.operator import Keys, jwt_in
from bus.rights.roles import tags_of
from bus.servers import BusServer, Cluster, Config, Connected, JetStream, Meta, Varz
from cli.rights.folder import OperatorFolder
from cli.rights.servers import Seen, absent_of, earlier_connections, problem_of, servers_of, with_servers
from tas.diagnosis.bus import BusFacts
from tas.diagnosis.finding import Missing
from workers.roles import ROLES

KEYS = Keys.new(ROLES)


def account(*, revoked: Sequence[str] = (), now: float = 100.0) -> str:
    """The JWT of the account in a new auth.conf."""
    return jwt_in(KEYS.server_configuration(ROLES, revoked=dict.fromkeys(revoked, 50), now=now), KEYS.account)


def server(name: str, *, size: int = 3, syncs: bool = True, version: str = "2.12.3", jwt: str = "") -> BusServer:
    jetstream = JetStream(config=Config(sync_always=syncs), meta=Meta(cluster_size=size))
    about = Varz(server_id=name.upper(), server_name=name, version=version, cluster=Cluster("tas"), jetstream=jetstream)
    return BusServer(about, jwt)


def test_a_server_that_has_read_auth_conf_is_well() -> None:
    assert account()
    assert problem_of(server("n0", jwt=account()), account(), "", {}) == ""
    # A second `tas bus init` with a lost auth.conf writes the same with another time.
    assert problem_of(server("n0", jwt=account(now=999.0)), account(), "", {}) == ""


def test_the_account_of_publishers_is_compared_too() -> None:
    """Who has lost its key and made a new one: servers refuse every node after a reload."""

    def publishers(keys: Keys) -> str:
        return jwt_in(keys.server_configuration(ROLES, revoked={}, now=100.0), keys.publishers)

    of_server = server("n0", jwt=account())
    for there, here, problem in (
        (publishers(KEYS), publishers(KEYS), ""),
        (publishers(Keys.new(ROLES)), publishers(KEYS), "has another auth.conf than the folder: give it this file"),
        ("", publishers(KEYS), "not checked: no user of the account of publishers was connected to it"),
    ):
        found = problem_of(msgspec.structs.replace(of_server, publishers=there), account(), here, {})
        assert found.startswith(problem)
        assert bool(found) is bool(problem)


def test_a_folder_without_auth_conf_can_not_be_compared() -> None:
    assert "tas bus init makes it" in problem_of(server("n0", jwt=account()), "", "", {})


def test_a_server_that_has_not_says_nothing_of_other_accounts() -> None:
    assert "no user was connected to it" in problem_of(server("n0"), account(), "", {})


def test_a_revocation_that_a_server_has_not_read_names_its_user() -> None:
    issued = {"thief": ["U1", "U2"], "old": ["U3"], "good": ["U4"]}
    found = problem_of(server("n0", jwt=account(revoked=["U3"])), account(revoked=["U2", "U3"]), "", issued)
    assert found.startswith(
        "has another auth.conf than the folder, and revoked credentials of thief still count there:"
    )
    # Other rights, with the same revocations.
    assert problem_of(server("n0", jwt=account(revoked=["U3"])), account(), "", issued).startswith(
        "has another auth.conf than the folder: give it this file"
    )


@pytest.mark.parametrize(
    ("seen", "texts"),
    [
        ({"a": Seen([server("n0"), server("n1"), server("n2")])}, []),
        ({"a": Seen([server("n0", size=1)])}, []),
        ({"a": Seen([server("n0"), server("n1")])}, ["2 of 3 servers of the cluster answer: n0, n1"]),
        (
            {"a": Seen([server("n0"), server("n1")]), "b": Seen((), "no connection: refused")},
            ["b does not answer: no connection: refused", "2 of 3 servers of the cluster answer: n0, n1"],
        ),
    ],
)
def test_servers_that_do_not_answer_are_counted(seen: dict[str, Seen], texts: list[str]) -> None:
    assert absent_of(seen) == texts


def test_servers_that_do_not_reach_each_other_are_named() -> None:
    two = [server("n0"), server("n1")]
    (text,) = absent_of({"a": Seen(two), "b": Seen(two[::-1]), "c": Seen([server("n2", size=1)])})
    assert text.startswith("these servers do not reach each other: n0, n1; n2: do they have the same cluster.password?")
    # A server that answers too late at one address is not apart.
    assert absent_of({"a": Seen(two), "b": Seen([*two, server("n2")])}) == []
    assert [each.about.server_name for each in servers_of({"b": Seen(two[::-1]), "a": Seen(two)})] == ["n0", "n1"]


def test_what_is_known_only_of_all_servers_needs_the_answer_of_each() -> None:
    facts = BusFacts(address="a", version="2.12.4", needed=(2, 12, 3))
    three = [server("n0"), server("n1", version="2.12.1"), server("n2")]
    found = with_servers(facts, {"a": Seen(three)})
    assert (found.sync, found.version) == (True, "2.12.1")
    assert isinstance(with_servers(facts, {"a": Seen(three[:2])}).sync, Missing)
    assert isinstance(with_servers(facts, {"a": Seen((), "refused")}).sync, Missing)
    # Who does not sync is known without the answers of the others.
    assert with_servers(facts, {"a": Seen([server("n0", syncs=False), server("n1")])}).sync is False


def evaluate_jwt(name: str, *, is_earlier: bool) -> str:
    """That of a user of `evaluate`; of an earlier version without the names of its consumers."""
    tags = () if is_earlier else tags_of(ROLES["evaluate"], name)
    return parse_credentials(KEYS.credentials("evaluate", name, tags=tags, now=100.0).encode(), name).jwt


OLD, NEW = evaluate_jwt("old", is_earlier=True), evaluate_jwt("new", is_earlier=False)
NO_ANSWER = "does not say who is connected: no answer"


def said(*names: str, jwts: Sequence[str] = (NEW,), unknown: Mapping[str, str] | None = None) -> Seen:
    """What servers say at an address, all of it but of those in `unknown`."""
    missing = dict(unknown or {})
    found = Connected(frozenset(jwts), frozenset(each.upper() for each in names) - missing.keys(), missing)
    return Seen([server(each, size=2) for each in names], connected=found)


@pytest.mark.parametrize(
    ("seen", "names", "unknown"),
    [
        ([said("n0", "n1")], [], []),
        ([said("n0", "n1", jwts=[OLD, NEW])], ["old"], []),
        ([said("n0", "n1", jwts=[OLD], unknown={"N1": NO_ANSWER})], ["old"], [f"n1 {NO_ANSWER}"]),
        ([said("n0", "n1", unknown={"N1": NO_ANSWER}), said("n0", "n1", jwts=[OLD])], ["old"], []),
        ([said("n0")], [], ["not each server answers"]),
        ([Seen((), "refused")], [], ["not each server answers"]),
        ([said("n0", "n1", jwts=[OLD, "x"])], ["old"], ["the credentials of 1 connection cannot be read"]),
    ],
    ids=["nobody", "somebody", "one is silent", "known at another address", "one is missing", "none", "unreadable"],
)
def test_nobody_is_connected_by_earlier_credentials_only_if_each_server_has_said_so(
    seen: list[Seen], names: list[str], unknown: list[str]
) -> None:
    folder = OperatorFolder(path=Path("operator"), keys=KEYS, found=True, cluster_password="x")
    assert earlier_connections(folder, {str(number): each for number, each in enumerate(seen)}) == (names, unknown)
