"""The Secret from which the extender mounts its certificate."""

from base64 import b64encode
from collections.abc import Mapping

NAME = "extender-secret"
"""As in the Deployment of the original, which mounts it at `/tas/cert`."""

NAMESPACE = "telemetry-aware-scheduling"


def secret_manifest(files: Mapping[str, bytes], namespace: str) -> str:
    """The Secret as YAML. `files`: `tls.crt` and `tls.key`, which its type requires, and `ca.crt`."""
    data = "".join(f"  {name}: {b64encode(content).decode()}\n" for name, content in files.items())
    return (
        "apiVersion: v1\nkind: Secret\n"
        f"metadata:\n  name: {NAME}\n  namespace: {namespace}\n"
        f"type: kubernetes.io/tls\ndata:\n{data}"
    )
