"""The rights of each account of deploy/rbac, as the folders of the workers have them."""

from collections.abc import Iterable, Mapping
from functools import cache

from tas.diagnosis.rights import Right, rights_in
from workers.names import ALL_WORKERS
from workers.registry import WORKERS

TOGETHER = ("watch", "labels", "collect")
"""The workers of `tas run all` of which it always needs the rights."""


@cache
def accounts() -> Mapping[str, tuple[Right, ...]]:
    """The rights by account, without the metrics of `CUSTOM_METRICS`: each cluster has other ones."""
    own = [name for name, spec in WORKERS.items() if spec.account]
    of_all = (name for name in own if WORKERS[name].in_all is not None)
    return {f"tas-{name}": _rights_of(name) for name in own} | {f"tas-{ALL_WORKERS}": _joined(of_all)}


def rights_of(account: str) -> tuple[Right, ...]:
    """The rights that an account needs."""
    return accounts().get(account) or _joined(TOGETHER)


def _rights_of(worker: str) -> tuple[Right, ...]:
    return rights_in(WORKERS[worker].account)


def _joined(workers: Iterable[str]) -> tuple[Right, ...]:
    return tuple(dict.fromkeys(right for worker in workers for right in _rights_of(worker)))
