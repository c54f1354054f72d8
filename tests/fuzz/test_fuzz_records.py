"""Records of any bytes: their neighbours arrive, and each is a row or a dead letter."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from fixtures.blocks import raw_block
from fixtures.hostile import AVRO_SCHEMA, FIELDS
from fuzz.loop import damaged, fuzz
from tallygate.core.avro import arrow_schema, encoder
from tallygate.core.blocks import decoded
from tallygate.core.decoding import Decoder
from tallygate.core.letters import MOST_SAID, Letter

TOKENS = (
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"\\", b"\\u", b"\\ud800", b"\\u0000", b"\n"),
    *(b"NaN", b"Infinity", b"-0", b"1e999", b"1e-999999999", b"0.1", b"9" * 30, b"null", b"true"),
    *(b'"0000-01-01"', b'"2026-01-01T00:00:00+99:99"', b'"9999-12-31T23:59:59-23:59"', b"\xed\xa0"),
    *(b"{}," * 100, b"[" * 600, b'"x":' * 3, b'"id":', b'"things":', b'"named":', b"\xef\xbb\xbf"),
)
GOOD: dict[str, Any] = {
    "id": 7,
    "account": "a\N{SNOWMAN}",
    "day": "2026-01-31",
    "amount": "12.50",
    "at": "2026-01-31T12:00:00Z",
    "things": [{"x": 1}, None],
    "named": {"a": 1},
}
PLAIN = pa.schema([(name, FIELDS.field(name).type) for name in ("id", "account", "at")])


def _value(chance: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say."""
    kind = chance.randrange(10 if depth < 4 else 7)
    if kind == 0:
        return None
    if kind == 1:
        return chance.random() < 0.5
    if kind == 2:
        return chance.choice((0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**40))
    if kind == 3:
        return chance.choice((0.0, -0.0, 1.5, 1e308, 5e-324, 0.1, 1e16, 1.0))
    if kind in (4, 5):
        return chance.choice((*GOOD.values(), "", "\0", "NaN", "x" * 100, "\ud800", "1e5", "--"))
    if kind == 6:
        return chance.choice(list(GOOD.values()))
    if kind == 7:
        return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    names = (*GOOD, "x", "y", "")
    return {chance.choice(names): _value(chance, depth + 1) for _ in range(chance.randrange(5))}


def _check(decoder: Decoder, good: bytes, values: list[bytes | None]) -> None:
    """Fail if a record harms another, is lost, or is a letter that cannot be kept."""
    raw = raw_block(good, *values, good)
    made = decoded(raw, decoder)
    offsets = made.rows.column("_offset").to_pylist()
    letters = [each.offset for each in made.letters]
    assert sorted([*offsets, *letters]) == list(range(len(values) + 2))
    assert {0, len(values) + 1} <= set(offsets)
    made.rows.validate(full=True)
    for letter in made.letters:
        assert 0 < len(letter.cause) <= MOST_SAID
        letter.cause.encode()
        assert Letter.read(letter.text()) == letter
    for index, value in enumerate(values, start=1):  # whatever its neighbours are
        alone = decoder.decode(raw_block(value))
        assert bool(alone[1]) == (index in letters)
        if not alone[1]:
            at = offsets.index(index)
            kept = [name for name in made.rows.schema.names if not name.startswith("_")]
            assert made.rows.slice(at, 1).select(kept) == alone[0].select(kept)


def _json(chance: random.Random) -> list[bytes | None]:
    def one() -> bytes | None:
        fields = {name: _value(chance) for name in GOOD if chance.random() < 0.3}
        text = json.dumps({**GOOD, **fields}).encode()
        kind = chance.randrange(4)
        if kind == 0:
            return text
        if kind == 1:
            return chance.choice((None, b"", json.dumps(_value(chance)).encode()))
        return damaged(text, chance, TOKENS)

    return [one() for _ in range(chance.choice((1, 1, 2, 5)))]


def test_any_json() -> None:
    decoder, good = Decoder("json", FIELDS), json.dumps(GOOD).encode()
    fuzz(_json, lambda values: _check(decoder, good, values))


def test_any_json_of_plain_types() -> None:
    """Which is decoded a block at a time, where it can be."""
    decoder, good = Decoder("json", PLAIN), json.dumps(GOOD).encode()
    fuzz(_json, lambda values: _check(decoder, good, values))


def test_any_line_of_csv() -> None:
    good = b'7,"a ""b""",2026-01-31,12.50,2026-01-31T12:00:00Z'
    decoder = Decoder("csv", pa.schema([FIELDS.field(number) for number in range(5)]))
    tokens = (b'"', b",", b"\n", b"\r", b"\0", b'""', b"\\", b"nan", b"1_0", b"\xff")
    fuzz(lambda chance: [damaged(good, chance, tokens)], lambda v: _check(decoder, good, [*v]))


def test_any_avro(tmp_path: Path) -> None:
    path = tmp_path / "r.avsc"
    path.write_text(json.dumps(AVRO_SCHEMA))
    row = {"id": 7, "kind": "B", "note": "x", "things": [{"x": [1, 2]}, {"x": []}]}
    good = encoder(str(path))(row)
    decoder = Decoder("avro", arrow_schema(str(path)), avro_schema=str(path))

    def made(chance: random.Random) -> list[bytes | None]:
        if chance.random() < 0.2:
            return [chance.randbytes(chance.randrange(40))]
        return [damaged(good, chance), damaged(good, chance)]

    fuzz(made, lambda values: _check(decoder, good, values))
