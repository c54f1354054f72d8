"""Finding a Java that can run both Kafka and Spark.

Spark 4 needs 17 or newer and breaks from 24 on, where Java lost the security manager that Hadoop
still calls. The first acceptable Java of the setting, JAVA_HOME, the PATH and the usual folders is
taken; what was found and why it would not do is part of the error.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tallygate.errors import MachineError
from tallygate.settings import Settings

OLDEST, NEWEST = 17, 23
ADVICE = (
    "Install Java 17 or 21 (Debian and Ubuntu: `apt-get install openjdk-17-jre-headless`) "
    "or point the setting java.home at one."
)


@dataclass(frozen=True)
class Java:
    home: Path
    version: str

    @property
    def executable(self) -> str:
        return str(self.home / "bin" / "java")

    @property
    def major(self) -> int:
        number = re.match(r"\d+", self.version)
        return int(number[0]) if number else 0


def find_java(settings: Settings) -> Java:
    rejected = []
    for home, origin in _candidates(settings):
        java = _inspect(home)
        if java is None:
            rejected.append(f"{origin} names {home}, which holds no working Java")
        elif not OLDEST <= java.major <= NEWEST:
            rejected.append(f"{origin} is Java {java.version}")
        else:
            return java
        if origin == "java.home":
            break
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise MachineError(f"No Java from {OLDEST} to {NEWEST} was found{found}. {ADVICE}")


def _candidates(settings: Settings) -> Iterator[tuple[Path, str]]:
    if chosen := settings.get("java.home"):
        yield Path(chosen), "java.home"
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parent.parent, "the PATH"
    for folder in sorted(Path("/usr/lib/jvm").glob("*/bin/java")):
        yield folder.parent.parent, str(folder.parent.parent)


def _inspect(home: Path) -> Java | None:
    """Read the version from the `release` file that every JDK has; ask Java itself otherwise."""
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    release = home / "release"
    text = release.read_text() if release.exists() else _ask(executable)
    match = re.search(r'(?:JAVA_VERSION=|version )"([0-9]+[^"]*)"', text)
    return Java(home, match[1]) if match else None


def _ask(executable: Path) -> str:
    try:
        done = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr
