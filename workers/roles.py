"""Every role of a closed bus: of processes, by the rights of their workers, and of people and other programs."""

from collections.abc import Mapping

from bus.rights.roles import OTHERS, Role, of_process
from workers.names import ALL_WORKERS, run_by, with_role, workers_of
from workers.registry import WORKERS


def _process(role: str) -> Role:
    return of_process(role, {name: WORKERS[name].rights for name in workers_of(role)})


_OWN = sorted(with_role(), key=lambda name: len(run_by(name)))
"""The workers with a role of their name; those of one worker first: in this order a server has them."""

ROLES: Mapping[str, Role] = {**{role: _process(role) for role in (*_OWN, ALL_WORKERS)}, **OTHERS}
"""Every role by its name, which is the role of its signing key."""
