"""Whatever is configured, drills do not reach it."""

from pathlib import Path

import pytest

from tallygate.lab.drills.isolation import environment, machine_only
from tallygate.settings import Settings


@pytest.fixture
def theirs(tmp_path: Path) -> Settings:
    """Settings of somebody who has clusters."""
    return Settings.load(
        {"state.dir": str(tmp_path), "spark.master": "spark://production:7077"},
        environment={
            "TALLYGATE_KAFKA_BOOTSTRAP_SERVERS": "kafka.example.com:9092",
            "TALLYGATE_KAFKA_SECURITY_PROTOCOL": "SSL",
            "TALLYGATE_KAFKA_JAVA_BOOTSTRAP_SERVERS": "kafka.example.com:9092",
            "TALLYGATE_POSTGRES_DSN": "postgresql://db.example.com/shop",
        },
    )


def test_only_what_is_about_the_machine_is_kept(theirs: Settings, tmp_path: Path) -> None:
    own = machine_only(theirs)
    assert own.state_dir == tmp_path
    assert own.get("spark.master") == "local[*]"
    assert not own.names_cluster
    assert own.get("postgres.dsn") is None
    assert not own.section("kafka.java")
    assert "example.com" not in str(own.values)


def test_programs_get_nothing_else(
    theirs: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYGATE_POSTGRES_DSN", "postgresql://db.example.com/shop")
    (tmp_path / "tallygate.toml").write_text('[postgres]\ndsn = "postgresql://db.example.com"\n')
    monkeypatch.chdir(tmp_path)
    given = environment(machine_only(theirs))
    loaded = Settings.load(environment=given)
    assert loaded.get("postgres.dsn") is None
    assert loaded.state_dir == tmp_path
