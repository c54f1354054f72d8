"""Rebuilding a pipeline: everything once more from the earliest record, then swapped in at once.

A pipeline with state whose checkpoint is gone cannot go on: the state is in the checkpoint. So a
copy of it, with a name, a table and a checkpoint of its own, reads the source from the beginning.
When it has caught up, one transaction takes the pipeline's next epoch, which fences a run that may
still be alive, and exchanges tables and ledger rows. Readers see the old table until then, and the
new one from then on.

Folders of Parquet and Delta tables hold their ledger themselves: the copy keeps the pipeline's
name, and the two folders change places in one step. Nothing fences a run there that is still alive,
so there must be none.
"""

import ctypes
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import SparkSession

from tallygate.endpoints import running_dsn
from tallygate.engine.opening import PipelineOrPath, open_pipeline
from tallygate.engine.pipeline import Pipeline
from tallygate.engine.progress import Progress
from tallygate.engine.run import Summary
from tallygate.engine.status import local_pipelines
from tallygate.errors import ConfigError, LedgerError, TallygateError, TargetError
from tallygate.postgres.connect import connect
from tallygate.postgres.sessions import ANY_EPOCH, LOCK_WAIT, insist
from tallygate.settings import Settings
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spec import Delta, Parquet, Postgres
from tallygate.targets.delta.table import forget_tables
from tallygate.targets.postgres.table import TableName

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

LONGEST_NAME = 63
"""Of a table, in bytes."""


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild did."""

    summary: Summary
    """Of the run that has read everything once more."""
    before: str | None
    """The table or folder that keeps what was replaced."""


def rebuild(
    pipeline: PipelineOrPath,
    *,
    settings: Settings | None = None,
    spark: SparkSession | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Rebuilt:
    """Compute the table or folder of a pipeline once more from the earliest record, and swap it in
    at once; `on_progress` is called after each batch.

    The session is the one that is given, else the active one, else a new one, which is left
    running."""
    at = open_pipeline(pipeline, "rebuild", settings, spark)
    sink = at.pipeline.sink
    if isinstance(sink, Postgres):
        return _rebuild_table(at.pipeline, sink, at.settings, at.spark, on_progress)
    if isinstance(sink, Parquet | Delta):
        return _rebuild_folder(at.pipeline, sink, at.settings, at.spark, on_progress)
    raise ConfigError(
        "only tables and folders can be rebuilt: a topic keeps its past. Start a pipeline of "
        "another name into another topic."
    )


def _rebuild_table(
    pipeline: Pipeline,
    sink: Postgres,
    settings: Settings,
    spark: SparkSession,
    on_progress: Callable[[Progress], None],
) -> Rebuilt:
    dsn = sink.dsn or running_dsn(settings)
    with connect(dsn, timeout=settings.timeout, autocommit=True) as connection:
        target = TableName.parse(sink.table, connection)
    copy = TableName(target.schema, _beside(target.name, "__rebuild"))
    name, path = f"{pipeline.name}.rebuild", pipeline.checkpoint_path(settings)
    _forget(dsn, name, copy)
    checkpoint = Checkpoint(spark, f"{path}.rebuild-{int(time.time())}")
    summary = pipeline.model_copy(
        update={
            "name": name,
            "checkpoint": checkpoint.path,
            **_from_the_start(pipeline),
            "sink": sink.model_copy(update={"table": copy.quoted}),
        }
    ).run(until="available", settings=settings, spark=spark, on_progress=on_progress)
    _check_done(summary, pipeline)
    before = _swap(dsn, pipeline.name, name, target, copy)
    _take_over(checkpoint, path, spark)
    return Rebuilt(summary, before)


def _check_done(summary: Summary, pipeline: Pipeline) -> None:
    """A run that was asked to stop has not read everything: what it made must not be swapped in."""
    if summary.outcome != "done":
        raise TallygateError(
            f"the rebuild of {pipeline.name!r} was {summary.outcome} after {summary.records:,} "
            "records; nothing is changed."
        )


def _beside(name: str, suffix: str) -> str:
    """A name for a table that belongs to this one. PostgreSQL cuts a longer one off, and could
    take it for that of the table itself."""
    if len(f"{name}{suffix}".encode()) <= LONGEST_NAME:
        return f"{name}{suffix}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    room = LONGEST_NAME - len(f"_{digest}{suffix}")
    return f"{name.encode()[:room].decode(errors='ignore')}_{digest}{suffix}"


def _take_over(checkpoint: Checkpoint, path: str, spark: SparkSession) -> None:
    """Put the new checkpoint in the place of the old one, if there is one."""
    old = Checkpoint(spark, path)
    if old.has():
        old.set_aside(f"before-rebuild-{int(time.time())}")
    checkpoint.move(path)


def _rebuild_folder(
    pipeline: Pipeline,
    sink: Parquet | Delta,
    settings: Settings,
    spark: SparkSession,
    on_progress: Callable[[Progress], None],
) -> Rebuilt:
    field = "parquet" if isinstance(sink, Parquet) else "delta"
    if ":/" in getattr(sink, field).removeprefix("file:"):
        raise ConfigError(
            "only folders of this machine can be rebuilt: they change places in one step."
        )
    place = Path(getattr(sink, field).removeprefix("file:")).resolve()
    if _runs_here(pipeline, settings):
        raise ConfigError(
            f"pipeline {pipeline.name!r} is running; stop it first with "
            f"`tallygate stop {pipeline.name}`."
        )
    if not place.exists():
        raise LedgerError(f"{place} does not exist; there is nothing to rebuild.")
    copy = place.with_name(f"{place.name}__rebuild")
    hidden = copy.with_name(f".{copy.name}.tallygate")
    for left in (copy, hidden):  # by a rebuild that did not finish
        shutil.rmtree(left, ignore_errors=True)
    path = pipeline.checkpoint_path(settings)
    checkpoint = Checkpoint(spark, f"{path}.rebuild-{int(time.time())}")
    summary = pipeline.model_copy(
        update={
            "checkpoint": checkpoint.path,
            **_from_the_start(pipeline),
            "sink": sink.model_copy(update={field: str(copy)}),
        }
    ).run(until="available", settings=settings, spark=spark, on_progress=on_progress)
    _check_done(summary, pipeline)
    if _runs_here(pipeline, settings):
        raise ConfigError(f"pipeline {pipeline.name!r} was started meanwhile; nothing is changed.")
    try:
        _exchange(place, copy)
    except (OSError, AttributeError) as error:
        raise TargetError(
            f"{place} and {copy} cannot change places in one step here: {error}. The rebuilt "
            f"folder is {copy}; put it in place by hand while no program reads it."
        ) from None
    before = place.with_name(f"{place.name}__before_{int(time.time())}")
    copy.rename(before)
    shutil.rmtree(hidden, ignore_errors=True)
    if isinstance(sink, Delta):
        forget_tables(spark)
    _take_over(checkpoint, path, spark)
    return Rebuilt(summary, str(before))


def _exchange(one: Path, other: Path) -> None:
    """Exchange two folders in one step, so that a reader sees one or the other. Linux can do this
    for most file systems; where it cannot, that is an error."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one), None, str(other))


