"""A pipeline of the user's under drill: its own transform and key, on the drill's own ground."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fixtures.commands import Tallygate
from tallygate.errors import ConfigError
from tallygate.lab.drills.catalogue import chosen
from tallygate.lab.drills.subject import OwnPipeline

FILE = """
name: orders
source:
  topic: orders
  schema: "id long, price decimal(10,2), tags array<string>, at timestamp, paid boolean"
  start: latest
  bootstrap_servers: kafka.example.com:9092
  options: {kafka.bootstrap.servers: "kafka.example.com:9092"}
transform: SELECT id, price FROM source WHERE paid
sink:
  table: shop.orders
  mode: upsert
  key: [id]
  dsn: postgresql://db.example.com/shop
checkpoint: /var/lib/orders
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(FILE)
    return path


def test_what_is_the_users_is_not_touched(file: Path) -> None:
    spec = OwnPipeline.load(file).spec("drill_orders", "drill-orders")
    assert "example.com" not in str(spec)
    assert spec["name"] == "drill_orders"
    assert spec["source"]["topic"] == "drill-orders"
    assert "start" not in spec["source"], "from the beginning of the drill's topic"
    assert spec["sink"] == {"table": "drill_orders", "mode": "upsert", "key": ["id"]}
    assert spec["transform"] == "SELECT id, price FROM source WHERE paid"
    assert "checkpoint" not in spec


def test_records_are_made_from_the_schema(file: Path, spark: SparkSession) -> None:
    own = OwnPipeline.load(file)
    record = json.loads(own.value(1))
    assert set(record) == {"id", "price", "tags", "at", "paid"}
    assert isinstance(record["tags"], list)
    assert isinstance(record["paid"], bool)
    assert len({own.value(number) for number in range(20)}) > 1


def test_records_are_taken_from_a_sample(file: Path, tmp_path: Path) -> None:
    sample = tmp_path / "sample.txt"
    sample.write_text("one\n\ntwo\n")
    own = OwnPipeline.load(file, sample)
    assert [own.value(number) for number in range(3)] == ["one", "two", "one"]
    sample.write_text("\n")
    with pytest.raises(ConfigError, match="has no lines"):
        OwnPipeline.load(file, sample)


def test_what_cannot_be_drilled_is_refused(file: Path) -> None:
    file.write_text(FILE.replace("table: shop.orders", "to_topic: other"))
    with pytest.raises(ConfigError):
        OwnPipeline.load(file)
    file.write_text("name: n\nsource: {topic: t, format: text}\nsink: {table: t}\n")
    with pytest.raises(ConfigError, match="with --sample"):
        OwnPipeline.load(file)
    side = "static: {prices: {table: prices}}\n"
    file.write_text(FILE + side)
    with pytest.raises(ConfigError, match="static.prices is not a file"):
        OwnPipeline.load(file)
    with pytest.raises(ConfigError, match="takes no --pipeline"):
        chosen(["bad-records"], None, 1, own=True)


def test_a_sample_without_a_pipeline_is_refused(tallygate: Tallygate) -> None:
    said = tallygate("drill", "all", "--sample", "lines.txt", code=ConfigError.exit_code).stderr
    assert "give --pipeline too" in said
