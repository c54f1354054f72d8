"""`pip install tallygate` without any extra is enough for a driver and for Spark's executors."""

import json

import psycopg
import yaml

from fixtures.installed import Installed
from tallygate import Producer, Stack, Topics
from tallygate.cli.lab import COMMANDS
from tallygate.extras import EXTRAS
from tallygate.settings import Settings

ROWS = 3000
PIPELINE = {
    "name": "core",
    "source": {"topic": "core", "schema": "id long, amount double"},
    "transform": "SELECT id, amount * 2 AS twice FROM source WHERE id % 10 > 0",
    "sink": {"table": "core"},
}
LOOK = """
import importlib.metadata, importlib.util, json
names = {names!r}
found = [name for name in names if importlib.util.find_spec(name) is not None]
try:
    found.append("pyspark " + importlib.metadata.version("pyspark"))
except importlib.metadata.PackageNotFoundError:
    pass
print(json.dumps(found))
"""


def test_the_core_has_nothing_of_any_extra(core: Installed) -> None:
    names = [name for extra in EXTRAS.values() for name in extra if name not in ("py4j", "pyspark")]
    assert json.loads(core.run("-c", LOOK.format(names=names), pandas=False).stdout) == []


def test_the_lab_is_refused_and_named(core: Installed) -> None:
    shown = core.tallygate("--help").stdout
    for command in COMMANDS:
        assert f"  {command} " not in shown
        said = core.tallygate(command, code=4).stderr
        assert f"`tallygate {command}` needs the package" in said
        assert "`pip install 'tallygate[lab]'`" in said


def test_avro_is_refused_and_named(core: Installed) -> None:
    said = core.tallygate("consume", "t", "--decode", "avro", "--avro-schema", "f", code=4).stderr
    assert "`pip install 'tallygate[avro]'`" in said


def test_a_pipeline_runs_with_the_core_alone(
    core: Installed, small_stack: Stack, settings: Settings
) -> None:
    Topics(small_stack.cluster.connection, settings).create("core", partitions=3)
    with Producer(small_stack.cluster.connection) as producer:
        for number in range(ROWS):
            producer.send("core", json.dumps({"id": number, "amount": number / 4}))
    (core.folder / "core.yaml").write_text(yaml.safe_dump(PIPELINE))
    places = {
        "TALLYGATE_KAFKA_BOOTSTRAP_SERVERS": small_stack.bootstrap_servers,
        "TALLYGATE_POSTGRES_DSN": small_stack.dsn,
    }
    run = ("run", "core.yaml", "--until", "available")
    said = core.tallygate(*run, code=4, pandas=False, environment=places).stderr
    assert "needs the package pandas" in said
    assert "`pip install 'pandas<3'` where spark-submit brings PySpark" in said

    said = core.tallygate(*run, environment={**places, "TALLYGATE_FAIL_AT": "committed@*"}).stderr
    assert "TALLYGATE_FAIL_AT is set and does nothing" in said
    with psycopg.connect(small_stack.dsn) as database:
        rows = database.execute("SELECT id, twice FROM core ORDER BY id").fetchall()
    assert rows == [(number, number / 2) for number in range(ROWS) if number % 10]
    assert core.tallygate("audit", "core.yaml", environment=places).stdout.startswith("core: valid")
    assert "core" in core.tallygate("status", environment=places).stdout
