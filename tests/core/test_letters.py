"""A dead letter as text, and back."""

import pytest

from tallygate.core.letters import Letter


@pytest.mark.parametrize("value", [b"text", b"\xff\x00", b"", None])
@pytest.mark.parametrize("key", [b"k", b"\xfe", None])
def test_a_letter_is_the_same_after_it_was_kept(key: bytes | None, value: bytes | None) -> None:
    letter = Letter("t", 1, 2, "why", key, value, 3)
    assert Letter.read(letter.text()) == letter
    assert "\n" not in letter.text()


def test_text_can_be_read_by_people() -> None:
    assert '"value": "not JSON"' in Letter("t", 0, 0, "why", None, b"not JSON").text()
