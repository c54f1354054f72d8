"""A number for each row of a block, which is another one for almost every other content.

It is made column by column, over Arrow's own memory, since a call for each value would cost more
than reading and decoding it did. Texts are taken in words of eight bytes: each word is scrambled
with its place in the text, the words of a text are added up, and its length goes in as well. What
comes out depends on values alone: not on the block, the order of rows or the width of an integer.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.uint64]

_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""Factors of a mixer whose every bit of output depends on every bit of input (splitmix64)."""
_STEP = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0xD6E8FEB86659FD93)
_TEXTS = (
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_large_string,
    pa.types.is_large_binary,
)
_WORD = 8
_KEPT = np.array([(1 << (8 * left)) - 1 for left in range(_WORD + 1)], np.uint64)
"""The bits of a word that belong to a text of which so many bytes are left."""


def row_hashes(columns: Sequence[pa.Array]) -> Numbers:
    """One for each row; nulls count, and so does the order of the columns."""
    found = np.full(len(columns[0]), _STEP)
    for column in columns:
        found *= _STEP
        found += _values(column)
        _mixed(found)
        if column.null_count:
            # In a way that no value can take: what it adds depends on all that came before.
            missing = np.asarray(column.is_null())
            found[missing] = _mixed(found[missing] ^ _NULL)
    return found


def _values(column: pa.Array) -> Numbers:
    """A number for each value, and some number for a null."""
    kind = column.type
    if any(is_text(kind) for is_text in _TEXTS):
        return _texts(column.cast(pa.binary()).fill_null(b""))
    if pa.types.is_floating(kind):
        return _bits_of_floats(column)
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.view(pa.int32())
    elif not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise TypeError(f"rows with a column of type {kind} have no hash")
    return np.asarray(column.cast(pa.int64()).fill_null(0)).view(np.uint64)


def _bits_of_floats(column: pa.Array) -> Numbers:
    """The same for both zeros, and for whatever is no number."""
    numbers = np.asarray(column.cast(pa.float64()).fill_null(0.0)) + 0.0
    return np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64)


def _texts(column: pa.Array) -> Numbers:
    count = len(column)
    _, places, content = column.buffers()
    ends = np.frombuffer(places, np.int32, count + 1, column.offset * 4).astype(np.int64)
    text = np.zeros(ends[-1] - ends[0] + _WORD, np.uint8)  # so that a word may begin at the last
    if content is not None:
        text[:-_WORD] = np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]
    ends -= ends[0]
    lengths = np.diff(ends)
    words = np.maximum(1, (lengths + _WORD - 1) >> 3)
    firsts = np.cumsum(words) - words
    before = (np.arange(words.sum()) - np.repeat(firsts, words)) * _WORD  # in the same text
    anywhere = np.ndarray(len(text) - _WORD + 1, "<u8", text, strides=(1,))
    read = anywhere[np.repeat(ends[:-1], words) + before]
    read &= _KEPT[np.minimum(_WORD, np.repeat(lengths, words) - before)]
    read += (before + 1).view(np.uint64) * _STEP
    sums: Numbers = np.add.reduceat(_mixed(read), firsts)
    return _mixed(sums + lengths.astype(np.uint64))


def _mixed(numbers: Numbers) -> Numbers:
    """In place."""
    numbers ^= numbers >> np.uint64(30)
    numbers *= _FIRST
    numbers ^= numbers >> np.uint64(27)
    numbers *= _SECOND
    numbers ^= numbers >> np.uint64(31)
    return numbers
