"""The node name of this machine."""

import re
import socket

from tas.values.names import is_subdomain


def node_name(hostname: str) -> str:
    """`hostname` as a valid node name: lower case, with `-` for characters that node names cannot have."""
    labels = (re.sub(r"[^a-z0-9-]+", "-", label).strip("-") for label in hostname.lower().split("."))
    name = ".".join(label for label in labels if label)[:253].rstrip("-.")
    return name if is_subdomain(name) else "localhost"


def own_node_name() -> str:
    """The node name of this machine."""
    return node_name(socket.gethostname())
