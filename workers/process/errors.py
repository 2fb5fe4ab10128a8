"""Exit codes, and the errors that end a process with a single log line."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CANNOT_START = 2


class WorkerError(Exception):
    """Ends the process with one line: the cause is outside the process, and no bug."""

    exit_code = EXIT_FAILED


class StartError(WorkerError):
    """The process cannot start for a cause that the operator can correct: a port in use, a missing folder."""

    exit_code = EXIT_CANNOT_START
