"""A member of a consumer group under drill: `python -m tallygate.lab.drills.member`,
given one JSON object that says what to do. It writes what it reads into a table, with the delivery
that the object names."""

import json
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from typing import Any

from tallygate.consumer.run import consume
from tallygate.kafka.connection import Connection
from tallygate.postgres.connect import connect
from tallygate.quoting import double_quoted

NOTICED_SOON = {"session.timeout.ms": 6000}
"""A member that is killed leaves its partitions to the others after this time."""


@dataclass(frozen=True)
class Member:
    bootstrap_servers: str
    topic: str
    group: str
    dsn: str
    table: str
    exactly_once: bool
    """Otherwise offsets are committed by the clock, whatever became of the records."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tallygate.lab.drills.member", json.dumps(asdict(self))]

    @property
    def insert(self) -> bytes:
        return f"INSERT INTO public.{double_quoted(self.table)} (id) VALUES (%s)".encode()

    def run(self, stop: threading.Event) -> None:
        connection = Connection.to(self.bootstrap_servers)
        if self.exactly_once:
            consume(
                self.topic,
                lambda record, store: store.execute(self.insert, (_id(record),)) and None,
                group=self.group,
                delivery="exactly-once",
                dsn=self.dsn,
                connection=connection,
                stop=stop,
                properties=NOTICED_SOON,
            )
            return
        with connect(self.dsn, autocommit=True) as store:
            consume(
                self.topic,
                lambda record: store.execute(self.insert, (_id(record),)) and None,
                group=self.group,
                delivery="auto-commit",
                connection=connection,
                stop=stop,
                properties=NOTICED_SOON,
            )


def _id(record: Any) -> int:
    return int(json.loads(record.value)["id"])


if __name__ == "__main__":
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    Member(**json.loads(sys.argv[1])).run(ending)
