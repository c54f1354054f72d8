"""Jars are fetched by the real Ivy, from a repository in a folder, so no network is needed."""

import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallygate.errors import JarError
from tallygate.jvm import jars
from tallygate.jvm.jars import Coordinate, JarSet, all_sets, jar_paths, named_set, pyspark_jars
from tallygate.settings import Settings

POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>test</groupId><artifactId>{name}</artifactId><version>1.0</version>
<dependencies>{dependencies}</dependencies></project>"""
DEPENDENCY = """<dependency><groupId>test</groupId><artifactId>{name}</artifactId>
<version>1.0</version></dependency>"""
IVY_SETTINGS = """<ivysettings><settings defaultResolver="folder"/><resolvers>
<filesystem name="folder" m2compatible="true">
<ivy pattern="{folder}/[module]-[revision].pom"/>
<artifact pattern="{folder}/[artifact]-[revision].[ext]"/>
</filesystem></resolvers></ivysettings>"""


def _publish(folder: Path, name: str, *dependencies: str) -> None:
    needed = "".join(DEPENDENCY.format(name=each) for each in dependencies)
    (folder / f"{name}-1.0.pom").write_text(POM.format(name=name, dependencies=needed))
    with zipfile.ZipFile(folder / f"{name}-1.0.jar", "w") as jar:
        jar.writestr("hello", "x" * 1000)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    _publish(folder, "top", "below")
    _publish(folder, "below")
    return folder


@pytest.fixture
def own_settings(tmp_path: Path, repository: Path) -> Settings:
    ivy = tmp_path / "ivysettings.xml"
    ivy.write_text(IVY_SETTINGS.format(folder=repository))
    return Settings.load({"cache.dir": str(tmp_path / "cache"), "ivy.settings": str(ivy)})


@pytest.fixture
def top(monkeypatch: pytest.MonkeyPatch) -> JarSet:
    monkeypatch.setattr(jars, "_checked_here", {})
    return JarSet("top", (Coordinate("test", "top", "1.0"),))


def _forget() -> None:
    jars._checked_here.clear()


def test_a_set_is_fetched_with_its_dependencies_and_then_kept(
    own_settings: Settings, repository: Path, top: JarSet
) -> None:
    said: list[str] = []
    paths = jar_paths(top, own_settings, said.append)
    assert {path.name for path in paths} == {"top-1.0.jar", "below-1.0.jar"}
    assert said[-1] == "jars of top: 2 found, 2 fetched"
    for file in repository.iterdir():
        file.unlink()
    _forget()
    assert jar_paths(top, own_settings) == paths, "no repository is needed any more"


def test_an_incomplete_set_is_not_kept(
    own_settings: Settings, repository: Path, top: JarSet
) -> None:
    (repository / "below-1.0.jar").unlink()
    with pytest.raises(JarError, match="could not be fetched: .*below.*Nothing was kept"):
        jar_paths(top, own_settings)
    assert not top.is_cached(own_settings)
    assert not [p for p in (own_settings.cache_dir / "jars").iterdir() if p.is_dir()]


def test_a_jar_that_arrives_damaged_is_not_kept(
    own_settings: Settings, repository: Path, top: JarSet
) -> None:
    (repository / "below-1.0.jar").write_bytes(b"<html>proxy error</html>")
    with pytest.raises(JarError, match="below-1.0.jar arrived damaged; nothing was kept"):
        jar_paths(top, own_settings)
    assert not top.is_cached(own_settings)


def test_a_jar_that_is_damaged_later_is_found_and_can_be_fetched_again(
    own_settings: Settings, top: JarSet
) -> None:
    jar = jar_paths(top, own_settings)[0]
    whole = jar.read_bytes()
    jar.write_bytes(whole[:-1] + b"?")
    _forget()
    with pytest.raises(JarError, match=f"{jar} is missing or damaged; .*jars fetch --again top"):
        jar_paths(top, own_settings)
    jar_paths(top, own_settings, again=True)
    assert jar.read_bytes() == whole


def test_an_unknown_version_says_what_was_not_found(own_settings: Settings) -> None:
    odd = JarSet("odd", (Coordinate("test", "odd", "9"),))
    with pytest.raises(JarError, match="test:odd:9.*could not be fetched: .*odd.*9"):
        jar_paths(odd, own_settings)


def test_another_version_is_another_folder(own_settings: Settings) -> None:
    one, two = (JarSet("x", (Coordinate("o", "x", "1"), Coordinate("o", "y", v))) for v in "12")
    assert one.folder(own_settings) != two.folder(own_settings)


@pytest.fixture
def another_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Path]]:
    """A PySpark as Spark's images have it: not by pip, so without metadata, and its jars above it.
    Every version is looked at as if a new program did."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    named_set.cache_clear()

    def make(version: str) -> Path:
        package = tmp_path / version / "python" / "pyspark"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"__version__ = {version!r}")
        (tmp_path / version / "jars").mkdir()
        monkeypatch.syspath_prepend(package.parent)
        monkeypatch.delitem(sys.modules, "pyspark", raising=False)
        named_set.cache_clear()
        return tmp_path / version

    yield make
    named_set.cache_clear()


def test_jars_follow_the_pyspark_at_hand_by_its_own_word(
    another_pyspark: Callable[[str], Path],
) -> None:
    another_pyspark("4.0.3")
    assert named_set("spark").coordinates[0].version == "4.0.3"
    assert str(named_set("delta").coordinates[0]) == "io.delta:delta-spark_2.13:4.0.0"
    home = another_pyspark("4.1.1")
    assert named_set("spark").coordinates[0].version == "4.1.1"
    assert str(named_set("delta").coordinates[0]) == "io.delta:delta-spark_4.1_2.13:4.1.0"
    assert pyspark_jars() == home / "jars"


def test_a_spark_without_a_delta_has_the_other_sets(
    another_pyspark: Callable[[str], Path],
) -> None:
    another_pyspark("4.7.0")
    with pytest.raises(JarError, match="no Delta is known for Spark 4.7.0; use PySpark 4.0 or 4.1"):
        named_set("delta")
    assert set(all_sets()) == {"kafka", "spark"}


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings.load({"cache.dir": str(tmp_path / "file")})
    with pytest.raises(JarError, match="cannot be written .*cache.dir"):
        jar_paths("kafka", settings)


def test_jars_that_pyspark_ships_are_left_out(settings: Settings) -> None:
    names = {path.name.rpartition("-")[0] for path in jar_paths("spark", settings)}
    assert "spark-sql-kafka-0-10_2.13" in names
    assert "kafka-clients" in names
    assert not names & {"lz4-java", "snappy-java", "scala-library", "hadoop-client-api"}
