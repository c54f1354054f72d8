"""What nobody can be faster than: reading alone, and writing alone."""

import time

import psycopg

from benchmarks.course import Course
from benchmarks.programs import COLUMNS
from benchmarks.stage import Stage
from tallygate.kafka.read import Reading, read

__all__ = ["raw_consumption", "raw_copy"]

CHUNK = 50_000


def raw_consumption(stage: Stage) -> Course:
    """A bare consumer in Python, one process; nothing is decoded."""
    commits = []
    for batch in read(Reading([stage.work.topic], exit_at_end=True), stage.connection):
        if batch:
            commits.append((time.time(), len(batch)))
    return Course(tuple(commits))


def raw_copy(stage: Stage) -> Course:
    """Rows that are there already, as text, into PostgreSQL by COPY over one connection."""
    lines = [
        f"{number}\t{number % 1000}\t{number / 4}\t2026-01-01T00:00:00Z\tnote {number % 97:012d}\n"
        for number in range(stage.work.rows)
    ]
    chunks = [
        "".join(lines[start : start + CHUNK]).encode() for start in range(0, stage.work.rows, CHUNK)
    ]
    with (
        stage.table("copy", COLUMNS) as table,
        psycopg.connect(stage.stack.dsn) as connection,
        connection.cursor() as cursor,
    ):
        for chunk in chunks:
            with cursor.copy(f"COPY public.{table} FROM STDIN".encode()) as copy:
                copy.write(chunk)
            connection.commit()
        return stage.course_of_table(table)
