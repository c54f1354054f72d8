"""Python's collector of cyclic garbage, for programs that handle records by the million.

It looks for cycles after every 700 objects that were made and not gone, and at times through all
that there are. A block of records is 10,000 such objects, none of them in a cycle, all of them soon
gone: by that alone, reading from Kafka takes twice as long. So what a program has loaded is put
aside, and the rest is looked through only when far more has piled up than a block.

This is for Spark's workers and for commands that only read and write records: in a process of the
user's the collector is theirs.
"""

import gc

OBJECTS = 200_000


def collect_seldom() -> None:
    """From now on, in this process."""
    if gc.get_threshold()[0] != OBJECTS:
        gc.freeze()
        gc.set_threshold(OBJECTS, 10, 10)
