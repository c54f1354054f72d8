"""Settings of a session, held for a while: it may be the user's, who is to find it as it was."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

__all__ = ["held"]


@contextmanager
def held(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set them; afterwards each is again what it was, or unset."""
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
