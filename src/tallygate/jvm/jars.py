"""The jars of Kafka and of Spark's connectors: named here, fetched once, whole or not at all.

PySpark ships Ivy, so Ivy resolves the coordinates; no repository address is written anywhere, and
a mirror is a matter of the setting `ivy.settings`. A set is fetched into a folder beside its final
one, every jar is read through, a manifest with the digests is written, and only then is the
folder renamed into place: a download that is interrupted leaves nothing that counts. Each program
checks the digests once before use (0.1 s), so a damaged jar is an error here and not a riddle in
the JVM.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tallygate.errors import JarError
from tallygate.extras import extra_module
from tallygate.jvm.java import Java, find_java
from tallygate.progress import Progress, silent
from tallygate.settings import Settings

KAFKA_VERSION = "4.3.1"
SCALA_VERSION = "2.13"
POSTGRES_JDBC_VERSION = "42.7.11"
DELTA = {
    "4.0": ("delta-spark_2.13", "4.0.0"),
    "4.1": ("delta-spark_4.1_2.13", "4.1.0"),
}
"""The Delta for each Spark: its jars are built for one version alone."""
MANIFEST = "manifest.json"
# What these are is large, and PySpark ships them.
SHIPPED = ("org.apache.hadoop", "org.scala-lang", "org.slf4j")


@dataclass(frozen=True)
class Coordinate:
    organisation: str
    name: str
    version: str
    transitive: bool = True

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.version}"


@dataclass(frozen=True)
class JarSet:
    """Jars that are used together, and what their dependencies need not bring along."""

    name: str
    coordinates: tuple[Coordinate, ...]
    excluded: tuple[str, ...] = ()
    within_spark: bool = False
    """Whether they are loaded into Spark, beside the jars that PySpark ships."""

    def folder(self, settings: Settings) -> Path:
        """Where the set is kept: another version of any part is another folder."""
        written = " ".join(f"{c} {c.transitive}" for c in self.coordinates)
        digest = hashlib.sha256(written.encode()).hexdigest()[:8]
        return settings.cache_dir / "jars" / f"{self.name}-{self.coordinates[0].version}-{digest}"

    def is_cached(self, settings: Settings) -> bool:
        return (self.folder(settings) / MANIFEST).exists()


def _pyspark_version() -> str:
    """By PySpark's own word: the one of Spark's images was not installed by pip."""
    return str(extra_module("pyspark", "a set of jars").__version__)


def _kafka() -> JarSet:
    return JarSet(
        "kafka",
        (
            Coordinate("org.apache.kafka", f"kafka_{SCALA_VERSION}", KAFKA_VERSION),
            # Kafka's own command line tools; what they need of Connect is left out.
            Coordinate("org.apache.kafka", "kafka-tools", KAFKA_VERSION, transitive=False),
            Coordinate("org.slf4j", "slf4j-simple", "1.7.36"),
        ),
    )


def _connectors() -> JarSet:
    connector = f"spark-sql-kafka-0-10_{SCALA_VERSION}"
    return JarSet(
        "spark",
        (
            Coordinate("org.apache.spark", connector, _pyspark_version()),
            Coordinate("org.postgresql", "postgresql", POSTGRES_JDBC_VERSION),
        ),
        excluded=SHIPPED,
        within_spark=True,
    )


def _delta() -> JarSet:
    version = _pyspark_version()
    series = ".".join(version.split(".")[:2])
    if series not in DELTA:
        raise JarError(
            f"no Delta is known for Spark {version}; use PySpark {' or '.join(DELTA)} for "
            "pipelines with Delta tables."
        )
    return JarSet(
        "delta",
        (Coordinate("io.delta", *DELTA[series]),),
        excluded=(*SHIPPED, "org.apache.spark"),
        within_spark=True,
    )


_MAKERS = {"kafka": _kafka, "spark": _connectors, "delta": _delta}


@functools.cache
def named_set(name: str) -> JarSet:
    """The set of that name. It is made when it is asked for: Kafka's needs no PySpark to be
    there, and the others follow the version of the one that is."""
    return _MAKERS[name]()


def all_sets() -> dict[str, JarSet]:
    """Every set that there is for the PySpark at hand."""
    found = {}
    for name in _MAKERS:
        with contextlib.suppress(JarError):
            found[name] = named_set(name)
    return found


_checked_here: dict[Path, list[Path]] = {}


def jar_paths(
    which: str | JarSet,
    settings: Settings,
    progress: Progress | None = None,
    *,
    again: bool = False,
) -> list[Path]:
    """The jars of a set, checked; fetched if they are not in the cache yet, or if `again`."""
    jar_set = named_set(which) if isinstance(which, str) else which
    folder = jar_set.folder(settings)
    if folder in _checked_here and not again:
        return _checked_here[folder]
    with _one_at_a_time(folder.parent, jar_set.name):
        if again or not jar_set.is_cached(settings):
            _fetch(jar_set, folder, settings, progress or silent)
        _checked_here[folder] = _checked(jar_set, folder)
    return _checked_here[folder]


def pyspark_jars() -> Path:
    """The folder of the jars that Spark ships: in PySpark's package if pip installed it, and in
    Spark's own folder, two above the package, in its images."""
    package = Path(extra_module("pyspark", "Spark").__file__).parent
    homes = [package, package.parent.parent]
    if named := os.environ.get("SPARK_HOME"):
        homes.insert(0, Path(named))
    for home in homes:
        if (home / "jars").is_dir():
            return home / "jars"
    raise JarError(
        f"the jars of Spark are not beside {package}; set SPARK_HOME to the folder that holds them."
    )


