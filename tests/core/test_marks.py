"""Headers of our name are believed only where we wrote them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallygate.core.marks import OURS, given_back, is_mark, number, put_aside
from tallygate.core.record import Headers

NAMES = st.one_of(
    st.sampled_from(["", "own", "tallygate", "tallygate.topic", "tallygate.was.topic"]),
    st.builds(lambda parts: OURS + ".".join(parts), st.lists(st.sampled_from(["was", "x", ""]))),
)
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=3))).map(tuple)


@given(HEADERS)
def test_what_is_put_aside_is_given_back_however_often(headers: Headers) -> None:
    once = put_aside(headers)
    twice = put_aside(once)
    assert not any(is_mark(name) for name, _ in twice)
    assert given_back(once) == headers
    assert given_back(given_back(twice)) == headers
    assert given_back((*once, ("tallygate.topic", b"t"), ("tallygate.tier", b"1"))) == headers


def test_only_headers_of_our_name_are_put_aside() -> None:
    own: Headers = (("own", b"1"), ("tallygate", b"2"), ("Tallygate.topic", b"3"))
    assert put_aside(own) == own
    assert put_aside((("tallygate.topic", b"x"),)) == (("tallygate.was.topic", b"x"),)
    assert put_aside((("tallygate.was.a", b"x"),)) == (("tallygate.was.was.a", b"x"),)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"0", 0), (b"017", 17), (b"9" * 18, 10**18 - 1), (b"%d" % (2**63 - 1), 2**63 - 1)]
    + [(bad, -5) for bad in (None, b"", b"-9", b"+1", b" 1", b"x", b"\xff", b"9" * 19)]
    + [(bad.encode(), -5) for bad in ("²", "\N{ARABIC-INDIC DIGIT ONE}", "1_000", "1.0")],
)
def test_a_number_is_one_or_is_not(content: bytes | None, expected: int) -> None:
    assert number(content, -5) == expected
