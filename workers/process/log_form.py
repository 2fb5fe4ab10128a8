"""The format and the lowest level of log events."""

from enum import StrEnum


class LogFormat(StrEnum):
    """The format of log events."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """The least severe level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
