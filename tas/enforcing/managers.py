"""The field managers of TAS."""

FIELD_MANAGER = "tas-on-nats"
"""The field manager of every patch of this product, but of annotations for others."""

ANNOTATIONS_MANAGER = "tas-on-nats-annotations"
"""The field manager of annotations that are written for extenders of other people: the entry has their time."""

OWN_MANAGERS = frozenset({FIELD_MANAGER, "extender"})
"""The field managers of TAS's labels: of this product, and of the original TAS (the name of its binary)."""
