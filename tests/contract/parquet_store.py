"""A folder of Parquet files in the contract suite."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds

from contract.harness import Store
from contract.source import At, place_of
from tallygate.core.letters import Letter
from tallygate.settings import Settings
from tallygate.spec import Parquet
from tallygate.targets.parquet.target import ParquetTarget

__all__ = ["ParquetStore"]


@dataclass(frozen=True, kw_only=True)
class ParquetStore(Store):
    folder: str

    @property
    def raw(self) -> bool:
        return False

    @property
    def path(self) -> Path:
        return Path(self.folder) / self.at

    def make(self) -> None:
        """The target makes its folder."""

    def target(self) -> ParquetTarget:
        spec = Parquet(str(self.path), driver_rows=20_000 if self.strategy == "driver" else 0)
        settings = Settings.load({"state.dir": self.folder})
        return ParquetTarget(spec, pipeline=self.pipeline, settings=settings)

    def rows(self) -> list[At]:
        if not self.path.exists():
            return []
        dataset = ds.dataset(str(self.path), format="parquet")
        if not dataset.files:
            return []
        ids = dataset.to_table(columns=["id"]).column("id")
        return [place_of(id) for id in ids.to_pylist()]

    def causes(self) -> list[tuple[At, str]]:
        files = self.path.glob("commit=*/_letters.jsonl")
        found = [Letter.read(line) for file in files for line in file.read_text().splitlines()]
        return [((letter.partition, letter.offset), letter.cause) for letter in found]
