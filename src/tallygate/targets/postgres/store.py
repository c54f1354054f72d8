"""PostgreSQL as the store of a pipeline: the target table and the ledger beside it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tallygate import __version__
from tallygate.core.decoding import COORDINATES
from tallygate.core.letters import Letter
from tallygate.core.offsets import Known, Range
from tallygate.errors import LedgerError
from tallygate.postgres.arrow import is_lost, pooled
from tallygate.postgres.connect import connect
from tallygate.spec import Postgres
from tallygate.targets.postgres.ledger import Claim, PostgresLedger
from tallygate.targets.postgres.sink import PostgresSink
from tallygate.targets.postgres.staging import Staging
from tallygate.targets.postgres.table import Column, Target, columns_of, ensure_table
from tallygate.targets.store import Keeper, Shape
from tallygate.targets.task_report import telling

__all__ = ["PostgresStore"]


@dataclass(frozen=True)
class _LetterTable:
    """Keeps unfit records as they are found. The letters count once their batch is in the ledger,
    so a batch that is never committed leaves none that anybody sees."""

    dsn: str
    claim: Claim

    def keep(self, letters: list[Letter]) -> None:
        with telling(is_lost), pooled(self.dsn) as connection:
            self.claim.check(connection)
            self.claim.keep(connection, letters)
            connection.commit()


class PostgresStore:
    def __init__(
        self, spec: Postgres, pipeline: str, delivery: str, dsn: str, timeout: float
    ) -> None:
        self._spec, self._delivery, self._dsn, self._timeout = spec, delivery, dsn, timeout
        self._ledger = PostgresLedger(dsn, pipeline, timeout)
        self._beats = PostgresLedger(dsn, pipeline, timeout)
        self._claim = Claim(pipeline, 0)
        self._columns: tuple[Column, ...] = ()
        self._staged: tuple[Column, ...] = ()
        self._target: Target | None = None

    @property
    def target(self) -> str:
        return f"table {self._target or self._spec.table}"

    @property
    def mirrors(self) -> bool:
        return True

    def prepare(self, shape: Shape) -> None:
        given = columns_of(shape.schema)
        wanted = given
        if not (self._spec.coordinates and self._spec.mode == "append"):
            wanted = tuple(c for c in given if not (shape.carries and c.name in COORDINATES))
        with connect(self._dsn, timeout=self._timeout, autocommit=True) as connection:
            self._target = Target.parse(self._spec.table, connection)
            self._columns = ensure_table(connection, self._target, wanted, self._spec.key)
        sent = {column.name: column for column in self._columns}
        self._staged = tuple(sent.get(column.name, column) for column in given)
        self._ledger.prepare()

    def known(self) -> Known | None:
        return self._ledger.known()

    def keeper(self) -> Keeper:
        return _LetterTable(self._dsn, self._claim)

    def begin(self, shape: Shape, checkpoint: str) -> None:
        self._claim = self._ledger.begin(
            target=self.target,
            delivery=self._delivery,
            stateful=shape.stateful,
            checkpoint=checkpoint,
            version=__version__,
        )

    def lose(self, lost: Iterable[Range], reason: str) -> None:
        self._ledger.lose(self._claim, lost, reason)

    def sink(self, shape: Shape) -> PostgresSink:
        if self._target is None:
            raise LedgerError("the store was not prepared")
        spec = self._spec
        with connect(self._dsn, timeout=self._timeout, autocommit=True) as connection:
            staging = Staging.make(
                connection,
                self._claim,
                self._target,
                self._columns,
                self._staged,
                spec.key,
                spec.mode,
            )
        return PostgresSink(
            self._dsn,
            self._ledger,
            self._claim,
            self._target,
            self._columns,
            staging,
            spec.mode,
            spec.key,
            self._delivery,
            shape.carries,
            shape.narrow,
            shape.stateful,
            shape.decoder,
            shape.source,
            spec.driver_rows,
        )

    def remember(self, checkpoint_id: str | None, topic_ids: Mapping[str, str]) -> None:
        self._ledger.remember(self._claim, checkpoint_id, topic_ids)

    def letters(self) -> int:
        return self._ledger.letters()

    def beat(self, progress: Mapping[str, Any]) -> bool:
        return self._beats.beat(self._claim, progress)

    def end(self, outcome: str) -> None:
        try:
            self._beats.end(self._claim, outcome)
        finally:
            self._beats.close()
            self._ledger.close()
