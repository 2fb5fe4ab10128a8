"""The version of the product."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache  # each reads the metadata of the package, and a process reports its version every 5 s
def product_version() -> str:
    """The version of the installed product."""
    try:
        return version("tas-on-nats")
    except PackageNotFoundError:
        return "unknown"
