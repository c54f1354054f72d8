"""The dead letters of a pipeline are listed whatever its sink is."""

import json
from pathlib import Path

import pytest

from fixtures.commands import Tallygate
from tallygate.core.letters import Letter
from tallygate.errors import ConfigError, LedgerError
from tallygate.targets.parquet.folder import Folder
from tallygate.targets.parquet.ledger import FolderLedger
from tallygate.targets.parquet.letters import write_letters

PIPELINE = """
name: flights
source: {topic: flights, schema: id long}
sink: {parquet: rows}
"""
LETTERS = [Letter("flights", 0, offset, f"id: 'x{offset}' is not a number") for offset in (1, 3)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "flights.yaml"
    path.write_text(PIPELINE)
    return path


def _write_letters(folder: Path) -> None:
    ledger = FolderLedger(Folder.at(str(folder)), "flights")
    ledger.folder.prepare()
    claim = ledger.take_over((("id", "int64"),))
    staged = ledger.fresh(claim)
    write_letters(staged, LETTERS)
    ledger.commit(claim, ledger.current(claim), staged)
    ledger.end(claim)


def test_the_dead_letters_of_a_pipelines_file_are_listed(file: Path, tallygate: Tallygate) -> None:
    _write_letters(file.parent / "rows")
    rows = json.loads(tallygate("dead-letters", "list", file.name, "-o", "json").stdout)
    assert [(row["from"], row["cause"]) for row in rows] == [
        ("flights/0@1", "id: 'x1' is not a number"),
        ("flights/0@3", "id: 'x3' is not a number"),
    ]
    assert "flights/0@3" in tallygate("dead-letters", "list", file.name).stdout


def test_a_pipeline_that_never_ran_has_no_list(file: Path, tallygate: Tallygate) -> None:
    said = tallygate("dead-letters", "list", file.name, code=LedgerError.exit_code).stderr
    assert "has never written to" in said
    said = tallygate("dead-letters", "list", "no.yaml", code=ConfigError.exit_code).stderr
    assert "no.yaml" in said
