"""The classes of Spark and of Kafka, kept ready for the next start.

Half of the time in which Spark starts goes into reading, checking and linking some ten thousand
classes, the same ones each time; a broker is no different. Java can write them down once, at the
end of a program that used them, and map that file into memory ever after. An archive that does not
fit (another Java, other jars) is passed over by the JVM: nothing can go wrong with it but time.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tallygate.errors import MachineError
from tallygate.extras import has_extra
from tallygate.jvm.jars import named_set, pyspark_jars
from tallygate.jvm.java import Java, find_java
from tallygate.progress import Progress, silent
from tallygate.settings import Settings

LONGEST = 180.0
TOLD = ("state.dir", "cache.dir", "java.home", "ivy.settings")
PROGRAMS = {"spark": "tallygate.spark.warming", "kafka": "tallygate.lab.kafka.warming"}
"""What is run to the end, so that its classes can be written down."""
NEEDED = {"spark": "spark", "kafka": "lab"}
"""The extra without which nothing here would start that program."""


def wanted() -> list[str]:
    """The programs that can be started here."""
    return [name for name in PROGRAMS if has_extra(NEEDED[name])]


def sharing(name: str, java: Java, settings: Settings) -> list[str]:
    """Options for a JVM that runs Spark, or Kafka; none if nothing was kept."""
    archive = _archive(name, java, settings)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def keep_classes(name: str, settings: Settings, progress: Progress = silent) -> Path:
    """Run a small program and keep the classes that it used, unless they are kept already.

    The file is written beside its place and renamed: half of one never counts."""
    archive = _archive(name, find_java(settings), settings)
    if archive.exists():
        return archive
    progress(f"classes of {name}: kept for faster starts")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".partial-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL may run as another user
        partial = Path(folder) / archive.name
        command = [sys.executable, "-m", PROGRAMS[name], str(partial)]
        told = settings.with_flags({"state.dir": folder}).as_environment(TOLD)
        try:
            ran = subprocess.run(
                command, env={**os.environ, **told}, capture_output=True, text=True, timeout=LONGEST
            )
            done = ran.returncode == 0 and partial.exists()
            said = (ran.stderr.strip().splitlines() or ["no archive was written"])[-1]
        except subprocess.TimeoutExpired:
            done, said = False, f"it took longer than {LONGEST:.0f} s"
        if not done:
            raise MachineError(f"the classes of {name} could not be kept: {said}.")
        partial.rename(archive)
    return archive


def _archive(name: str, java: Java, settings: Settings) -> Path:
    """The archive of one Java and one set of jars; jars that are installed again get another."""
    jars = pyspark_jars() if name == "spark" else named_set(name).folder(settings)
    made = jars.stat().st_mtime_ns if jars.exists() else 0
    fits = f"{java.home.resolve()} {java.version} {jars} {made}"
    digest = hashlib.sha256(fits.encode()).hexdigest()[:12]
    return settings.cache_dir / "classes" / f"{name}-{digest}.jsa"
