"""Runs a command that does not outlive whoever started it: `tether.py PARENT_PID SIGNAL COMMAND...`

The process turns into the command and keeps its pid; Linux sends it the signal when the starting thread ends,
however it ends. Done here and not between fork and exec, where Python with threads may not run safely. Elsewhere
than on Linux the command just runs. Uses nothing but the standard library, as it runs isolated.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ties this process to its parent, then becomes the command."""
    parent, death_signal, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the process that started this one is gone")  # it died before we were tied to it
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
