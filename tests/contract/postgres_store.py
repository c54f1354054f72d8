"""PostgreSQL in the contract suite."""

from dataclasses import dataclass
from typing import Any

import psycopg

from contract.harness import Store
from contract.source import At, place_of
from tallygate.spec import Postgres
from tallygate.targets.postgres.target import PostgresTarget

__all__ = ["PostgresStore"]


@dataclass(frozen=True, kw_only=True)
class PostgresStore(Store):
    dsn: str
    lock_wait: float = 10.0

    @property
    def raw(self) -> bool:
        return self.strategy != "staged"

    @property
    def keyed(self) -> bool:
        return self.strategy in ("merged", "driver-merged")

    @property
    def has_coordinates(self) -> bool:
        return self.strategy != "replaced"

    def make(self) -> None:
        check = "CHECK (id % 10 <> 3)" if self.refuses else ""
        columns = f"id bigint {check}, account text"
        if self.keyed:
            columns += ", PRIMARY KEY (account)"
        elif self.has_coordinates:
            columns += ", _topic text, _partition int, _offset bigint"
        with psycopg.connect(self.dsn) as connection:
            connection.execute(f"CREATE TABLE {self.at} ({columns})".encode())

    def make_again(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute(f"DROP TABLE {self.at}".encode())
        self.make()

    def target(self) -> PostgresTarget:
        fields: dict[str, Any] = {"mode": "upsert", "key": "account"} if self.keyed else {}
        if self.delivery == "idempotent" and not self.keyed:
            fields = {"key": "id"}
        if "driver" not in self.strategy:
            fields["driver_rows"] = 0
        return PostgresTarget(
            Postgres(self.at, **fields),
            pipeline=self.pipeline,
            delivery=self.delivery,
            dsn=self.dsn,
            timeout=10,
            lock_wait=self.lock_wait,
        )

    def rows(self) -> list[At]:
        return [place_of(id) for (id,) in self.query(f"SELECT id FROM {self.at}")]

    def causes(self) -> list[tuple[At, str]]:
        found = self.query(
            'SELECT partition, "offset", cause FROM tallygate.dead_letters '
            f"WHERE pipeline = '{self.pipeline}'"
        )
        return [((partition, offset), cause) for partition, offset, cause in found]

    def hang_up(self) -> None:
        """End the connections of the process that named itself after the pipeline: the name of its
        run comes behind that."""
        self.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE application_name = '{self.pipeline}' "
            f"OR starts_with(application_name, '{self.pipeline} ')"
        )

    def query(self, query: str) -> list[Any]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query.encode()).fetchall()
