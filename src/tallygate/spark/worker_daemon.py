"""The Python worker daemon that Spark starts, made quick for small batches.

For every task `pyspark.worker` calls `importlib.invalidate_caches()`, after which Python reads the
directory of each zip and jar on `sys.path` again: 0.2 s a task, far more than a small batch takes.
The archives of a running application do not change, so here that one step does nothing. What tasks
import is imported once, before the workers are forked from this process, and Python looks for
garbage less often (see `gc_tuning`).

Spark runs this module by its name (`spark.python.daemon.module`), wherever the workers are; it
needs Tallygate installed there, as the sinks do.
"""

import contextlib
import importlib
import zipimport

PRELOADED = (
    "adbc_driver_postgresql.dbapi",
    "confluent_kafka",
    "pandas",
    "psycopg",
    "pyarrow.json",
    "pyspark.sql.pandas.serializers",
)


def keep_archive_directories() -> None:
    """Make `zipimporter.invalidate_caches` keep what it has read."""
    zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]


def preload() -> None:
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    keep_archive_directories()
    preload()

    from pyspark.daemon import manager

    from tallygate.gc_tuning import collect_seldom

    collect_seldom()
    manager()  # type: ignore[no-untyped-call]
