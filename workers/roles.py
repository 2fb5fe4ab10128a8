"""Every role of a closed bus: of processes, by the rights of their workers, and of people and other programs."""

from collections.abc import Mapping

from bus.rights.roles import OTHERS, Role, of_process
from workers.registry import ALL_WORKERS, ON_EACH_NODE, WORKERS, run_by, with_commands, workers_of


def _process(role: str) -> Role:
    return of_process(role, {name: WORKERS[name].rights for name in workers_of(role)})


_OWN = sorted(
    (spec.name for spec in with_commands() if spec.name not in ON_EACH_NODE), key=lambda name: len(run_by(name))
)
"""The workers with a role of their name; those of one worker first: in this order a server has them."""

ROLES: Mapping[str, Role] = {**{role: _process(role) for role in (*_OWN, ALL_WORKERS)}, **OTHERS}
"""Every role by its name, which is the role of its signing key."""
