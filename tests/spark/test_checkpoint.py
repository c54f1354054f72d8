"""Spark's checkpoint, as we write it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tallygate.spark.checkpoint import Checkpoint


@pytest.mark.parametrize("name", ["offsets/0", "offsets/1", "commits/0"])
def test_a_seed_that_is_cut_off_leaves_no_file_that_is_not_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Spark, and we, would fail on an empty entry at every start."""
    checkpoint = Checkpoint(spark, str(tmp_path / "checkpoint"))
    positions, halfway = {("t", 0): 5}, {("t", 0): 9}
    write = Checkpoint.write

    def cut(self: Checkpoint, written: str, text: str) -> None:
        mine = written.startswith(name)
        write(self, written, "" if mine else text)
        if mine:
            raise OSError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", cut)
        with pytest.raises(OSError, match="killed here"):
            checkpoint.seed(positions, halfway)
    assert all(checkpoint.end(number) for number in checkpoint.batches)
    checkpoint.seed(positions, halfway)
    assert (checkpoint.committed, checkpoint.planned) == (0, 1)
    assert (checkpoint.start(1), checkpoint.end(1)) == (positions, halfway)
