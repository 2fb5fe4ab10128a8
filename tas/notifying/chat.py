"""Messages for a chat, as incoming webhooks take them: a JSON object with a text."""

import msgspec

from tas.notifying.digest import Group, digest_text

MAX_TEXT = 2000
"""The most characters of a message. Discord allows the fewest, 2,000 (facts.md V6)."""

_NO_BREAK = "\u2060"
"""A word joiner: invisible, and `@` before it calls nobody."""


def chat_body(groups: list[Group], *, field: str, cluster: str = "") -> bytes:
    """The body of a request, with the message in `field`. The first line names the cluster, if it has a name."""
    text = _harmless(f"cluster {cluster}:\n{digest_text(groups)}" if cluster else digest_text(groups))
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 1] + "…"
    return msgspec.json.encode({field: text})


def _harmless(text: str) -> str:
    """`text` with nothing that calls people: parts of it come from policies, as `@channel` or `<!channel>`."""
    return text.replace("@", f"@{_NO_BREAK}").replace("<", f"<{_NO_BREAK}")
