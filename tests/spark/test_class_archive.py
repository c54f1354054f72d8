"""Classes that are kept for faster starts: used if they are there, and never in the way."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tallygate.errors import MachineError
from tallygate.jvm import class_archive as classes
from tallygate.jvm.class_archive import PROGRAMS, keep_classes, sharing
from tallygate.jvm.java import find_java
from tallygate.settings import Settings
from tallygate.spark.warming import warm


def test_without_an_archive_there_is_nothing_to_share(tmp_path: Path) -> None:
    settings = Settings.load({"cache.dir": str(tmp_path)})
    assert all(sharing(name, find_java(settings), settings) == [] for name in PROGRAMS)


def test_half_an_archive_never_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "LONGEST", 0.05)
    settings = Settings.load({"cache.dir": str(tmp_path)})
    with pytest.raises(MachineError, match=r"could not be kept: it took"):
        keep_classes("spark", settings)
    assert list((tmp_path / "classes").iterdir()) == []
    assert sharing("spark", find_java(settings), settings) == []


def test_a_session_starts_from_the_archive(spark: SparkSession, settings: Settings) -> None:
    """`make setup` keeps them, so they are there."""
    archive = keep_classes("spark", settings)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    bean = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    assert f"-XX:SharedArchiveFile={archive}" in list(bean.getInputArguments())


def test_what_is_warmed_up_is_a_whole_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    warm(spark, tmp_path)
    assert spark.read.parquet(f"{tmp_path}/out").count() == 200
