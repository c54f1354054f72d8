"""`tallygate compact`: folders of Parquet files."""

from pathlib import Path
from typing import Annotated

import typer

from tallygate.errors import ConfigError
from tallygate.units import size_bytes

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(compact)


def compact(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a pipeline.")],
    into: Annotated[Path, typer.Argument(metavar="NEW", help="A folder that does not exist yet.")],
    target: Annotated[str, typer.Option(help="How large files should become.")] = "128MB",
) -> None:
    """Write a folder's rows into a new one, in few large files; the pipeline goes on there."""
    from tallygate.sinks.parquet.compaction import compact as write
    from tallygate.sinks.parquet.folder import Folder

    size = size_bytes(target)
    if size < 1:
        raise ConfigError(f"--target {target!r} must be a size, as 128MB.")
    done = write(Folder.at(str(folder)), Folder.at(str(into)), size)
    print(f"{into} has {done.rows:,} rows in {done.files:,} files, made of {done.files_before:,}.")
    print(f"Set sink.parquet to {into}; remove {folder} when nobody reads it any more.")
