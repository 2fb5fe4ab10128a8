"""Who may write what on a closed bus: no two users share a subject, unless it is named here."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from bus.buckets import ALL, NODES, SOURCES, TABLES_CONSUMER
from bus.consumers import names_of
from bus.rights.credentials import parse_credentials
from bus.rights.jwt import claims_of
from bus.rights.nkeys import Nkey, NkeyKind
from bus.rights.operator import Keys, user_claims
from bus.rights.roles import (
    PLACES,
    PROCESS_PLACES,
    is_refusing_earlier,
    of_process,
    overlap,
    permissions_of,
    tags_of,
    user_of,
)
from bus.rights.roles import PUBLISHERS as PUBLISHER_ROLES
from bus.subjects import STRICT
from tas.agents.file import MAX_AGENTS
from tests.contract.rights import earlier_permissions
from workers.registry import WORKERS, needed_by
from workers.roles import ROLES

SHARED = {
    # Never both in one installation.
    ("policies", "watch"): {"$KV.POLICIES.>", "$KV.NODES._synced", "$KV.WORKERS._expected.*"},
    ("inventory", "gpu"): {"$KV.HOLDS.*"},
    ("events", "resources"): {"tas.events.>", "tas.events.resource.>"},
    ("labels", "operator"): {"$KV.BREAKERS.*"},
    ("evaluate", "labels"): {"$KV.BREAKERS.*", "$KV.BREAKERS._outstanding"},
    ("evaluate", "operator"): {"$KV.BREAKERS.*", "$KV.BREAKERS._outstanding"},
    ("operator", "watch"): {"$KV.WORKERS._expected.*"},
    ("operator", "policies"): {"$KV.WORKERS._expected.*"},
}
"""The subjects that two roles may write, each by conditional writes."""

PUBLISHERS = {"all", "node", "publisher", "operator", "collect", "subscriber", "notify"}
"""Roles with wildcards or templates for names that a user chooses: sources and subscriptions."""


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.c", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("*.b", "a.*", True),
        ("a.{{name()}}", "a.b", True),
        (">", "a", True),
    ],
)
def test_patterns_overlap_if_a_subject_matches_both(first: str, second: str, *, both: bool) -> None:
    assert overlap(first, second) is overlap(second, first) is both


def test_two_roles_write_the_same_only_where_it_is_named() -> None:
    found = {}
    for one, other in combinations([role for role in ROLES if role not in PUBLISHERS - {"operator"}], 2):
        shared = {
            subject
            for first in ROLES[one].rights.writes
            for second in ROLES[other].rights.writes
            if overlap(first, second)
            for subject in (first, second)
        }
        shared -= {subject for subject in shared if subject.startswith("tas.samples.")}  # of sources, by name
        if shared:
            found[(one, other)] = shared
    assert {frozenset(pair): subjects for pair, subjects in found.items()} == {
        frozenset(pair): subjects for pair, subjects in SHARED.items()
    }


@pytest.mark.parametrize("role", ROLES)
def test_nobody_may_do_everything_and_only_the_keeper_creates(role: str) -> None:
    permissions = ROLES[role].rights.permissions
    assert not {">", "$JS.>", "$JS.API.>", "$KV.>", "tas.>", "$SYS.>"} & {*permissions.publish, *permissions.subscribe}
    assert permissions.subscribe == ("_INBOX.{{name()}}.>",)
    creates = [each for each in permissions.publish if each.startswith("$JS.API.STREAM.CREATE.")]
    assert creates == ([f"$JS.API.STREAM.CREATE.{of.stream}" for of in ALL] if role in ("keeper", "all") else [])
    verbs = {".".join(each.split(".")[2:4]) for each in permissions.publish if each.startswith("$JS.API.STREAM.")}
    assert verbs <= {"STREAM.INFO", "STREAM.CREATE", "STREAM.PURGE", "STREAM.MSG"}


def accounts(configuration: str) -> list[dict[str, Any]]:
    """What the JWT of each account of a configuration says."""
    lines = [line.split() for line in configuration.splitlines() if line.startswith("  A")]
    return [claims_of(jwt) for _, jwt in lines]


def test_a_connection_of_each_role_has_limits_in_the_configuration_of_the_server() -> None:
    keys = Keys.new(ROLES)
    configuration = keys.server_configuration(ROLES, revoked={}, now=1000.0)
    claims = [each for account in accounts(configuration) for each in account["nats"].get("signing_keys", ())]
    limits = {each["role"]: (each["template"]["subs"], each["template"]["payload"]) for each in claims}
    sample = 257 << 10  # 256 KiB and headers
    # A reader asks, and its questions are kept: the metadata of a consumer is in the memory of the server.
    people = {"reader": (100, 16 << 10), "operator": (100, -1), "subscriber": (100, 81 << 10)}
    programs = dict.fromkeys(("node", "publisher"), (4, sample))
    processes = dict.fromkeys((role for role, each in ROLES.items() if each.workers), (1000, -1))
    assert limits == people | programs | processes
    # A subscription for each agent beside those of any worker.
    assert limits["agents"][0] >= MAX_AGENTS + 16


def test_the_order_of_the_workers_changes_nothing_for_a_server() -> None:
    """Else who reorders them has every closed bus load its configuration again."""
    keys = Keys.new(ROLES)
    first = keys.server_configuration(ROLES, revoked={}, now=1000.0)
    reordered = dict(reversed([*ROLES.items()]))
    for role, each in ROLES.items():
        if each.workers:
            reordered[role] = of_process(role, {name: WORKERS[name].rights for name in reversed(each.workers)})
    of_others = replace(keys, roles=dict(reversed([*keys.roles.items()])))
    assert of_others.server_configuration(reordered, revoked={}, now=1000.0) != first
    assert of_others.server_configuration(reordered, revoked={}, now=1000.0, before=first) == first
    reordered["all"] = replace(reordered["all"], rights=replace(reordered["all"].rights, purges=()))
    assert of_others.server_configuration(reordered, revoked={}, now=1000.0, before=first) != first


@pytest.mark.parametrize("role", ROLES)
def test_a_template_is_a_whole_token(role: str) -> None:
    """The server replaces no other."""
    permissions = ROLES[role].rights.permissions
    for subject in (*permissions.publish, *permissions.subscribe, *permissions.denied):
        for token in subject.split("."):
            assert "{{" not in token or token in ("{{name()}}", "{{tag(source)}}", "{{tag(consumer)}}"), subject


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_knows_of_every_stream_that_it_reads_or_writes(worker: str) -> None:
    streams = needed_by([worker])
    if WORKERS[worker].rights.apart:  # it may not even ask for a stream
        assert streams == ()
        return
    assert streams == ALL if worker == "keeper" else 0 < len(streams) < len(ALL)
    for subject in WORKERS[worker].rights.writes:
        assert any(overlap(subject, each) for of in streams for each in of.subjects), subject


def test_a_worker_that_can_do_without_a_stream_may_read_it_and_does_not_demand_it() -> None:
    """On a closed bus of an earlier version, `evaluate` would report a problem of the bus for a metric alone."""
    assert SOURCES not in needed_by(["evaluate"])
    assert "$JS.API.CONSUMER.CREATE.KV_SOURCES.{{name()}}" in ROLES["evaluate"].rights.permissions.publish
    assert SOURCES in needed_by(["evaluate", "events"])


def test_the_permissions_of_a_user_have_its_name_and_its_sources() -> None:
    node = permissions_of(ROLES["node"], "a_b", ["source:machine", "source:probe", "other:x"])
    assert node.publish == ("tas.samples.a_b.machine", "tas.samples.a_b.probe")
    assert node.subscribe == ("_INBOX.a_b.>",)
    assert "tas.samples.*" not in " ".join(permissions_of(ROLES["collect"], "tas-collect", []).publish)


def test_a_person_has_a_few_names_for_consumers_and_no_two_users_share_one() -> None:
    names = [each.removeprefix("consumer:") for each in tags_of(ROLES["reader"], "ann")]
    assert names == [f"ann_{place}" for place in range(1, PLACES + 1)]
    assert {user_of(each) for each in ("ann", *names)} == {"ann"}
    assert (user_of("ann_b"), user_of("_1")) == ("ann_b", "_1")
    for earlier, stream in ((True, "KV_NODES"), (False, "*")):
        start = f"$JS.API.CONSUMER.CREATE.{stream}."
        publish = permissions_of(ROLES["reader"], "ann", tags_of(ROLES["reader"], "ann"), earlier=earlier).publish
        found = {each.removeprefix(start) for each in publish if each.startswith(start)}
        assert found == {each + end for each in ("ann", *names) for end in ("", ".>")}
        assert names_of(publish, "KV_NODES") == sorted(("ann", *names))
    # A program has none.
    assert tags_of(ROLES["node"], "a_1", sources=["x"]) == ("source:x",)
    assert {role for role in ROLES if not tags_of(ROLES[role], "x")} == {"node", "publisher", "subscriber", "keeper"}


def test_a_process_has_names_for_consumers_and_one_of_an_earlier_version_any() -> None:
    start = "$JS.API.CONSUMER.CREATE.KV_NODES."
    for role in (role for role, each in ROLES.items() if NODES in each.rights.reads and each.workers):
        user = f"tas-{role}"
        tags = tags_of(ROLES[role], user)
        now = [each for each in permissions_of(ROLES[role], user, tags).publish if each.startswith(start)]
        assert len(now) == 2 * (PROCESS_PLACES + 1), role
        assert not any("*" in each for each in now), role
        before = permissions_of(ROLES[role], user, tags, earlier=True).publish
        assert {start + "*", start + "*.>"} <= {*before}, role


@pytest.mark.parametrize("role", ["reader", "operator"])
def test_a_person_needs_few_subjects_which_allow_no_more_than_one_for_each_stream(role: str) -> None:
    """A server keeps them for each connection, and lists them in an answer."""
    tags = tags_of(ROLES[role], "ann")
    few, each_stream = (permissions_of(ROLES[role], "ann", tags, earlier=earlier) for earlier in (False, True))
    assert len(few.publish) <= 64
    assert (few.subscribe, few.denied) == (each_stream.subscribe, each_stream.denied)
    starts = tuple(f"$JS.{verb}.*" for verb in ("API.STREAM.INFO", "API.STREAM.MSG.GET", "FC"))
    starts += tuple(f"$JS.API.CONSUMER.{verb}.*." for verb in ("CREATE", "DELETE", "MSG.NEXT"))
    allowed = {
        subject.replace("*", stream.stream, 1) if subject.startswith(starts) else subject
        for subject in few.publish
        for stream in ALL
    }
    # People are told by a right without another meaning.
    assert allowed == {*each_stream.publish, STRICT}
    assert not any(overlap(STRICT, subject) for of in ALL for subject in of.subjects)
    # Nobody else may read streams that are not among these.
    for other in ROLES.keys() - {"reader", "operator"}:
        assert not [each for each in ROLES[other].strict.permissions.publish if each.startswith(starts)], other


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (("CREATE.*.ann", "CREATE.*.ann.>", "CREATE.*.ann_1"), ["ann", "ann_1"]),
        (("CREATE.*.ann", "CREATE.KV_NODES.bob", "CREATE.KV_PODS.eve"), ["ann", "bob"]),
        (("CREATE.KV_NODES.ann", "CREATE.KV_NODES.durable", "INFO.KV_NODES.durable"), ["ann"]),
        (("CREATE.KV_NODES.durable", "INFO.KV_NODES.durable"), ["durable"]),
        (("CREATE.*.ann", "CREATE.KV_NODES.*"), None),
        (("CREATE.*.*",), None),
        (("CREATE.*.>",), None),
        (("CREATE.KV_NODES.>",), None),
        (("CREATE.KV_PODS.ann", "DELETE.*.ann"), None),
    ],
)
def test_a_program_finds_the_names_that_it_may_give_to_consumers(
    allowed: Sequence[str], names: Sequence[str] | None
) -> None:
    assert names_of([f"$JS.API.CONSUMER.{each}" for each in allowed], "KV_NODES") == names


def test_only_people_are_told_whether_a_server_refuses_earlier_credentials_also_by_one_of_before() -> None:
    people = ("reader", "operator")

    def told(publish: Mapping[str, Collection[str]]) -> dict[str, bool | None]:
        return {role: is_refusing_earlier(each) for role, each in publish.items()}

    unknown: dict[str, bool | None] = dict.fromkeys(ROLES, None)
    for earlier in (True, False):
        now = {role: permissions_of(each, "x", (), earlier=earlier).publish for role, each in ROLES.items()}
        assert told(now) == unknown | dict.fromkeys(people, not earlier)
    before = {role: each.publish for role, each in earlier_permissions().items()}
    assert told(before) == unknown | dict.fromkeys(people, False)
    assert told({"": (), "owner": (">",)}) == {"": None, "owner": None}


@pytest.mark.parametrize("earlier", [False, True])
def test_the_account_of_publishers_reaches_what_publishers_need_and_nothing_else(*, earlier: bool) -> None:
    keys = Keys.new(ROLES)
    main, publishers, _ = accounts(keys.server_configuration(ROLES, revoked={}, now=1000.0, earlier=earlier))
    needed = {"tas.samples.*.*": "tas.samples.*.*", "tas.tables.*.*": "tas.tables.*.*"}
    if earlier:
        needed |= {f"tas.api.STREAM.INFO.{name}": f"$JS.API.STREAM.INFO.{name}" for name in ("SAMPLES", "TABLES")}
    assert {each["subject"] for each in main["nats"]["exports"]} == {*needed.values()}
    imports = publishers["nats"]["imports"]
    assert {each.get("local_subject", each["subject"]): each["subject"] for each in imports} == needed
    assert {each["account"] for each in publishers["nats"]["imports"]} == {main["sub"]}
    assert {each["role"] for each in publishers["nats"]["signing_keys"]} == set(PUBLISHER_ROLES)
    assert (set(PUBLISHER_ROLES) <= {each["role"] for each in main["nats"]["signing_keys"]}) is earlier
    limits = publishers["nats"]["limits"]
    assert (limits["mem_storage"], limits["disk_storage"], "exports" in publishers["nats"]) == (0, 0, False)


def test_a_publisher_may_only_publish_and_asks_about_its_streams_while_earlier_programs_go_on() -> None:
    node = ROLES["node"]
    own = ["tas.samples.a_b.machine"]
    asked = ["$SYS.REQ.USER.INFO", *(f"{api}.STREAM.INFO.SAMPLES" for api in ("$JS.API", "tas.api"))]
    tags = ["source:machine"]
    assert [*permissions_of(node, "a_b", tags).publish] == own
    assert sorted(permissions_of(node, "a_b", tags, earlier=True).publish) == sorted([*own, *asked])
    for role in PUBLISHER_ROLES:
        assert not [each for each in permissions_of(ROLES[role], "x", tags).publish if not each.startswith("tas.")]


def test_a_configuration_says_whether_it_takes_credentials_of_an_earlier_version() -> None:
    keys = Keys.new(ROLES)
    for earlier in (True, False):
        configuration = keys.server_configuration(ROLES, revoked={}, now=1000.0, earlier=earlier)
        assert keys.takes_earlier(configuration) is earlier
    assert keys.takes_earlier("damaged") is None
    assert Keys.new(ROLES).takes_earlier(configuration) is None
    (main, *_) = accounts(keys.server_configuration(ROLES, revoked={}, now=1000.0, earlier=True))
    assert {each["role"] for each in main["nats"]["signing_keys"]} == ROLES.keys()


def test_a_table_is_published_only_by_who_may_publish_for_all_nodes() -> None:
    def tables(role: str, *tags: str) -> list[str]:
        found = permissions_of(ROLES[role], "a_b", tags).publish
        return [subject for subject in found if overlap(subject, "tas.tables.>")]

    assert {role: tables(role, "source:machine", "other:x") for role in ROLES if tables(role, "source:machine")} == {
        "all": ["tas.tables.windows.*", "tas.tables.machine.*", "tas.tables.annotations.*"],
        "collect": ["tas.tables.machine.*"],
        "inventory": ["tas.tables.annotations.*"],
        "publisher": ["tas.tables.machine.*"],
        "windows": ["tas.tables.windows.*"],
    }


def test_only_materialize_writes_tables_to_the_view_and_has_their_consumer() -> None:
    writers = {
        worker
        for worker, spec in WORKERS.items()
        if any(overlap(each, NODES.subject("_table.machine.1-0")) for each in spec.rights.writes)
    }
    assert "$KV.NODES._table.*.*" in WORKERS["materialize"].rights.writes
    assert writers == {"materialize"}
    for role, each in ROLES.items():
        permissions = each.rights.permissions
        consumer = f"$JS.API.CONSUMER.MSG.NEXT.TABLES.{TABLES_CONSUMER}"
        may = any(overlap(subject, consumer) for subject in permissions.publish)
        denied = any(overlap(subject, consumer) for subject in permissions.denied)
        assert (may and not denied) is (role in ("materialize", "all")), role


def test_new_rights_change_the_configuration_and_a_later_time_does_not() -> None:
    keys = Keys.new(ROLES)
    first = keys.server_configuration(ROLES, revoked={}, now=1000.0)
    assert keys.server_configuration(ROLES, revoked={}, now=2000.0, before=first) == first
    revoked = {Nkey.new(NkeyKind.USER).public: 1500}
    second = keys.server_configuration(ROLES, revoked=revoked, now=2000.0, before=first)
    assert second != first
    assert second.splitlines()[:3] == first.splitlines()[:3]  # a running server takes no other operator
    (account,) = (line.split()[1] for line in second.splitlines() if line.startswith(f"  {keys.account.public}: "))
    nats = claims_of(account)["nats"]
    assert nats["revocations"] == revoked
    assert {key["role"] for key in nats["signing_keys"]} == ROLES.keys() - set(PUBLISHER_ROLES)
    denied = {key["role"]: "deny" in key["template"]["pub"] for key in nats["signing_keys"]}
    assert [role for role, is_denied in denied.items() if is_denied] == ["windows", "reader", "operator"]
    assert keys.server_configuration(ROLES, revoked={}, now=3000.0, before="damaged\n") not in ("damaged\n", first)
    secret = (keys.operator, keys.account, keys.publishers, keys.system, *keys.roles.values())
    assert all(key.seed not in second for key in secret)


def test_credentials_name_the_user_its_sources_and_the_key_of_its_role() -> None:
    keys, now = Keys.new(ROLES), time.time()
    text = keys.credentials("node", "a_b", tags=["source:x"], now=now, expires=now + 60)
    shown = parse_credentials(text.encode(), "file")
    assert shown.name == "a_b"
    assert shown.expires == int(now + 60)
    claims = user_claims(shown.jwt)
    assert (claims.name, claims.tags, claims.issuer) == ("a_b", ("source:x",), keys.roles["node"].public)
    assert (claims.account, claims.seconds, claims.values("source")) == (keys.publishers.public, 60, ("x",))
    process = user_claims(parse_credentials(keys.credentials("watch", "w", now=now).encode(), "file").jwt)
    assert (process.account, process.seconds) == (keys.account.public, None)
