"""Every pipeline of the store and of this machine, as their runs' heartbeats tell it."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, overload

import psycopg

from tallygate.endpoints import running_dsn, stack_folder
from tallygate.errors import ConfigError, StackError
from tallygate.postgres.connect import connect
from tallygate.postgres.sessions import insist
from tallygate.postgres.tables import upgrade
from tallygate.settings import RUNS, Settings, nearest
from tallygate.targets.local_run import LocalRun, local_runs

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

    @property
    def late(self) -> int:
        """Rows of this run that the watermark had overtaken, by the last heartbeat."""
        return int((self.progress.get("state") or {}).get("late", 0))


@overload
def status(name: None = None, *, settings: Settings | None = None) -> list[PipelineStatus]: ...
@overload
def status(name: str, *, settings: Settings | None = None) -> PipelineStatus: ...
def status(
    name: str | None = None, *, settings: Settings | None = None
) -> list[PipelineStatus] | PipelineStatus:
    """Every pipeline of the configured PostgreSQL, if there is one, and those that ran on this
    machine into other sinks; or the one of that name, which must be among them."""
    known = _pipelines(settings or Settings.load())
    if name is None:
        return sorted(known.values(), key=lambda each: each.name)
    if name not in known:
        raise ConfigError(f"the store has no pipeline {name!r}{nearest(name, known)}")
    return known[name]


def _pipelines(settings: Settings) -> dict[str, PipelineStatus]:
    try:
        stored = _stored(running_dsn(settings), settings.timeout)
    except StackError:
        stored = []
    newest: dict[str, PipelineStatus] = {}
    for each in [*stored, *local_pipelines(settings)]:
        if each.name not in newest or each.heartbeat_at > newest[each.name].heartbeat_at:
            newest[each.name] = each
    return newest


def local_pipelines(settings: Settings) -> list[PipelineStatus]:
    """Those that ran here into stores that keep no heartbeats."""
    found = []
    for run in _runs_here(settings):
        held = run.read()
        started, beaten = held.pop("started_at"), held.pop("heartbeat_at")
        progress, outcome = held["progress"], held["outcome"]
        found.append(
            PipelineStatus(
                **held,
                state=_state(outcome is not None, outcome, time.time() - beaten),
                started_at=datetime.fromtimestamp(started, UTC),
                heartbeat_at=datetime.fromtimestamp(beaten, UTC),
                positions=progress.get("positions", {}),
                letters=progress.get("letters", 0),
                lost=0,
            )
        )
    return found


def _runs_here(settings: Settings) -> Iterator[LocalRun]:
    """Those that belong to the stack that the settings name, and those that belong to none."""
    yield from local_runs(settings.runs_dir)
    yield from local_runs(stack_folder(settings) / RUNS)


def _stored(dsn: str, timeout: float) -> list[PipelineStatus]:
    with connect(dsn, timeout=timeout, autocommit=True) as connection:
        if not _has_ledger(connection):
            return []
        insist(dsn, upgrade, doing="to the ledger's tables")
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


def request_stop(name: str, settings: Settings) -> int:
    """Ask the newest run of a pipeline to stop after its batch; return the run's number."""
    found = status(name, settings=settings)
    if found.state != "running":
        raise ConfigError(f"pipeline {name!r} is not running: its last run is {found.state}.")
    for run in _runs_here(settings):
        held = run.read()
        if (run.pipeline, held["target"], held["pid"]) == (name, found.target, found.pid):
            run.ask_to_stop()
            return found.run
    with connect(running_dsn(settings), timeout=settings.timeout, autocommit=True) as connection:
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