def _runs_here(pipeline: Pipeline, settings: Settings) -> bool:
    known = local_pipelines(settings)
    return any(each.name == pipeline.name and each.state == "running" for each in known)


def _from_the_start(pipeline: Pipeline) -> dict[str, Any]:
    """The sources again, from their earliest record."""
    if pipeline.source is not None:
        return {"source": pipeline.source.from_the_start()}
    return {"sources": {name: each.from_the_start() for name, each in pipeline.sources.items()}}


def _forget(dsn: str, name: str, copy: TableName, wait: float = LOCK_WAIT) -> None:
    """Remove what a rebuild that did not finish has left, whatever of it still hangs."""

    def forget(connection: psycopg.Connection) -> None:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(copy.identifier))
        known = connection.execute("SELECT to_regclass('tallygate.pipelines')").fetchone()
        if known is not None and known[0] is not None:
            connection.execute("DELETE FROM tallygate.pipelines WHERE name = %s", (name,))

    insist(dsn, forget, pipeline=name, older=ANY_EPOCH, doing="to a table of its own", wait=wait)


def _swap(
    dsn: str, name: str, copy_name: str, target: TableName, copy: TableName, wait: float = LOCK_WAIT
) -> str | None:
    """Exchange tables and ledger in one transaction; return the name of the old table. It fences
    the runs that there are, so it may end those that hang and hold what it needs."""

    def swap(connection: psycopg.Connection) -> str | None:
        return _swap_within(connection, name, copy_name, target, copy)

    doing = f"with the rebuilt table, which is {copy}; nothing is changed"
    return insist(dsn, swap, pipeline=name, older=ANY_EPOCH, doing=doing, wait=wait)


def _swap_within(
    connection: psycopg.Connection, name: str, copy_name: str, target: TableName, copy: TableName
) -> str | None:
    row = connection.execute(
        "UPDATE tallygate.pipelines AS p SET epoch = p.epoch + 1, stateful = c.stateful, "
        "checkpoint_id = c.checkpoint_id, target_id = c.target_id, topic_ids = c.topic_ids, "
        "specs = c.specs "
        "FROM tallygate.pipelines AS c "
        "WHERE p.name = %s AND c.name = %s RETURNING p.epoch",
        (name, copy_name),
    ).fetchone()
    if row is None:
        raise LedgerError(f"pipeline {name!r} has never run here; there is nothing to rebuild.")
    before = None
    there = connection.execute(
        "SELECT to_regclass(%s)", (target.identifier.as_string(connection),)
    ).fetchone()
    rename = sql.SQL("ALTER TABLE {} RENAME TO {}")
    if there is not None and there[0] is not None:
        before = _beside(target.name, f"__before_{row[0]}")
        connection.execute(rename.format(target.identifier, sql.Identifier(before)))
    connection.execute(rename.format(copy.identifier, sql.Identifier(target.name)))
    for table in ("positions", "dead_letter_records", "lost_ranges", "batches"):
        ours = sql.Identifier("tallygate", table)
        connection.execute(sql.SQL("DELETE FROM {} WHERE pipeline = %s").format(ours), (name,))
        connection.execute(
            sql.SQL("UPDATE {} SET pipeline = %s WHERE pipeline = %s").format(ours),
            (name, copy_name),
        )
    connection.execute(
        "INSERT INTO tallygate.runs (pipeline, epoch, host, pid, version, stopped_at, outcome) "
        "SELECT %s, %s, host, pid, version, now(), 'rebuilt' FROM tallygate.runs "
        "WHERE pipeline = %s ORDER BY epoch DESC LIMIT 1",
        (name, row[0], copy_name),
    )
    connection.execute("DELETE FROM tallygate.pipelines WHERE name = %s", (copy_name,))
    return before
