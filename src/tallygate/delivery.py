"""The four deliveries: in which order results and offsets are saved.

exactly-once               both in one transaction
at-least-once, idempotent  the results, then the offsets: a crash in between writes them again,
                           idempotent rows over themselves
at-most-once               the offsets, then the results: a crash in between loses them
"""

from collections.abc import Callable

Step = Callable[[], None]


def in_order(delivery: str, rows: Step, ledger: Step) -> list[list[Step]]:
    """The transactions to make one after the other, each with its steps."""
    if delivery == "exactly-once":
        return [[rows, ledger]]
    return [[ledger], [rows]] if delivery == "at-most-once" else [[rows], [ledger]]
