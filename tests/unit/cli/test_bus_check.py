"""How `tas bus check` tells the rights on a server from those of this version."""

import msgspec

from bus.rights.roles import Permissions
from cli.rights.check import _Permitted, difference

NEEDED = Permissions(publish=("a", "b", "c"), subscribe=("i",), denied=("d",))


def found(**changes: object) -> _Permitted:
    rights = {"publish": {"allow": ["c", "b", "a"], "deny": ["d"]}, "subscribe": {"allow": ["i"]}} | changes
    return msgspec.convert(rights, _Permitted)


def test_equal_rights_in_any_order_have_no_difference() -> None:
    assert difference(found(), NEEDED) == ""


def test_each_difference_is_named() -> None:
    mend = ": give the servers the new auth.conf"
    assert difference(found(publish={"allow": ["a", "x"], "deny": ["d"]}), NEEDED) == (
        f"lacks publish b, c; has also publish x{mend}"
    )
    assert difference(found(publish={"allow": ["a", "b", "c", "1", "2", "3", "4"]}), NEEDED) == (
        f"has also publish 1, 2 and 2 more; lacks publish, denied d{mend}"
    )
    assert difference(found(subscribe={"allow": ["i", ">"]}), NEEDED) == f"has also subscribe >{mend}"


def test_a_user_without_limits_is_a_difference() -> None:
    assert "does not limit this user" in difference(None, NEEDED)
