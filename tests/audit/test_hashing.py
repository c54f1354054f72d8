"""Equal rows have equal numbers, wherever they are from; rows that differ in anything do not."""

from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallygate.auditing.hashing import _NULL, row_hashes

TEXTS = st.lists(st.none() | st.text(max_size=40), min_size=1, max_size=20)


@given(TEXTS, TEXTS)
def test_a_text_has_one_number_in_every_block(before: list[str | None], texts: list[str]) -> None:
    alone = row_hashes([pa.array(texts, pa.string())])
    after_others = pa.array([*before, *texts], pa.string())
    assert (row_hashes([after_others])[len(before) :] == alone).all()
    assert (row_hashes([after_others.slice(len(before))]) == alone).all()
    assert len(set(alone.tolist())) == len(set(texts))


def test_no_byte_of_a_text_is_passed_over() -> None:
    whole = b"0123456789abcdefghijklmnopqrstuvwxyz"
    changed = [whole[:at] + b"!" + whole[at + 1 :] for at in range(len(whole))]
    shorter = [whole[:length] for length in range(len(whole))]
    padded = [whole + b"\0" * more for more in range(1, 20)]
    swapped = [whole[8:16] + whole[:8] + whole[16:]]
    values = [whole, *changed, *shorter, *padded, *swapped, None]
    numbers = row_hashes([pa.array(values, pa.binary())])
    assert len(set(numbers.tolist())) == len(values)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, 0, 1, -1, 2**63 - 1, -(2**63)], pa.int64()),
        ([None, 0.0, 1.0, -1.0, 1e300, float("nan"), float("inf"), 5e-324], pa.float64()),
        ([None, True, False], pa.bool_()),
        ([None, date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31)], pa.date32()),
        (
            [None, datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, microsecond=1)],
            pa.timestamp("us", "UTC"),
        ),
    ],
)
def test_values_that_differ_have_other_numbers(values: list[object], kind: pa.DataType) -> None:
    assert len(set(row_hashes([pa.array(values, kind)]).tolist())) == len(values)


def test_no_value_has_the_number_of_a_null() -> None:
    """Not even the one that stands for nulls within."""
    for value in (0, _NULL.astype(np.int64).item(), 1):
        with_null = pa.array([value, None], pa.int64())
        first = pa.array([5, 5], pa.int64())
        for columns in ([with_null], [first, with_null]):
            assert len(set(row_hashes(columns).tolist())) == 2


def test_a_text_has_one_number_in_every_type_of_text() -> None:
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    numbers = [row_hashes([pa.array(["7", None, "x" * 20], kind)]).tolist() for kind in kinds]
    assert numbers == [numbers[0]] * 4
    with pytest.raises(TypeError, match="have no hash"):
        row_hashes([pa.array([[1]])])


def test_the_same_value_has_one_number_in_every_width() -> None:
    numbers = [row_hashes([pa.array([7, None, -7], kind)]) for kind in (pa.int8(), pa.int64())]
    assert (numbers[0] == numbers[1]).all()
    zeros = row_hashes([pa.array([0.0, -0.0])])
    assert zeros[0] == zeros[1]
    odd = np.array([0x7FF8000000000001, 0x7FF8000000000000], np.uint64).view(np.float64)
    assert len(set(row_hashes([pa.array(odd)]).tolist())) == 1


def test_which_column_holds_a_value_counts() -> None:
    one, other = pa.array(["a", None, ""]), pa.array(["b", "", None])
    assert not (row_hashes([one, other]) == row_hashes([other, one])).any()
    assert not (row_hashes([one, other]) == row_hashes([one])).any()
