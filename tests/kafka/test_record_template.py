import pytest

from tallygate.errors import ConfigError, InputError
from tallygate.kafka.record_template import RecordTemplate, load_function, round_robin

ROW = {"id": 7, "user": {"name": "ann"}, "at": "2026-01-01T00:00:00Z", "none": None}


def test_a_plain_shape_adds_nothing() -> None:
    assert RecordTemplate().is_plain
    assert RecordTemplate().arguments(None, 4) == {}


@pytest.mark.parametrize(
    ("template", "key"),
    [("id", b"7"), ("user.name", b"ann"), ("{user.name}-{id}", b"ann-7"), ("none", None)],
)
def test_keys_are_fields_or_templates(template: str, key: bytes | None) -> None:
    assert RecordTemplate(key=template).arguments(ROW, 4) == {"key": key}


def test_headers_are_text_with_fields() -> None:
    found = RecordTemplate(headers={"kind": "payment", "who": "{user.name}"}).arguments(ROW, 4)
    assert found == {"headers": [("kind", b"payment"), ("who", b"ann")]}


def test_timestamps_are_milliseconds_or_iso() -> None:
    assert RecordTemplate(timestamp="at").arguments(ROW, 4) == {"timestamp": 1767225600000}
    assert RecordTemplate(timestamp="id").arguments(ROW, 4) == {"timestamp": 7}
    with pytest.raises(InputError, match="is not a timestamp"):
        RecordTemplate(timestamp="user.name").arguments(ROW, 4)


@pytest.mark.parametrize("value", [1e300, 1 << 63, float("inf"), float("nan"), 0, -1, True])
def test_what_kafka_has_no_time_for_is_a_bad_row(value: float) -> None:
    with pytest.raises(InputError, match="not a timestamp|no time after 1970"):
        RecordTemplate(timestamp="at").arguments({"at": value}, 4)


def test_a_missing_field_is_said() -> None:
    with pytest.raises(InputError, match="has no field 'user.age'"):
        RecordTemplate(key="user.age").arguments(ROW, 4)
    with pytest.raises(InputError, match="has no field 'id'"):
        RecordTemplate(key="id").arguments([1, 2], 4)


def test_partitioners() -> None:
    turn = RecordTemplate(partitioner=round_robin())
    assert [turn.arguments(ROW, 3)["partition"] for _ in range(4)] == [0, 1, 2, 0]
    own = RecordTemplate(key="id", partitioner=lambda key, count: int(key or b"0") % count)
    assert own.arguments(ROW, 4) == {"key": b"7", "partition": 3}
    with pytest.raises(ConfigError, match="chose 9 .*from 0 to 3"):
        RecordTemplate(partitioner=lambda key, count: 9).arguments(ROW, 4)


def test_functions_are_loaded_by_name() -> None:
    assert load_function("json:loads", "--x")("1") == 1
    for name in ("json", "json:nope", "no.such:thing", "json:__name__"):
        with pytest.raises(ConfigError, match="--x"):
            load_function(name, "--x")
