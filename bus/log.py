"""structlog, loaded without rich.

If rich is installed, structlog loads it for tracebacks in colour, which triples the time of the import. The logs of TAS
have plain tracebacks. Every module gets structlog from here: the first one decides what structlog loads.
"""

from bus.optional import without

with without("rich"):
    import structlog

__all__ = ["structlog"]
