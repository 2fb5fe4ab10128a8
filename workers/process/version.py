"""The version of the product."""

from importlib.metadata import PackageNotFoundError, version


def product_version() -> str:
    """The version of the installed product."""
    try:
        return version("tas-on-nats")
    except PackageNotFoundError:
        return "unknown"
