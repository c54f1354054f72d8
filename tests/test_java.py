import os
from pathlib import Path

import pytest

from tallygate.errors import MachineError
from tallygate.jvm.java import find_java
from tallygate.settings import Settings


def _java(folder: Path, version: str) -> Settings:
    """A folder that looks like a Java of some version."""
    (folder / "bin").mkdir()
    executable = folder / "bin" / "java"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return Settings.load({"java.home": str(folder)})


@pytest.mark.parametrize("version", ["17.0.15", "21", "23.0.1"])
def test_versions_that_run_both_kafka_and_spark(tmp_path: Path, version: str) -> None:
    assert find_java(_java(tmp_path, version)).version == version


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "24", "25.0.1"])
def test_others_are_refused_with_what_was_found(tmp_path: Path, version: str) -> None:
    with pytest.raises(MachineError, match=f"java.home is Java {version}.*Install Java 17 or 21"):
        find_java(_java(tmp_path, version))


def test_the_setting_is_binding(tmp_path: Path) -> None:
    """A Java that was asked for by name is not silently replaced by another."""
    with pytest.raises(MachineError, match="holds no working Java"):
        find_java(Settings.load({"java.home": str(tmp_path / "nowhere")}))


def test_the_java_of_this_machine_is_found() -> None:
    java = find_java(Settings.load())
    assert os.access(java.executable, os.X_OK)
