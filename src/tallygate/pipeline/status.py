"""Every pipeline of a store, as the ledger and the runs' heartbeats tell it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from tallygate.errors import ConfigError
from tallygate.postgres.connecting import connect
from tallygate.postgres.schema import upgrade
from tallygate.settings import nearest

__all__ = ["PipelineStatus", "pipelines", "request_stop"]

ALIVE_WITHIN = 10.0


@dataclass(frozen=True)
class PipelineStatus:
    name: str
    target: str
    delivery: str
    state: str
    """running, stopped, failed, or silent: no heartbeat, and no end either."""
    run: int
    host: str
    pid: int
    started_at: datetime
    heartbeat_at: datetime
    outcome: str | None
    positions: Mapping[str, int]
    letters: int
    lost: int
    progress: Mapping[str, Any]

    @property
    def lag(self) -> int | None:
        """Offsets behind, by the last heartbeat."""
        lags: Mapping[str, int] | None = self.progress.get("lag")
        return None if lags is None else sum(lags.values())


def pipelines(dsn: str, timeout: float = 10) -> list[PipelineStatus]:
    with connect(dsn, timeout=timeout, autocommit=True) as connection:
        if not _has_ledger(connection):
            return []
        upgrade(connection)
        rows = connection.execute(
            "SELECT r.stopped_at IS NOT NULL, extract(epoch FROM now() - r.heartbeat_at), "
            "p.name, p.target, p.delivery, r.epoch, r.host, r.pid, r.started_at, "
            "r.heartbeat_at, r.outcome, r.progress, "
            "(SELECT coalesce(jsonb_object_agg(topic || '/' || partition, next_offset), '{}') "
            "FROM tallygate.positions WHERE pipeline = p.name), "
            "(SELECT count(*) FROM tallygate.dead_letters WHERE pipeline = p.name), "
            "(SELECT coalesce(sum(until_offset - from_offset), 0)::bigint "
            "FROM tallygate.lost_ranges WHERE pipeline = p.name) "
            "FROM tallygate.pipelines AS p JOIN tallygate.runs AS r "
            "ON r.pipeline = p.name AND r.epoch = p.epoch ORDER BY p.name"
        ).fetchall()
    return [_status(*row) for row in rows]


def request_stop(name: str, dsn: str, timeout: float = 10) -> int:
    """Ask the newest run of a pipeline to stop after its batch; return the run's number."""
    known = {each.name: each for each in pipelines(dsn, timeout)}
    if name not in known:
        raise ConfigError(f"the store has no pipeline {name!r}{nearest(name, known)}")
    found = known[name]
    if found.state != "running":
        raise ConfigError(f"pipeline {name!r} does not run: its last run is {found.state}.")
    with connect(dsn, timeout=timeout, autocommit=True) as connection:
        connection.execute(
            "UPDATE tallygate.runs SET stop_requested = true WHERE pipeline = %s AND epoch = %s",
            (name, found.run),
        )
    return found.run


def _status(ended: bool, age: float, name: str, target: str, delivery: str, *rest: Any) -> Any:
    run, host, pid, started, heartbeat, outcome, progress, positions, letters, lost = rest
    return PipelineStatus(
        name=name,
        target=target,
        delivery=delivery,
        state=_state(ended, outcome, float(age)),
        run=run,
        host=host,
        pid=pid,
        started_at=started,
        heartbeat_at=heartbeat,
        outcome=outcome,
        positions=positions,
        letters=letters,
        lost=lost,
        progress=progress,
    )


def _has_ledger(connection: psycopg.Connection) -> bool:
    row = connection.execute("SELECT to_regclass('tallygate.pipelines')").fetchone()
    return row is not None and row[0] is not None


def _state(ended: bool, outcome: str | None, age: float) -> str:
    if ended:
        return "failed" if (outcome or "").startswith("failed") else "stopped"
    return "running" if age < ALIVE_WITHIN else "silent"
