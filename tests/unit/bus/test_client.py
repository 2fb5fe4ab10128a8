"""The private names of nats-py that `bus.client` uses, and what nats-py does with them."""

import ast
import hashlib
import inspect
import re
from collections.abc import Iterator

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser

import bus.client
from bus.client import OneLife

OF_NATS = (Client, Parser, TcpTransport)

READ = {
    "_build_message": "aa959300fd919d98",
    "_current_server": "6ed74b16e7c4c799",
    "_flush_queue": "3148c13fb31dfcba",
    "_io_writer": "d0a97c44a8ecfc06",
    "_pending": "692adbcbe769ba73",
    "_pending_data_size": "4c764e05a35f6b47",
    "_pongs": "34de71d764d44232",
    "_process_err": "794ffa3ad7e569d5",
    "_process_headers": "02aec658df1712d7",
    "_process_info": "cc597b3b901e9a73",
    "_process_op_err": "df1f18cbd8ec5dfe",
    "_process_pong": "3760744f756603d2",
    "_server_info": "eed389d761f04c76",
    "_transport": "21a17bcbc3a593f0",
}
"""By private name, a digest of all methods of nats-py in which it occurs, as somebody has read them.

After a new release: read these methods beside `bus/client.py`, then write the new digest here. What must stay true is
in docs/decisions/2026-11-29-inside-nats-py.md.
"""


def methods() -> Iterator[tuple[str, str]]:
    """The methods and properties of nats-py's classes: name and source."""
    for kind in OF_NATS:
        for name, found in vars(kind).items():
            function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
            if inspect.isfunction(function):
                yield f"{kind.__name__}.{name}", inspect.getsource(function)


def private_names() -> set[str]:
    """The private names of nats-py in `bus.client`: those that it reads or sets, and the methods that it overrides."""
    tree = ast.parse(inspect.getsource(bus.client))
    named = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
    named |= {each.name for each in ast.walk(tree) if isinstance(each, ast.AsyncFunctionDef | ast.FunctionDef)}
    named |= {each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    own = {"_on_lost", "_on_forbidden", "_without"}
    return {name for name in named - own if re.fullmatch(r"_[a-z]\w*", name)}


def test_nats_py_does_with_its_private_names_what_it_did_when_somebody_read_it() -> None:
    sources = dict(methods())
    using = {
        name: {of: text for of, text in sources.items() if re.search(rf"\b{name}\b", text)} for name in private_names()
    }
    found = {
        name: hashlib.sha256("".join(found[of] for of in sorted(found)).encode()).hexdigest()[:16]
        for name, found in using.items()
    }
    changed = {name for name in READ.keys() | found if found.get(name) != READ.get(name)}
    assert {name: sorted(using.get(name, ())) for name in changed} == {}


def test_each_method_of_ours_with_a_private_name_is_one_of_nats_py() -> None:
    overridden = {name: found for name, found in vars(OneLife).items() if re.fullmatch(r"_[a-z]\w*", name)}
    parameters = {name: list(inspect.signature(found).parameters) for name, found in overridden.items()}
    assert parameters == {name: list(inspect.signature(getattr(Client, name)).parameters) for name in overridden}
