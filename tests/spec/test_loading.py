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


def _load(folder: Path, text: str) -> PipelineSpec:
    path = folder / "p.yaml"
    path.write_text(text)
    return load_spec(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{topic: t, format: text}", "payments", "line 2: source is not a source; write a mapping"),
        ("{table: t}", "payments", "line 3: sink is not a sink; write a mapping"),
        ("{table: t}", "{postgres: t}", "line 3: sink.postgres is not a field; there are table, "),
        ("{table: t}", "{topc: t}", "line 3: sink.topc is not a field; did you mean 'topic'?"),
        ("{table: t}", "{parquet: t, size: 9}", "sink.size is not a field; there are parquet"),
        ("text}", "text, start: yesterday}", "line 2: source.start 'yesterday' is not a time"),
        ("name: n", "name: n\ntrigger: forever", "line 2: trigger 'forever' is not an interval"),
        (
            "name: n",
            "name: n\nstatic: {a: {file: a.csv, schema: id long, refresh: daily}}",
            "line 2: static.a.refresh 'daily' is not an interval",
        ),
        (
            "{table: t}",
            "{delta: t}\ndelivery: idempotent",
            "sink delta is always written exactly-once",
        ),
        (
            "name: n",
            "name: n\nstatic: {previous: {file: a.csv, schema: id long}}\ntransform: SELECT 1",
            "line 2: static.previous cannot be called 'previous', which stands for the step before",
        ),
        (
            "{table: t}",
            "{console: 9}\ndelivery: at-least-once\non_error: dead-letter",
            "line 5: on_error is `dead-letter`, and the sink keeps no ledger",
        ),
        (
            "{table: t}",
            "{table: t}\ndelivery: at-most-once\non_error: dead-letter",
            "line 5: on_error is `dead-letter`, and at-most-once saves offsets first",
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


TOPIC = "a topic keeps every record and cannot take one back; append, or write to PostgreSQL or"
FOLDER = "a file that readers may have open is never changed; append, or write to PostgreSQL or"
VIEW = "a view in memory has no key by which to find the row to change; append, replace the whole"


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ("topic: t\n  mode: upsert", f"line 5: sink.mode cannot be upsert: {TOPIC} Delta"),
        ("topic: t\n  mode: replace", f"line 5: sink.mode cannot be replace: {TOPIC} Delta"),
        ("topic: t\n  key: id\n  mode: upsert", f"line 6: sink.mode cannot be upsert: {TOPIC}"),
        ("parquet: t\n  mode: upsert", f"line 5: sink.mode cannot be upsert: {FOLDER} Delta"),
        # Not that the sink has no key: with one it would be refused all the same.
        ("parquet: t\n  key: id\n  mode: upsert", f"line 6: sink.mode cannot be upsert: {FOLDER}"),
        ("parquet: t\n  mode: replace", f"line 5: sink.mode cannot be replace: {FOLDER}"),
        ("memory: t\n  mode: upsert", f"line 5: sink.mode cannot be upsert: {VIEW}"),
        ("console: 9\n  mode: update", "line 5: sink.mode input should be 'append', 'upsert' or"),
    ],
)
def test_a_sink_refuses_a_mode_that_it_cannot_take(tmp_path: Path, sink: str, said: str) -> None:
    with pytest.raises(ConfigError, match="p.yaml") as raised:
        _load(tmp_path, FILE.replace("sink: {table: t}", f"sink:\n  {sink}"))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "sink",
    [
        "{topic: t, mode: append}",
        "{parquet: t, mode: append}",
        *(
            f"{{{of}: m, mode: {mode}}}\ndelivery: at-least-once"
            for of, modes in (
                ("memory", ("append", "replace")),
                ("foreach", ("append", "upsert", "replace")),
            )
            for mode in modes
        ),
    ],
)
def test_a_mode_that_the_sink_has_can_be_said(tmp_path: Path, sink: str) -> None:
    _load(tmp_path, FILE.replace("{table: t}", sink))


