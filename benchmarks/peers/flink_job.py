"""Flink SQL: a topic into PostgreSQL by JDBC, or into another topic exactly once.

It runs in an environment of its own, so nothing of Tallygate is imported: it is handed statements
and settings, and waits for the end of the last one.
"""

import json
import sys

from pyflink.table import EnvironmentSettings, TableEnvironment


def main(settings: dict[str, str], statements: list[str]) -> None:
    table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in settings.items():
        table.get_config().set(name, value)
    for statement in statements[:-1]:
        table.execute_sql(statement)
    table.execute_sql(statements[-1]).wait()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
