"""A cluster in a box: the part of a Kubernetes API server that this product uses, in memory and on loopback.

Trusted because `tests/contract/kubernetes` asks the same of it and of a real API server.
"""

from sandbox.server import Sandbox, extender_entry

__all__ = ["Sandbox", "extender_entry"]
