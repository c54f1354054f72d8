"""What is wrong with a pipeline's file is said with its place, before anything starts."""

import re
from pathlib import Path

import pytest

from tallygate.errors import ConfigError
from tallygate.spec import Files, PipelineSpec, Postgres, load_spec

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
        (
            "name: n",
            "name: n\nstatic: {previous: {file: a.csv, schema: id long}}\ntransform: SELECT 1",
            "a view is called 'previous', which stands for the step before",
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


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("failOnDataLoss", "False", "skipped in silence; to go on without them, .* --accept-loss"),
        ("FAILONDATALOSS", "no", "skipped in silence"),
        ("kafka.Isolation.Level", "read_uncommitted", "aborted transactions were never sent"),
        ("startingOffsets", "latest", "`start` says where"),
        ("startingoffsetsbytimestamp", "{}", "`start` says where"),
        ("startingTimestamp", "1", "`start` says where"),
        ("subscribe", "other", "`topic` or `pattern` says"),
        ("subscribePattern", ".*", "`topic` or `pattern` says"),
        ("assign", '{"t": [0]}', "`topic` or `pattern` says"),
    ],
)
def test_options_cannot_undo_what_is_promised(
    tmp_path: Path, option: str, value: str, said: str
) -> None:
    text = FILE.replace("text}", f"text, options: {{{option}: '{value}'}}}}")
    with pytest.raises(ConfigError, match=f"has the option {option} of source: .*{said}"):
        _load(tmp_path, text)


def test_options_that_promise_the_same_or_other_things_are_passed_on(tmp_path: Path) -> None:
    harmless = "failOnDataLoss: 'true', kafka.isolation.level: read_committed, minPartitions: '8'"
    _load(tmp_path, FILE.replace("text}", f"text, options: {{{harmless}}}}}"))


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("mode", "DROPMALFORMED", "neither dropped nor made null"),
        ("maxFileAge", "1d", "older files would be skipped in silence"),
        ("ignoreMissingFiles", "true", "skipped in silence"),
        ("ignoreCorruptFiles", "true", "skipped in silence"),
        ("fileNameOnly", "true", "taken for one"),
        ("maxFilesPerTrigger", "1", "`max_files` says"),
    ],
)
def test_options_of_files_cannot_undo_it_either(option: str, value: str, said: str) -> None:
    def files(**options: str) -> PipelineSpec:
        source = Files("rows", format="csv", schema="id long", options=options)
        return PipelineSpec(name="p", source=source, sink=Postgres("t"))

    with pytest.raises(ValueError, match=f"has the option {option} of source: .*{said}"):
        files(**{option: value})
    files(header="true", mode="FAILFAST")


def test_what_the_page_shows_can_be_loaded(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "pipelines.md"
    shown = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(shown) >= 2
    for text in shown:
        _load(tmp_path, text)
