"""When the plain job has read a topic to its ends, by its own checkpoint."""

import json
from pathlib import Path

import pytest

from tallygate.lab.drills.baseline_job import has_read


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of two batches that are done, and one that is not."""
    for number, offset in enumerate((5, 9, 12)):
        for folder in ("offsets", "commits")[: 1 if number == 2 else 2]:
            (tmp_path / folder).mkdir(exist_ok=True)
            lines = ["v1", "{}", json.dumps({"t": {"0": offset, "1": 3}})]
            (tmp_path / folder / str(number)).write_text("\n".join(lines))
    return tmp_path


def test_what_is_done_counts_and_not_what_is_planned(checkpoint: Path) -> None:
    assert has_read(checkpoint, "t", {0: 9, 1: 3})
    assert not has_read(checkpoint, "t", {0: 12, 1: 3})


def test_whoever_is_beyond_the_ends_has_read_another_topic(checkpoint: Path) -> None:
    assert not has_read(checkpoint, "t", {0: 4, 1: 3})


def test_nothing_is_read_before_the_first_batch(tmp_path: Path) -> None:
    assert not has_read(tmp_path, "t", {0: 1})
