"""Numbers of things in texts for people."""


def counted(number: int, one: str, many: str = "") -> str:
    """A number and the words behind it: `1 node`, `2 nodes`, `2 policies`, `2 processes`.

    `many` is for words whose plural is another: `counted(n, "node is", "nodes are")`.
    """
    return f"{number} {one}" if number == 1 else f"{number} {many or _plural(one)}"


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun.removesuffix('y')}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
