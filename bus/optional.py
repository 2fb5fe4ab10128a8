"""Packages that a library imports if they are installed, although TAS uses nothing of what it then offers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(package: str) -> Iterator[None]:
    """Within the body an import of `package` fails, unless the package is loaded already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment] # the import system then raises ImportError
    try:
        yield
    finally:
        del sys.modules[package]
