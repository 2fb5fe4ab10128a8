"""Every role of a closed bus: of processes, by the rights of their workers, and of people and other programs."""

from collections.abc import Mapping

from bus.rights.roles import OTHERS, Role, of_process
from workers.names import ALL_WORKERS, with_role, workers_of
from workers.registry import WORKERS


def _process(role: str) -> Role:
    return of_process(role, {name: WORKERS[name].rights for name in workers_of(role)})


ROLES: Mapping[str, Role] = {**{role: _process(role) for role in (*with_role(), ALL_WORKERS)}, **OTHERS}
"""Every role by its name, which is the role of its signing key."""
