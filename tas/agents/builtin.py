"""The agents of the product, by their names in the file of agents."""

from tas.agents.congestion import Congestion
from tas.agents.file import Kinds
from tas.agents.foo import Foo
from tas.agents.pigeon import Pigeon
from tas.agents.rewards import Rewards
from tas.agents.safe import SafeBalance, SafeOverload
from tas.agents.trimaran import LowRisk, Peaks, RiskBalance, TargetLoad

BUILTIN: Kinds = {
    "safe-overload": SafeOverload,
    "safe-balance": SafeBalance,
    "congestion": Congestion,
    "pigeon-holing": Pigeon,
    "rl-priority": Rewards,
    "target-load": TargetLoad,
    "risk-balance": RiskBalance,
    "low-risk-overcommit": LowRisk,
    "peaks": Peaks,
    "foo": Foo,
}
