"""The staging table of a run, and merging it into the target.

It is unlogged: PostgreSQL empties it after a crash, and a failed or repeated task leaves rows in
it. So only rows of attempts that the driver heard of count, and they must be as many as those tasks
reported, or the batch is planned anew.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql

from tallygate.errors import TargetError
from tallygate.ledger.letters import Letter
from tallygate.ledger.postgres import Claim
from tallygate.postgres.arrow import Connected, is_refusal
from tallygate.postgres.schema import SCHEMA
from tallygate.quoting import double_quoted
from tallygate.records.decoding import COORDINATES
from tallygate.sinks.postgres.table import Column, Target
from tallygate.sinks.postgres.writer import refused
from tallygate.sinks.sink import Retry

__all__ = ["Staging"]


@dataclass(frozen=True)
class Staging:
    """Where the rows of one batch wait; made for each run, so that an older one cannot mix in."""

    name: str
    target: Target
    columns: tuple[Column, ...]
    """The target's columns."""
    staged: tuple[Column, ...]
    """Those and the coordinates, if rows carry them."""
    key: tuple[str, ...]
    mode: str

    @classmethod
    def make(
        cls,
        connection: psycopg.Connection,
        claim: Claim,
        target: Target,
        columns: tuple[Column, ...],
        staged: tuple[Column, ...],
        key: tuple[str, ...],
        mode: str,
    ) -> "Staging":
        """Make the table, and remove those of older runs."""
        prefix = f"stage_{hashlib.sha256(claim.pipeline.encode()).hexdigest()[:12]}_"
        name = f"{prefix}{claim.epoch}"
        older = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace "
            "AND relkind = 'r' AND starts_with(relname, %s)",
            (SCHEMA, prefix),
        ).fetchall()
        for (old,) in older:
            connection.execute(
                sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, old))
            )
        body = [
            sql.SQL("{} {}").format(
                sql.Identifier(column.name),
                sql.SQL(column.postgres),
            )
            for column in staged
        ]
        connection.execute(
            sql.SQL(
                "CREATE UNLOGGED TABLE {} "
                "({}, _attempt text, _row bigint GENERATED ALWAYS AS IDENTITY)"
            ).format(sql.Identifier(SCHEMA, name), sql.SQL(", ").join(body))
        )
        return cls(name, target, columns, staged, key, mode)

    def clear(self, connection: Connected) -> None:
        connection.rows(f"TRUNCATE {self._quoted} RESTART IDENTITY")

    def merge(
        self,
        connection: Connected,
        attempts: Sequence[str],
        expected: int,
        *,
        careful: bool,
        letters: list[Letter],
    ) -> int:
        """Bring the staged rows into the target, within the transaction that is open."""
        listed = ",".join(attempts)
        counted = connection.rows(
            f"SELECT count(*), coalesce(max(_row), 0) FROM {self._quoted} "
            "WHERE _attempt = ANY (string_to_array($1, ','))",
            listed,
        )[0]
        if counted[0] != expected:
            raise Retry(f"{expected} rows were staged and {counted[0]} are there")
        if self.mode == "replace":
            connection.rows(f"DELETE FROM {self.target.quoted}")
        if not careful:
            return self._insert(connection, listed, 0, counted[1])
        connection.rows("SET CONSTRAINTS ALL IMMEDIATE")
        return self._carefully(connection, listed, 0, counted[1], letters)

    def _carefully(
        self, connection: Connected, listed: str, low: int, high: int, letters: list[Letter]
    ) -> int:
        """Insert the rows numbered in (low, high], halving what is refused."""
        if low >= high:
            return 0
        connection.rows("SAVEPOINT tallygate_merge")
        try:
            return self._insert(connection, listed, low, high)
        except Exception as error:
            if not is_refusal(error):
                raise
            connection.rows("ROLLBACK TO SAVEPOINT tallygate_merge")
            if high - low == 1:
                letters.append(self._letter(connection, listed, high, str(error)))
                return 0
        middle = (low + high) // 2
        return self._carefully(connection, listed, low, middle, letters) + self._carefully(
            connection, listed, middle, high, letters
        )

    def _insert(self, connection: Connected, listed: str, low: int, high: int) -> int:
        counted = connection.rows(
            f"WITH merged AS ({self._statement()} RETURNING 1) SELECT count(*) FROM merged",
            listed,
            low,
            high,
        )
        return int(counted[0][0])

    def _statement(self) -> str:
        names = ", ".join(double_quoted(column.name) for column in self.columns)
        chosen = (
            f"FROM {self._quoted} WHERE _attempt = ANY (string_to_array($1, ',')) "
            "AND _row > $2 AND _row <= $3"
        )
        into = f"INSERT INTO {self.target.quoted} ({names})"
        if not self.key:
            return f"{into} SELECT {names} {chosen} ORDER BY _row"
        keys = ", ".join(double_quoted(name) for name in self.key)
        if self.mode == "append":
            return f"{into} SELECT {names} {chosen} ORDER BY _row ON CONFLICT ({keys}) DO NOTHING"
        changes = ", ".join(
            f"{double_quoted(column.name)} = EXCLUDED.{double_quoted(column.name)}"
            for column in self.columns
            if column.name not in self.key
        )
        action = f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
        return (
            f"{into} SELECT DISTINCT ON ({keys}) {names} {chosen} "
            f"ORDER BY {keys}{self._newest_first()} ON CONFLICT ({keys}) {action}"
        )

    def _newest_first(self) -> str:
        """Of several rows of one key the last record's counts; a key's records are in one
        partition, where offsets are their order."""
        if any(column.name == "_offset" for column in self.staged):
            return ", _offset DESC, _row DESC"
        return ", _row DESC"

    def _letter(self, connection: Connected, listed: str, row: int, message: str) -> Letter:
        names = [column.name for column in self.staged]
        found = connection.rows(
            f"SELECT {', '.join(f'{double_quoted(name)}::text' for name in names)} "
            f"FROM {self._quoted} WHERE _row = $1 AND _attempt = ANY (string_to_array($2, ','))",
            row,
            listed,
        )
        if not found:
            raise TargetError(f"PostgreSQL refuses the batch: {message}")
        fields = dict(zip(names, found[0], strict=True))
        coordinates = None
        if set(COORDINATES) <= set(fields):
            coordinates = pa.RecordBatch.from_pylist(
                [
                    {
                        "_topic": fields["_topic"],
                        "_partition": int(fields["_partition"]),
                        "_offset": int(fields["_offset"]),
                    }
                ]
            )
        return refused(pa.RecordBatch.from_pylist([fields]), coordinates, message)

    @property
    def _quoted(self) -> str:
        return f"{SCHEMA}.{self.name}"
