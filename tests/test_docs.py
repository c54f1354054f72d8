"""The documentation is true: every command in it runs, every setting and exit code is in it."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallygate import Producer, Settings, Stack, Topics
from tallygate.lab.orphan_guard import kill_recorded
from tallygate.settings import OPEN_SECTIONS, SETTINGS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def _commands(page: Path) -> list[str]:
    lines = [line for block in _blocks(page, "console") for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines), f"{page}: a console line is no command"
    return [line.removeprefix("$ ") for line in lines]


@pytest.fixture
def own_state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tallygate-docs-"))
    folder.chmod(0o755)
    yield folder
    for stack in (folder / "stacks").glob("*"):  # of a command that failed before its `down`
        kill_recorded(stack)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_runs(page: Path, own_state: Path, stack: Stack) -> None:
    """In order, as one reader would type them; `make` targets are run by CI and only looked up."""
    environment = {**os.environ, "TALLYGATE_STATE_DIR": str(own_state)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    for command in _commands(page):
        if command.startswith("make "):
            command = f"make -C {ROOT} --dry-run {command.removeprefix('make ')}"
        done = subprocess.run(
            command,
            shell=True,
            capture_output=True,
            text=True,
            cwd=own_state,
            env=environment,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{page.name}: {command}\n{done.stdout}{done.stderr}"


def _run_python(program: str, state: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "TALLYGATE_STATE_DIR": str(state)},
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_python_of_the_docs_runs(own_state: Path, stack: Stack) -> None:
    (program,) = _blocks(ROOT / "docs" / "python.md", "python")
    assert _run_python(program, own_state).endswith(" 1")


def test_the_consumer_of_the_docs_runs(own_state: Path, stack: Stack) -> None:
    (program,) = _blocks(ROOT / "docs" / "clients.md", "python")
    settings = Settings.load({"state.dir": str(own_state)})
    with Stack(brokers=1, purge=True, settings=settings) as own:
        Topics(own.cluster.connection, settings).create("bills", partitions=2)
        with Producer(own.cluster.connection) as producer:
            for number in range(20):
                producer.send("bills", f'{{"id": {number}, "account": "a"}}')
        assert _run_python(program, own_state) == "20"


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for setting in SETTINGS.values():
        assert f"| `{setting.name}` | {setting.help} |" in text
    for section, meaning in OPEN_SECTIONS.items():
        assert f"| `{section}.*` | {meaning} |" in text


def test_pages_that_are_written_by_a_program_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "cli.md").read_text() == module.reference(), "run `make docs`"
    assert (ROOT / "docs" / "pipeline.schema.json").read_text() == module.schema(), "`make docs`"
    assert (ROOT / "docs" / "examples.md").read_text() == module.examples(), "run `make docs`"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
