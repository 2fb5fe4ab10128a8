"""Runs a command that does not outlive the process that starts it: `tether.py PARENT_PID SIGNAL COMMAND...`

This process becomes the command and keeps its pid. Linux sends the signal when the starting thread ends, for any
reason. This is a separate program because Python code between fork and exec is not safe beside threads. On other
systems the command just runs. Only the standard library is available (`python -I -S`).
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Requests the signal for the death of the parent, then becomes the command."""
    parent, death_signal, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the parent process has ended")  # before the signal was requested
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
