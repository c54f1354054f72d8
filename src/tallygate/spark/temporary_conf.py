"""Set session options temporarily, and restore them: the session may be the user's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def temporary_conf(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set the options, and give each its old value back afterwards, or unset it."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, text in settings.items():
            spark.conf.set(name, text)
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)
