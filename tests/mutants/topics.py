"""Breakages of what only a topic's ledger has: offsets of groups, and dead letters in a topic."""

from mutants.mutant import Mutant

__all__ = ["TOPICS"]

TOPICS = (
    Mutant(
        guarantee="No transaction ends inside a record.",
        file="targets/kafka/transfer.py",
        old="if last is not None and first > last and",
        new="if last is not None and",
        tests="targets/test_kafka_parts.py",
    ),
    Mutant(
        guarantee="A dead letter is in the transaction of its own record.",
        file="targets/kafka/transfer.py",
        old="return [each for each in self.letters if lies_in(self.wanted, *each.at)]",
        new="return list(self.letters)",
        tests="targets/test_kafka_parts.py",
    ),
    Mutant(
        guarantee="Of a job with speculation no task writes to a topic.",
        file="engine/start.py",
        old='    if spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":\n',
        new="    if False:\n",
        tests="engine/test_checking.py -k speculation",
    ),
    Mutant(
        guarantee="Speculation is known however it is spelled.",
        file="engine/start.py",
        old='get("spark.speculation", "false").lower() == "true"',
        new='get("spark.speculation", "false") == "true"',
        tests="engine/test_checking.py -k speculation",
    ),
)
"""Invariants 1, 2, 5 and 6, for topics."""