@pytest.mark.parametrize("place", ["table: t", "delta: t"])
def test_upsert_needs_a_key(tmp_path: Path, place: str) -> None:
    said = "p.yaml, line 3: sink with mode upsert needs a key: the columns that identify a row."
    with pytest.raises(ConfigError, match=said):
        _load(tmp_path, FILE.replace("table: t", f"{place}, mode: upsert"))


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_key_of_delta_needs_upsert(tmp_path: Path, mode: str) -> None:
    said = f"line 3: sink with mode {mode} has no use for a key; it goes with upsert"
    with pytest.raises(ConfigError, match=said):
        _load(tmp_path, FILE.replace("table: t", f"delta: t, mode: {mode}, key: id"))


@pytest.mark.parametrize(
    ("step", "has"),
    [
        ("group_by: animal", "group_by"),
        ("window: {on: at, size: 1 hour}", "window"),
        ("window: {on: at, size: 1 hour}\n  group_by: [animal]", "window and group_by"),
    ],
)
def test_groups_without_an_aggregate_are_refused_with_what_they_lack(
    tmp_path: Path, step: str, has: str
) -> None:
    said = (
        f"transform.0 has {has}, and no aggregate that says what to compute of each group; add "
        "one, as `aggregate: {count: count(*)}`"
    )
    with pytest.raises(ConfigError, match=re.escape(said)):
        _load(tmp_path, FILE + f"transform:\n- {step}\n")
    _load(tmp_path, FILE + f"transform:\n- {step}\n  aggregate: {{count: count(*)}}\n")


def test_options_are_written_as_yaml_has_them(tmp_path: Path) -> None:
    given = "{header: true, maxColumns: 5, samplingRatio: 0.5, sep: ;, quote: 'no'}"
    taken = {
        "header": "true",
        "maxColumns": "5",
        "samplingRatio": "0.5",
        "sep": ";",
        "quote": "no",
    }
    side = f"static:\n  names: {{file: n, schema: id long, options: {given}}}\n"
    spec = _load(tmp_path, f"{FILE}{side}transform: SELECT 1\n")
    assert spec.static["names"].options == taken
    folder = FILE.replace("topic: t", f"folder: in, options: {given}")
    source = _load(tmp_path, folder).source
    assert isinstance(source, Files)
    assert source.options == taken
    assert Files("in", schema="id long", options={"header": False}).options == {"header": "false"}
    for wrong in ("{header: [true]}", "{header: null}", "[header]"):
        with pytest.raises(ConfigError, match=r"options"):
            _load(tmp_path, FILE.replace("topic: t", f"folder: in, options: {wrong}"))


@pytest.mark.parametrize("values", ["", "values: []", "values:"])
def test_a_pivot_has_its_columns_listed(tmp_path: Path, values: str) -> None:
    steps = f"transform:\n- sql: SELECT 1\n- pivot:\n    on: animal\n    {values}\n"
    with pytest.raises(ConfigError, match="p.yaml") as raised:
        _load(tmp_path, FILE + steps)
    assert f"line {8 if values else 6}: transform.1.pivot.values must list the values that " in str(
        raised.value
    )
    assert "columns of a stream are fixed before it starts" in str(raised.value)
    assert "all other values go to the column `other`" in str(raised.value)


def test_a_misspelt_field_of_a_pivot_is_said_to_be_that(tmp_path: Path) -> None:
    steps = "transform:\n- pivot: {on: animal, valeus: [shark]}\n"
    with pytest.raises(ConfigError, match=r"pivot\.valeus is not a field; did you mean 'values'"):
        _load(tmp_path, FILE + steps)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "transform:\n- name: a\n  sql: SELECT 1\n- sql: SELECT 2\n  name: a\n",
            "line 8: transform.1.name is called 'a' like another view before it",
        ),
        (
            "transform:\n- sql: SELECT 1\n- name: source\n  sql: SELECT 2\n",
            "line 6: transform.1.name is called 'source' like another view before it",
        ),
        (
            "static:\n  source: {file: a.csv, schema: id long}\ntransform: SELECT 1\n",
            "line 5: static.source is called 'source' like another view before it",
        ),
        (
            "transform:\n- name: a b\n  sql: SELECT 1\n",
            "line 5: transform.0.name 'a b' cannot name a view",
        ),
    ],
)
def test_a_name_is_refused_where_it_stands(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(ConfigError, match="p.yaml") as raised:
        _load(tmp_path, FILE + more)
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
