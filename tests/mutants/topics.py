"""Breakages of what only a topic's ledger has: offsets of groups, and dead letters in a topic."""

from mutants.mutant import Mutant

__all__ = ["TOPICS"]

TOPICS = (
    Mutant(
        guarantee="Dead letters of a batch that was given up hide none of the next one's.",
        file="targets/kafka/letters.py",
        old="return held is not None and held.mark.run == self.ledger.claim.run",
        new="return held is not None",
        tests="contract/test_letters.py -k 'kafka and given_up'",
    ),
    Mutant(
        guarantee="Dead letters of a batch that was given up are withdrawn at a start.",
        file="targets/kafka/target.py",
        old="        self.letter_keeper(claim).withdraw()\n",
        new="",
        tests="contract/test_letters.py -k 'kafka and all_records_fit'",
    ),
    Mutant(
        guarantee="Dead letters that are withdrawn are not counted.",
        file="targets/kafka/letters.py",
        old="left = (offset for offset in self._held[at] if offset < gone.start)",
        new="left = iter(self._held[at])",
        tests="contract/test_letters.py -k 'kafka and all_records_fit'",
    ),
    Mutant(
        guarantee="Dead letters that are withdrawn are not listed.",
        file="kafka/dead_letters.py",
        old="if origin(each)[2] < gone.start]",
        new="]",
        tests="contract/test_topics.py -k 'lanes and listed'",
    ),
    Mutant(
        guarantee="An older run keeps no dead letters in a topic.",
        file="targets/kafka/letters.py",
        old="            check=lambda: self._check_newest(partition),\n",
        new="",
        tests="contract/test_writers.py -k 'kafka-lanes and wherever'",
    ),
    Mutant(
        guarantee="A run goes on from what it has committed to a topic, however late that is seen.",
        file="targets/kafka/target.py",
        old="self._groups().state(settled=self._claimed)",
        new="self._groups().state()",
        tests="contract/test_topics.py -k shows_late",
    ),
    Mutant(
        guarantee="An offset that a transaction holds is not taken for none.",
        file="targets/kafka/ledger.py",
        old="        if any(map(_is_held, (each for held in found for each in held))):\n",
        new="        if False:\n",
        tests="contract/test_topics.py -k shows_late",
    ),
    Mutant(
        guarantee="A start into a topic does not wait for what a dead run left open.",
        file="targets/kafka/target.py",
        old="        self._claimed = False\n",
        new="        self._claimed = True\n",
        tests="contract/test_topics.py -k left_open",
    ),
    Mutant(
        guarantee="A cluster is known by its id, not by its addresses.",
        file="kafka/clients.py",
        old="    return ids[0] == ids[1]\n",
        new="    return False\n",
        tests="contract/test_topics.py -k another_name",
    ),
    Mutant(
        guarantee="A ledger of stand-ins is gone on with whatever the clusters are called.",
        file="targets/kafka/stand_ins.py",
        old="        if kept:\n",
        new="        if False:\n",
        tests="contract/test_topics.py -k stand_ins",
    ),
    Mutant(
        guarantee="A position that a topic's ledger has lost is missed by the others.",
        file="targets/kafka/ledger.py",
        old="            known=self.known.get(topic, 0),\n",
        new="",
        tests="contract/test_topics.py -k 'forgotten or added'",
    ),
    Mutant(
        guarantee="A ledger that has lost a position is not gone on from.",
        file="core/start.py",
        old="        or refuse_forgotten(ledger, policy)\n",
        new="",
        tests="core/test_start.py",
    ),
    Mutant(
        guarantee="Rows that take too long for one transaction have several.",
        file="targets/kafka/write.py",
        old="            divisible = self.narrow and self._transactional\n",
        new="            divisible = False\n",
        tests="contract/test_topics.py -k several",
    ),
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
        old='"spark.speculation", "false").lower() == "true":\n',
        new='"spark.speculation", "false").lower() == "never":\n',
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