@contextlib.contextmanager
def _one_at_a_time(folder: Path, name: str) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"{name}.lock").open("w")
    except OSError as error:
        raise JarError(
            f"the jar cache {folder} cannot be written ({error.strerror}); "
            "make it writable or choose another by the setting cache.dir."
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _checked(jar_set: JarSet, folder: Path) -> list[Path]:
    try:
        manifest: dict[str, str] = dict(json.loads((folder / MANIFEST).read_text()))
    except (ValueError, TypeError):
        manifest = {MANIFEST: ""}
    for name, digest in manifest.items():
        jar = folder / name
        if not jar.exists() or _digest(jar) != digest:
            raise JarError(
                f"{jar} is missing or damaged; `tallygate jars fetch --again {jar_set.name}` "
                "fetches the set again."
            )
    return [folder / name for name in manifest]


def _fetch(jar_set: JarSet, folder: Path, settings: Settings, progress: Progress) -> None:
    java = find_java(settings)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as partial:
        work = Path(partial)
        (work / "ivy.xml").write_text(_ivy_file(jar_set))
        _run_ivy(java, work, jar_set, settings, progress)
        fetched = work / "jars"
        manifest = {}
        for jar in sorted(fetched.glob("*.jar")):
            if _in_pyspark(jar, jar_set):
                jar.unlink()
                continue
            with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(jar) as archive:
                if archive.testzip() is None:
                    manifest[jar.name] = _digest(jar)
            if jar.name not in manifest:
                raise JarError(f"{jar.name} arrived damaged; nothing was kept. Try again.")
        (fetched / MANIFEST).write_text(json.dumps(manifest, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        fetched.rename(folder)


def _in_pyspark(jar: Path, jar_set: JarSet) -> bool:
    """Whether PySpark brings this very artifact, in whatever version: two would clash."""
    artifact = jar.stem.rpartition("-")[0]
    return jar_set.within_spark and any(
        shipped.stem.rpartition("-")[0] == artifact for shipped in pyspark_jars().glob("*.jar")
    )


def _ivy_file(jar_set: JarSet) -> str:
    dependencies = "\n".join(
        f"<dependency org={quoteattr(c.organisation)} name={quoteattr(c.name)} "
        f'rev={quoteattr(c.version)} transitive="{str(c.transitive).lower()}" '
        'conf="default->default"/>'
        for c in jar_set.coordinates
    )
    excluded = "\n".join(f"<exclude org={quoteattr(name)}/>" for name in jar_set.excluded)
    return (
        f'<ivy-module version="2.0"><info organisation="tallygate" module="{jar_set.name}"/>\n'
        f'<configurations><conf name="default"/></configurations>\n'
        f"<dependencies>{dependencies}\n{excluded}</dependencies></ivy-module>\n"
    )


def _run_ivy(
    java: Java, work: Path, jar_set: JarSet, settings: Settings, progress: Progress
) -> None:
    command = [java.executable, "-cp", f"{pyspark_jars()}/*", "org.apache.ivy.Main"]
    command += ["-cache", f"{work}/cache", "-ivy", f"{work}/ivy.xml", "-confs", "default"]
    command += ["-retrieve", f"{work}/jars/[artifact]-[revision](-[classifier]).[ext]"]
    if ivy_settings := settings.get("ivy.settings"):
        command += ["-settings", ivy_settings]
    found = downloaded = 0
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:
        try:
            for line in ivy.stdout or ():
                lines.append(line.strip())
                found += "\tfound " in line
                downloaded += "[SUCCESSFUL ]" in line
                progress(f"jars of {jar_set.name}: {found} found, {downloaded} fetched")
        except BaseException:
            ivy.kill()
            raise
    if ivy.returncode != 0 or not list((work / "jars").glob("*.jar")):
        wanted = ", ".join(str(c) for c in jar_set.coordinates)
        raise JarError(
            f"the jars of {jar_set.name} ({wanted}) could not be fetched: {_reason(lines)}; "
            "check the network, or name a mirror by the setting ivy.settings. Nothing was kept."
        )


def _reason(lines: list[str]) -> str:
    """The line of Ivy's report that says most."""
    for sign in ("not found", "[NOT FOUND", "FAILED", "Exception", "ERROR"):
        for line in lines:
            if sign in line:
                return line.strip(": \t")
    return lines[-1] if lines else "Ivy said nothing"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
