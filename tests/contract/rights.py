"""The rights that an earlier version gave to each role."""

import json
from pathlib import Path

from bus.rights.roles import Permissions

_FILE = Path(__file__).parent / "golden" / "rights" / "earlier.json"


def earlier_permissions() -> dict[str, Permissions]:
    """By role, what the last version before the account of publishers gave, with its templates."""
    found = json.loads(_FILE.read_text())
    return {role: Permissions(**{name: tuple(each) for name, each in of.items()}) for role, of in found.items()}
