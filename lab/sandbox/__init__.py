"""A simulated cluster: the part of a Kubernetes API server that this product uses, in memory and on loopback.

`tests/contract/kubernetes` runs the same tests on the sandbox and on a real API server.
"""

from lab.sandbox.server import Sandbox, extender_entry

__all__ = ["Sandbox", "extender_entry"]
