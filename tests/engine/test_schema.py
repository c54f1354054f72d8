"""A schema that cannot be read, or that files do not fit, is refused where it stands."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tallygate import Pipeline
from tallygate.engine.schema import names_columns
from tallygate.errors import ConfigError
from tallygate.settings import Settings

ROWS = """
name: checked
source:
  folder: {folder}
  format: {format}
  schema: {schema}
sink: {{table: t}}
static:
  names:
    file: {side}
    schema: {names}
transform: SELECT id, name FROM source JOIN names USING (id)
"""


def _check_rows(spark: SparkSession, settings: Settings, folder: Path, **given: str) -> None:
    """Check a pipeline whose source is the folder, and whose static side is a file beside it."""
    filled = {"format": "csv", "schema": "id long", "names": "id long, name string", **given}
    (folder / "checked.yaml").write_text(
        ROWS.format(folder=folder / "in", side=folder / "names.csv", **filled)
    )
    Pipeline.load(folder / "checked.yaml").look(spark, settings)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (
            {"schema": "id lonk"},
            "line 6: source.schema: 'id lonk' cannot be read: Unsupported data",
        ),
        ({"schema": "long"}, "line 6: source.schema: 'long' names no field. Write it as `id long"),
        ({"names": "id long,"}, "line 11: static.names.schema: 'id long,' cannot be read: Syntax"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused_where_it_stands(
    spark: SparkSession, settings: Settings, tmp_path: Path, declared: dict[str, str], said: str
) -> None:
    (tmp_path / "in").mkdir()
    _check_rows(spark, settings, tmp_path)
    with pytest.raises(ConfigError, match=re.escape(f"checked.yaml, {said}")):
        _check_rows(spark, settings, tmp_path, **declared)


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ("source: {topic: t, schema: id lonk}", "line 2: source.schema: 'id lonk' cannot be read"),
        ("source: {topic: t, schema: _key int}", "line 2: source.schema has a field '_key'"),
        (
            "source: {topic: t, schema: id varchar(9)}",
            "line 2: source.schema: 'id varchar(9)' cannot be decoded",
        ),
        (
            "sources:\n  a: {topic: a, schema: id long}\n  b:\n    topic: b\n    schema: id lonk\n"
            "transform: SELECT id FROM a JOIN b USING (id)",
            "line 6: sources.b.schema: 'id lonk' cannot be read",
        ),
    ],
)
def test_the_schema_of_a_topic_is_refused_where_it_stands(
    spark: SparkSession, settings: Settings, tmp_path: Path, sources: str, said: str
) -> None:
    file = tmp_path / "checked.yaml"
    for more in ("", "transform: SELECT id FROM source\n"):
        if more and "sources" in sources:
            continue
        file.write_text(f"name: checked\n{sources}\nsink: {{table: t}}\n{more}")
        with pytest.raises(ConfigError, match=re.escape(f"checked.yaml, {said}")):
            Pipeline.load(file).look(spark, settings)


@pytest.mark.parametrize(
    ("line", "separator", "names"),
    [
        ("id,name", ",", True),
        ('\ufeffID, "Name"\r', ",", True),
        ("id\tname", "\t", True),
        ("id,name", ";", False),
        ("name,id", ",", False),
        ("id", ",", False),
        ("id,name,more", ",", False),
        ("1,shark", ",", False),
        ("", ",", False),
    ],
)
def test_a_line_that_names_the_columns(line: str, separator: str, names: bool) -> None:
    assert names_columns(line, ["id", "name"], separator) is names


@pytest.mark.parametrize(
    ("file", "text", "place", "options"),
    [
        ("in/rows", "id\n1\n", "line 6: source.schema", "  schema: id long\n"),
        ("in/rows", "id\nshark\n", "line 6: source.schema", "  schema: id string\n"),
        (
            "names.csv",
            "id,name\n1,shark\n",
            "line 11: static.names.schema",
            "    schema: id long, name string\n",
        ),
    ],
)
def test_a_first_line_that_names_the_columns_is_refused_with_the_option(
    spark: SparkSession,
    settings: Settings,
    tmp_path: Path,
    file: str,
    text: str,
    place: str,
    options: str,
) -> None:
    """Also where all columns are text, and the names would be a row."""
    (tmp_path / "in").mkdir()
    (tmp_path / file).write_text(text)
    schema = "id string" if "id string" in options else "id long"
    said = f"{place}: the first line of {tmp_path / file} names the columns; say `options: {{header"
    with pytest.raises(ConfigError, match=re.escape(said)):
        _check_rows(spark, settings, tmp_path, schema=schema)
    path = tmp_path / "checked.yaml"
    indent = options[: len(options) - len(options.lstrip())]
    path.write_text(
        path.read_text().replace(options, f"{options}{indent}options: {{header: true}}\n")
    )
    Pipeline.load(path).look(spark, settings)


@pytest.mark.parametrize(
    ("file", "text", "declared", "said"),
    [
        (
            "in/rows",
            "1\nshark\n",
            {},
            r'line 6: source\.schema does not fit the data: .*"shark" \(in .*/in/rows\)\. Change',
        ),
        (
            "in/rows",
            "1,2\n",
            {},
            r"line 6: source\.schema does not fit .*CSV record: 1,2 \(in .*rows",
        ),
        (
            "in/rows",
            '{"id": "no"}\n',
            {"format": "json"},
            r"line 6: source\.schema does not fit .*field name 'id' and the value no",
        ),
        (
            "names.csv",
            "1,shark\n2\n",
            {},
            r"line 11: static\.names\.schema does not fit .*CSV record: 2 \(in .*/names\.csv\)",
        ),
    ],
)
def test_a_schema_that_does_not_fit_files_that_are_there_is_refused(
    spark: SparkSession,
    settings: Settings,
    tmp_path: Path,
    file: str,
    text: str,
    declared: dict[str, str],
    said: str,
) -> None:
    (tmp_path / "in").mkdir()
    _check_rows(spark, settings, tmp_path, **declared)
    (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=said):
        _check_rows(spark, settings, tmp_path, **declared)
