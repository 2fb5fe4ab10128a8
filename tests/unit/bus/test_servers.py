"""Who is connected to servers, page by page: what a server has not said is not known."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bus.servers import ASKS, CONNECTIONS, PAGES, Connected, ConnectionsAnswer, all_connected


def answer(server: str, jwts: Sequence[str] = (), *, total: int | None = None) -> dict[str, Any]:
    """As a server sends it."""
    connections = [{"cid": number, "jwt": jwt} for number, jwt in enumerate(jwts)]
    data = {"server_id": server, "total": len(jwts) if total is None else total, "connections": connections}
    return {"server": {"id": server, "name": "n"}, "data": data}


def failed(server: str) -> dict[str, Any]:
    return {"server": {"id": server}, "error": {"code": 500, "description": "no memory"}}


async def connected(servers: Sequence[str], pages: Sequence[Sequence[dict[str, Any]]]) -> tuple[Connected, list[int]]:
    """What is found where servers answer by `pages`, and the offsets that were asked."""
    offsets: list[int] = []

    async def ask(offset: int) -> Sequence[ConnectionsAnswer]:
        offsets.append(offset)
        page = offset // CONNECTIONS
        return msgspec.convert(pages[page] if page < len(pages) else [], list[ConnectionsAnswer])

    return await all_connected(ask, servers), offsets


async def test_no_answer_does_not_mean_that_nobody_is_connected() -> None:
    found, offsets = await connected(["a"], [])
    assert found == (frozenset(), frozenset(), {"a": "does not say who is connected: no answer"})
    assert offsets == [0] * ASKS, "it may be slow"
    found, _ = await connected([], [])
    assert not found.complete


async def test_a_server_without_connections_of_the_account_has_said_so() -> None:
    found, offsets = await connected(["a"], [[answer("a")]])
    assert (found, offsets) == ((frozenset(), frozenset("a"), {}), [0])


async def test_each_page_of_each_server_counts() -> None:
    total = 2 * CONNECTIONS + 1
    pages = [
        [answer("a", ["1"], total=total), answer("b", ["2"])],
        [answer("a", ["3"], total=total), answer("b")],
        [answer("a", ["4"], total=total), answer("b")],
    ]
    found, offsets = await connected(["a", "b"], pages)
    assert found == (frozenset("1234"), frozenset("ab"), {})
    assert offsets == [0, CONNECTIONS, 2 * CONNECTIONS]


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ([[answer("a")]], "does not say who is connected: no answer"),
        ([[answer("a"), failed("b")]], "does not say who is connected: no memory"),
        ([[answer("a"), answer("b", ["1", ""])]], "does not say by which credentials"),
        ([[answer("a"), answer("b", ["1"], total=CONNECTIONS + 1)]], "does not say who is connected: no answer"),
        (
            [[answer("a"), answer("b", ["1"], total=10**6)], *[[answer("b", total=10**6)]] * PAGES],
            f"has more than {PAGES * CONNECTIONS} connections",
        ),
    ],
    ids=["none", "an error", "without a JWT", "only the first page", "too many pages"],
)
async def test_what_a_server_has_not_said_is_not_known(pages: Sequence[Sequence[dict[str, Any]]], reason: str) -> None:
    found, offsets = await connected(["a", "b"], pages)
    assert (found.complete, found.unknown) == (frozenset({"a"}), {"b": reason})
    assert len(offsets) <= PAGES
    assert found.jwts <= {"1"}


async def test_a_server_that_nobody_has_named_counts_too() -> None:
    found, _ = await connected([], [[answer("new", ["1"])]])
    assert found == (frozenset("1"), frozenset(["new"]), {})
