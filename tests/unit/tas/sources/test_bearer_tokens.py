"""Which requests have a valid bearer token."""

import pytest

from tas.sources.bearer_tokens import MAX_TOKENS, parse_tokens, token_problem

TOKENS = {b"first-token", b"second+/token=="}


def test_each_line_of_a_file_is_a_token() -> None:
    assert parse_tokens(b"first-token\n\n  second+/token==\r\n") == TOKENS


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "has no token"),
        (b" \n\n", "has no token"),
        (b"good\nwith a space\n", "line 2: a token consists of"),
        (b"Bearer good\n", "line 1: a token consists of"),
        (b"\xff\xfe", "line 1: a token consists of"),
        ("tök".encode(), "line 1: a token consists of"),
        (b"=", "line 1: a token consists of"),
        (b"\n".join(b"%d" % number for number in range(MAX_TOKENS + 1)), f"{MAX_TOKENS + 1} tokens: must be at most"),
    ],
)
def test_an_invalid_file_is_an_error_that_quotes_no_token(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_tokens(text)
    assert "good" not in str(caught.value)


@pytest.mark.parametrize("header", ["Bearer first-token", "bearer first-token", "BEARER  second+/token== "])
def test_a_known_token_is_accepted(header: str) -> None:
    assert token_problem(header, TOKENS) is None


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (None, "is missing: must be Bearer and a token"),
        ("", "must be Bearer and a token"),
        ("first-token", "must be Bearer and a token"),
        ("Basic first-token", "must be Bearer and a token"),
        ("Bearer", "an unknown token"),
        ("Bearer ", "an unknown token"),
        ("Bearer first-toke", "an unknown token"),
        ("Bearer first-token2", "an unknown token"),
        ("Bearer FIRST-TOKEN", "an unknown token"),
        ("Bearer first-token second+/token==", "an unknown token"),
        ("Bearer \udcff", "an unknown token"),
    ],
)
def test_another_header_is_refused_without_being_quoted(header: str | None, problem: str) -> None:
    assert token_problem(header, TOKENS) == problem
