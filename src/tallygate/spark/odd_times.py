"""Times of records that Spark's reader cannot take.

Kafka takes any number for one. Spark makes microseconds of it, whether or not the time is asked
for, and fails where these are more than a long holds, as do nanoseconds that a producer took for
milliseconds. Our own reader gives null for such a time.
"""

_CONVERTER = "KafkaRecordToRowConverter"
_OVERFLOW = "long overflow"


def is_beyond_spark(error: BaseException) -> bool:
    """Whether a job failed by the time of a record."""
    said = f"{error}{getattr(error, '_stackTrace', '')}"
    return _CONVERTER in said and _OVERFLOW in said
