"""What a terminal would obey is shown as an escape, and all else as it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallygate.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\rb\nc\td", r"a\x0db\x0ac" + "\td"),
        ("\x00\x7f\x9b31m\x85", r"\x00\x7f\x9b31m\x85"),
        ("\u202etxt.exe\u2066\u2069", r"\u202etxt.exe\u2066\u2069"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\ud800", r"\ud800"),
        (
            "é \N{GRINNING FACE} \N{ARABIC LETTER ALEF}",
            "é \N{GRINNING FACE} \N{ARABIC LETTER ALEF}",
        ),
    ],
)
def test_what_a_terminal_obeys_is_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_text_may_have_lines() -> None:
    assert printable("a\n\x1bb\r\n", lines=True) == "a\n\\x1bb\\x0d\n"


@given(st.text() | st.text(st.characters(max_codepoint=0x9F)))
def test_what_is_printable_stays_so(text: str) -> None:
    shown = printable(text)
    shown.encode()  # as a terminal does
    assert len(shown.splitlines()) <= 1
    assert all(each.isprintable() or each == "\t" or ord(each) > 0x9F for each in shown)
    assert printable(shown) == shown
