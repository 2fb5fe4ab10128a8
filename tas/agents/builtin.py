"""The agents of the product, by their names in the file of agents."""

from tas.agents.congestion import Congestion
from tas.agents.file import Kinds
from tas.agents.foo import Foo
from tas.agents.safe import SafeBalance, SafeOverload

BUILTIN: Kinds = {
    "safe-overload": SafeOverload,
    "safe-balance": SafeBalance,
    "congestion": Congestion,
    "foo": Foo,
}
