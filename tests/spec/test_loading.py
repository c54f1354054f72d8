"""What is wrong with a pipeline's file is said with its place, before anything starts."""

from pathlib import Path

import pytest

from tallygate.errors import ConfigError
from tallygate.spec import load_spec

FILE = """\
name: n
source: {topic: t, format: text}
sink: {table: t}
"""


def _load(folder: Path, text: str) -> None:
    path = folder / "p.yaml"
    path.write_text(text)
    load_spec(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{topic: t, format: text}", "payments", "line 2: source is no source; write a mapping"),
        ("{table: t}", "payments", "line 3: sink is no sink; write a mapping"),
        ("{table: t}", "{postgres: t}", "line 3: sink.postgres is no field; there are table, "),
        ("{table: t}", "{topc: t}", "line 3: sink.topc is no field; did you mean 'topic'?"),
        ("{table: t}", "{parquet: t, mode: append}", "sink.mode is no field; there are parquet"),
        ("text}", "text, start: yesterday}", "line 2: source.start 'yesterday' is no time"),
        ("name: n", "name: n\ntrigger: forever", "line 2: trigger 'forever' is no interval"),
        (
            "name: n",
            "name: n\nstatic: {a: {file: a.csv, schema: id long, refresh: daily}}",
            "line 2: static.a.refresh 'daily' is no interval",
        ),
        (
            "{table: t}",
            "{delta: t}\ndelivery: idempotent",
            "sink delta is always written exactly-once",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    _load(tmp_path, FILE)
    with pytest.raises(ConfigError, match="p.yaml") as raised:
        _load(tmp_path, FILE.replace(old, new))
    assert said in str(raised.value)
