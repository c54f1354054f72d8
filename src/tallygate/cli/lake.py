"""`tallygate compact`: folders of Parquet files, and Delta tables."""

from pathlib import Path
from typing import Annotated

import typer

from tallygate.cli.options import Set, resolve_settings
from tallygate.errors import ConfigError
from tallygate.units import size_bytes

Folder = Annotated[
    str, typer.Argument(metavar="FOLDER", help="The folder of a pipeline, or its Delta table.")
]
Into = Annotated[
    Path | None,
    typer.Argument(metavar="[NEW]", help="For Parquet: a folder that does not exist yet."),
]
Target = Annotated[str, typer.Option(help="How large files should become.")]


def register(app: typer.Typer) -> None:
    app.command()(compact)


def compact(folder: Folder, into: Into = None, target: Target = "128MB", sets: Set = None) -> None:
    """Bring rows into few large files. Parquet goes into a new folder, where the pipeline goes on;
    a Delta table is optimized in its place, while the pipeline runs."""
    size = size_bytes(target)
    if size < 1:
        raise ConfigError(f"--target {target!r} must be a size, as 128MB.")
    is_delta = Path(folder, "_delta_log").is_dir()
    if into is not None:
        if is_delta:
            raise ConfigError(f"{folder} is a Delta table, compacted in its place: leave out NEW.")
        _parquet(folder, into, size)
    elif Path(folder).is_dir() and not is_delta:
        raise ConfigError(f"{folder} is not a Delta table: name a new folder for its rows, too.")
    else:
        _delta(folder, size, sets)


def _delta(folder: str, size: int, sets: list[str] | None) -> None:
    from tallygate.spark.session import session
    from tallygate.targets.delta.compaction import compact_table

    spark = session("compact", settings=resolve_settings(sets=sets), delta=True)
    done = compact_table(folder, target_bytes=size, spark=spark)
    spark.stop()
    print(f"{folder} has {done.files:,} files in the place of {done.files_before:,} small ones.")


def _parquet(folder: str, into: Path, size: int) -> None:
    from tallygate.targets.parquet.compaction import compact_folder
    from tallygate.targets.parquet.folder import Folder as CommitFolder

    source, destination = CommitFolder.at(folder), CommitFolder.at(str(into))
    done = compact_folder(source, destination, target_bytes=size)
    print(f"{into} has {done.rows:,} rows in {done.files:,} files, made of {done.files_before:,}.")
    print(f"Set sink.parquet to {into}; remove {folder} when no reader needs it any more.")
