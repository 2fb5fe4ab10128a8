"""Numbers of things in texts."""

import pytest

from tas.values.nouns import counted


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("node",), ("0 nodes", "1 node", "2 nodes")),
        (("more policy",), ("0 more policies", "1 more policy", "2 more policies")),
        (("key",), ("0 keys", "1 key", "2 keys")),
        (("process",), ("0 processes", "1 process", "2 processes")),
        (("patch",), ("0 patches", "1 patch", "2 patches")),
        (("series", "series"), ("0 series", "1 series", "2 series")),
        (("of 3 nodes is", "of 3 nodes are"), ("0 of 3 nodes are", "1 of 3 nodes is", "2 of 3 nodes are")),
    ],
)
def test_the_words_behind_a_number_agree_with_it(words: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert tuple(counted(number, *words) for number in range(3)) == found
