"""Hostile records between good ones, as a decoder sees them."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from fixtures.blocks import raw_block
from fixtures.hostile import (
    AVRO,
    AVRO_SCHEMA,
    FIELDS,
    HOSTILE,
    MAX_RECORD,
    MISNAMED,
    Hostile,
)
from tallygate.core.avro import arrow_schema, encoder
from tallygate.core.blocks import decoded
from tallygate.core.decoding import Decoder
from tallygate.core.letters import MOST_KEPT, MOST_SAID, Letter, record_size

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _block(record: Hostile) -> pa.RecordBatch:
    good = b'{"id": 1}'
    raw = raw_block(good, record.value, good)
    raw = raw.set_column(0, "key", pa.array([None, record.key, None], pa.binary()))
    held = [{"key": name, "value": content} for name, content in record.headers]
    if record.misnamed:
        held.append({"key": "\N{REPLACEMENT CHARACTER}", "value": None})
    return raw.append_column("headers", pa.array([None, held, None], HEADERS))


@pytest.mark.parametrize("record", [*HOSTILE, MISNAMED], ids=lambda record: record.name[:40])
def test_it_is_a_dead_letter_and_its_neighbours_arrive(record: Hostile) -> None:
    made = decoded(_block(record), Decoder("json", FIELDS, largest=MAX_RECORD))
    assert made.rows.column("_offset").to_pylist() == ([0, 1, 2] if record.fit else [0, 2])
    assert [each.offset for each in made.letters] == ([] if record.fit else [1])
    for letter in made.letters:
        assert 0 < len(letter.cause) <= MOST_SAID
        assert record_size(letter.key, letter.value, letter.headers) <= MOST_KEPT
        assert Letter.read(letter.text()).cause == letter.cause


@pytest.mark.parametrize("name", AVRO)
def test_so_is_a_record_of_avro(tmp_path: Path, name: str) -> None:
    path = tmp_path / "r.avsc"
    path.write_text(json.dumps(AVRO_SCHEMA))
    good = encoder(str(path))({"id": 7, "kind": "A", "note": "x", "things": [{"x": [1]}]})
    decoder = Decoder("avro", arrow_schema(str(path)), avro_schema=str(path), largest=MAX_RECORD)
    made = decoded(raw_block(good, AVRO[name], good), decoder)
    assert made.rows.column("_offset").to_pylist() == [0, 2]
    (letter,) = made.letters
    assert "is not of the Avro schema: " in letter.cause
