"""Types of the cells of CSV: a guess loses nothing, and what does not fit later is a bad row."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallygate.errors import ConfigError, InputError
from tallygate.kafka.csv_cells import SAMPLE, Cells, parse_types
from tallygate.kafka.record_files import Chunk, FileFormat, Position, notes_on_cells, read_chunks


def _read(folder: Path, text: str, cells: Cells | None = None, **options: Any) -> list[Chunk]:
    path = folder / "data.csv"
    path.write_text(text)
    return list(read_chunks(str(path), FileFormat.csv, cells=cells or Cells(), **options))


def _column(folder: Path, *values: str, cells: Cells | None = None) -> list[Any]:
    text = "x,_\n" + "".join(f"{value},_\n" for value in values)
    return [row["x"] for chunk in _read(folder, text, cells) for row in chunk.fields or ()]


@pytest.mark.parametrize(
    ("given", "guessed"),
    [
        (["1", "-20", "0"], [1, -20, 0]),
        (["1", "", "3"], [1, None, 3]),
        (["9223372036854775807"], [9223372036854775807]),
        (["1.5", "2", "-0.25", ""], [1.5, 2.0, -0.25, None]),
        (["19.90"], [19.9]),
        (["0.30000000000000004"], [0.30000000000000004]),
        (["true", "False"], [True, False]),
        (["", ""], [None, None]),
    ],
)
def test_types_are_guessed(tmp_path: Path, given: list[str], guessed: list[Any]) -> None:
    found = _column(tmp_path, *given)
    assert found == guessed
    assert list(map(type, found)) == list(map(type, guessed))


ODD = [
    "01234",
    "+5",
    "-0",
    "1e5",
    ".5",
    "5.",
    " 7",
    "1_000",
    "٣",
    "NaN",
    "NA",
    "-",
    "0x10",
    "1.2.3",
]
TOO_LONG = ["9223372036854775808", "0.12345678901234567890"]


@pytest.mark.parametrize("odd", [*ODD, *TOO_LONG, "true", "2026-01-01"])
def test_what_is_odd_leaves_its_column_text(tmp_path: Path, odd: str) -> None:
    assert _column(tmp_path, "1", odd, "") == ["1", odd, None]


@given(st.lists(st.one_of(st.integers(), st.floats(), st.decimals(), st.text("0123456789.-+eE"))))
def test_a_guess_loses_nothing(values: list[Any]) -> None:
    texts = [{"x": str(value)} for value in values]
    convert = Cells().converter(["x"], texts)
    for text in texts:
        row, reason = convert(text)
        assert reason is None
        value, before = row["x"], text["x"]
        if value is None:
            assert before == ""
        elif not isinstance(value, str):
            assert Decimal(repr(value)) == Decimal(before)
        else:
            assert value == before


def test_a_cell_that_does_not_fit_later_is_a_bad_row(tmp_path: Path) -> None:
    rows = ["dep_time,tail", *["517,N1"] * SAMPLE, "NA,N2", "0530,N3", "1,N4", ""]
    (chunk,) = _read(tmp_path, "\n".join(rows))
    assert chunk.fields is not None
    assert chunk.fields[-1] == {"dep_time": 1, "tail": "N4"}
    assert [(each.number, each.reason, each.raw) for each in chunk.bad] == [
        (
            SAMPLE + 1,
            "dep_time: 'NA' is not a long; say --null NA, --schema or --as-text",
            b'{"dep_time":"NA","tail":"N2"}',
        ),
        (
            SAMPLE + 2,
            "dep_time: '0530' is not a long; say --schema or --as-text",
            b'{"dep_time":"0530","tail":"N3"}',
        ),
    ]


def test_a_load_that_goes_on_guesses_as_the_one_that_began(tmp_path: Path) -> None:
    rows = ["id", *["007"], *["8"] * 20, ""]
    (whole,) = _read(tmp_path, "\n".join(rows))
    (rest,) = _read(tmp_path, "\n".join(rows), start=Position(10))
    assert rest.values == whole.values[10:]
    assert rest.values[0] == b'{"id":"8"}'


def test_the_user_names_types(tmp_path: Path) -> None:
    named = Cells(named={"x": "long"})
    assert _column(tmp_path, "007", "+5", "", cells=named) == [7, 5, None]
    assert _column(tmp_path, "1e3", ".5", cells=Cells(named={"x": "double"})) == [1000.0, 0.5]
    assert _column(tmp_path, "1", "2", cells=Cells(named={"x": "string"})) == ["1", "2"]
    (chunk,) = _read(tmp_path, "x,y\n7,8\nseven,NA\n", named)
    assert chunk.fields == [{"x": 7, "y": "8"}]
    assert [each.reason for each in chunk.bad] == ["x: 'seven' is not a long"]
    with pytest.raises(InputError, match=r"no column 'z'.*it has x, y"):
        _read(tmp_path, "x,y\n7,8\n", Cells(named={"z": "long"}))


def test_texts_can_be_kept_as_they_are(tmp_path: Path) -> None:
    assert _column(tmp_path, "1", "", cells=Cells(as_text=True)) == ["1", ""]


def test_a_word_can_stand_for_null(tmp_path: Path) -> None:
    assert _column(tmp_path, "1", "NA", "", cells=Cells(nulls=frozenset({"NA"}))) == [1, None, None]


def test_the_user_hears_of_columns_that_are_text_for_a_word(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b,c,d\n1,NA,x,NA\n2,1.5,NA,NA\nshort\n")
    (note,) = notes_on_cells(str(path), Cells())
    assert note == (
        "b stays text for cells that are 'NA'; with --null NA these are null, and the others of "
        "type double"
    )
    assert notes_on_cells(str(path), Cells(nulls=frozenset({"NA"}))) == []
    assert notes_on_cells(str(path), Cells(named={"b": "string"})) == []
    assert notes_on_cells(str(path), Cells(as_text=True)) == []
    assert notes_on_cells(str(tmp_path / "none.csv"), Cells()) == []


def test_types_are_written_as_in_sql() -> None:
    assert parse_types("id long, amount DOUBLE,`a, b` string") == {
        "id": "long",
        "amount": "double",
        "a, b": "string",
    }


@pytest.mark.parametrize("text", ["", "id", "id int", "id long amount double", "a long;b long"])
def test_other_types_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--schema.*`id long, amount double`"):
        parse_types(text)
