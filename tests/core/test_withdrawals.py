"""Markers behind dead letters that do not count."""

import pytest

from tallygate.core.withdrawals import PIPELINE, WITHDRAWN, Withdrawal


def test_a_marker_is_read_as_it_was_written() -> None:
    withdrawal = Withdrawal(b"p", ("a.topic-1_x", 12), 10**15)
    assert withdrawal.headers[1] == (WITHDRAWN, b"a.topic-1_x/12@1000000000000000")
    assert Withdrawal.read(withdrawal.headers, bare=True) == withdrawal


@pytest.mark.parametrize("text", [b"", None, b"t/1", b"t/1@", b"t/x@1", b"t/1@-1", b"t/1@1 "])
def test_what_is_no_marker_is_a_letter(text: bytes | None) -> None:
    marker = Withdrawal(b"p", ("t", 1), 2).headers
    assert Withdrawal.read(marker, bare=False) is None
    assert Withdrawal.read((*marker, ("more", b"")), bare=True) is None
    assert Withdrawal.read(marker[::-1], bare=True) is None
    assert Withdrawal.read(marker[1:], bare=True) is None
    assert Withdrawal.read(((PIPELINE, b"p"), (WITHDRAWN, text)), bare=True) is None
