"""Damaged files for `produce`: what is read of them is whole, and the rest is said."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fuzz.loop import damaged, fuzz
from tallygate.errors import InputError
from tallygate.kafka.csv_cells import Cells
from tallygate.kafka.record_files import FileFormat, notes_on_cells, read_chunks

ROWS: list[dict[str, Any]] = [{"id": n, "name": f"n{n}", "x": n / 3} for n in range(50)]
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "x", "type": "double"},
    ],
}


def _parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=20)


def _avro(path: Path) -> None:
    with path.open("wb") as file:
        fastavro.writer(file, AVRO, ROWS, codec="deflate", sync_interval=300)


def _csv(path: Path) -> None:
    path.write_text("id,name,x\n" + "".join(f'{r["id"]},"{r["name"]}",{r["x"]}\n' for r in ROWS))


def _lines(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


WRITERS: dict[FileFormat, Callable[[Path], None]] = {
    FileFormat.parquet: _parquet,
    FileFormat.avro: _avro,
    FileFormat.csv: _csv,
    FileFormat.json: _lines,
    FileFormat.lines: _lines,
}


@pytest.mark.parametrize("kind", FileFormat)
def test_any_damage(tmp_path: Path, kind: FileFormat) -> None:
    path = tmp_path / "data"
    WRITERS[kind](path)
    whole = path.read_bytes()
    tokens = (b'"', b",", b"\n", b"\r\n", b"\0", b"{", b"[", b"\xff", b"\\", b"Obj\x01", b"PAR1")

    def made(chance: random.Random) -> tuple[bytes, bool]:
        return damaged(whole, chance, tokens), chance.random() < 0.5

    def check(given: tuple[bytes, bool]) -> None:
        content, fields = given
        path.write_bytes(content)
        notes_on_cells(str(path), Cells())
        seen = 0
        for chunk in read_chunks(str(path), kind, rows=7, want_fields=fields):
            assert len(chunk.values) == len(chunk.numbers)
            assert chunk.fields is None or len(chunk.fields) == len(chunk.values)
            assert chunk.end.records >= seen
            seen = chunk.end.records

    fuzz(made, check, InputError)
