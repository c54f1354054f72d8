"""YAML of an unknown author: its cost is bounded, and whatever is wrong with it has its line."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallygate.errors import ConfigError
from tallygate.spec import Kafka, PipelineSpec, load_spec

FILE = """\
name: n
source: {topic: t, format: text}
sink: {table: t}
"""


def _load(folder: Path, text: str | bytes) -> PipelineSpec:
    path = folder / "p.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_spec(path)


def _doubled(levels: int) -> str:
    """Each line holds the one before it nine times."""
    lines = ["l0: &l0 [x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (_doubled(7), 5, "holds more than 10,000 values, with those of its aliases"),
        ("x:\n" + "- y\n" * 10_001, 9_999, "holds more than 10,000 values"),
        ("[" * 100_000, 1, "nests more than 50 levels deep"),
        ("x:\n" + "- " * 60 + "y", 2, "nests more than 50 levels deep"),
        (
            f"x: &x {'[' * 40}{']' * 40}\ny: {'[' * 20}*x{']' * 20}",
            2,
            "levels deep, by its aliases",
        ),
        ("x:\n  &x [1, *x]", 2, "holds itself, by an alias"),
        ("&x\nx: {<<: *x}", 1, "holds itself, by an alias"),
        ("x: 1\n[a]: 2", 2, "has a key that is not a text"),
        ("x: 1\n{a: b}: 2", 2, "has a key that is not a text"),
        ("x: 1\nx: 2", 2, "says 'x' twice"),
        ("x: {0: 1,\n 00: 2}", 2, "says '0' twice"),
        ("x: 1\ny: !!float x", 2, "has 'x', which is not of type float"),
        ("x: 1\ny: !!int", 2, "has '', which is not of type int"),
        ("x: 1\n!!int y: 1", 2, "has 'y', which is not of type int"),
        ("x: 1\ny: !!bool maybe", 2, "has 'maybe', which is not of type bool"),
        ("x: 1\ny: !!float {=: x}", 2, "has 'a mapping', which is not of type float"),
        ("x: 1\ny: !!map 5", 2, "has a value with the tag of a mapping that is none"),
        ("x: 1\ny: " + "5" * 5000, 2, "has a number of 5,000 characters"),
        ("x: 1\ny: 1" + ":00" * 100_000, 2, "has a number of 300,001 characters"),
        ("x: 1\ny: !!timestamp x", 2, "is not valid YAML: could not determine a constructor"),
        ("x: 1\ny: !!python/name:os.system", 2, "is not valid YAML: could not determine"),
        (r'x: "\UFFFFFFFF"', 1, "is not valid YAML: it cannot be parsed"),
        (f"%YAML 1.{'1' * 5000}\n---\nx: 1", 1, "is not valid YAML: it cannot be parsed"),
        ("x: 1\ny: \x01", 2, "is not valid YAML: the character 0x1"),
        ("x: 1\ny: *z", 2, "is not valid YAML: found undefined alias"),
        (b"x: 1\ny: \xff", 2, "is not text: invalid start byte"),
        (FILE + f"trigger: {'9' * 400}s", 4, "trigger '999"),
        (FILE + "trigger: 999999999999999d", 4, "trigger '999999999999999d' is not an interval"),
        (FILE.replace("text}", "text, start: {t: {x: 5}}}"), 2, "source.start.str input should be"),
        (FILE + '"\\ud800": 1', 1, "the pipeline input should be a valid string"),
        (FILE + f"trigger: {'x' * 5000}", 4, "trigger 'xxx …"),
    ],
)
def test_a_file_that_is_odd_is_refused_with_its_line(
    tmp_path: Path, text: str | bytes, line: int, said: str
) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, text)
    assert time.process_time() - began < 5
    assert f"p.yaml, line {line}" in str(raised.value)
    assert said in re.sub("x{100,}", "xxx", str(raised.value))
    assert len(str(raised.value)) < 1500


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a pipeline: it has more than 1,000,000 bytes"):
        _load(tmp_path, FILE + "#" * 1_000_000)


def _start(folder: Path, text: str) -> object:
    source = _load(folder, FILE.replace("text}", f"text, start: {text}}}")).source
    assert isinstance(source, Kafka)
    return source.start


def test_partitions_are_numbers_although_keys_are_texts(tmp_path: Path) -> None:
    assert _start(tmp_path, "{t: {0: 5, 010: 7}}") == {"t": {0: 5, 8: 7}}


@pytest.mark.parametrize("day", ["2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31 12:00:00"])
def test_a_date_needs_no_quotes(tmp_path: Path, day: str) -> None:
    assert _start(tmp_path, day) == day
    spec = _load(tmp_path, FILE + f"transform: SELECT 1\nparameters: {{day: {day}}}")
    assert spec.parameters == {"day": day}


def test_aliases_and_merged_mappings_are_read(tmp_path: Path) -> None:
    sink = "sink: {<<: *source, topic: u, format: value}"
    text = FILE.replace("source: ", "source: &source ").replace("sink: {table: t}", sink)
    assert _load(tmp_path, text).sink.topic == "u"  # type: ignore[union-attr]


PIECES = r"""
name source sink topic table start trigger transform parameters static dead_letters sources window
pivot join sql n t ~ 5 1.5 .nan .inf true 1:30 0x1f 2024-02-30 10s << = *a &a_ &b_ *b !!int_
!!float_ !!bool_ !!str_ !!map_ !!seq_ !!null_ !!set_ !!binary_ !x_ :_ -_ ?_ , [ ] { } " ' \ud800
\ # % @ ` | > ${A} ${A:b} --- ... _
"""
PIECE = st.sampled_from(
    [each.replace("_", " ") for each in PIECES.split()]
    + ["\n", "\n  ", "\n- ", "\t", "\u2028", "\x85", "\ufeff"]
)
LEAVES = "5 x ~ 1.5 .nan [] {} true \"\\ud800\" ''"
KEYS = "name topic table start format sql window on pivot values 5 ~ ''"
FIELDS = "source sink sources static transform parameters trigger dead_letters delivery"


def _of(words: str) -> st.SearchStrategy[str]:
    return st.sampled_from(words.split())


def _flow(each: dict[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in each.items()) + "}"


ANY = st.recursive(
    _of(LEAVES),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]")
        | st.dictionaries(_of(KEYS), inner, max_size=3).map(_flow)
    ),
    max_leaves=6,
)
ODD = st.lists(PIECE, max_size=25).map("".join) | st.dictionaries(_of(FIELDS), ANY, max_size=4).map(
    lambda each: "name: n\n" + "\n".join(f"{key}: {value}" for key, value in each.items())
)


@given(ODD)
def test_a_file_is_read_or_refused_whatever_is_in_it(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    try:
        _load(tmp_path_factory.getbasetemp(), text)
    except ConfigError as error:
        assert "p.yaml" in str(error)
