"""Free ports: no two tests get the same port, in one process or in several."""

import subprocess
import sys

from tests.e2e.processes import BLOCK, free_ports

GIVE = f"from tests.e2e.processes import free_ports; print(*free_ports({BLOCK + 1})); input()"


def test_no_port_is_given_twice() -> None:
    command = [sys.executable, "-c", GIVE]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        given = free_ports(BLOCK + 1) + free_ports(1)
        for process in (one, other):
            assert process.stdout is not None
            given += map(int, process.stdout.readline().split())
    assert len(set(given)) == len(given) == 3 * (BLOCK + 1) + 1
