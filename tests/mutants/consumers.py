"""Breakages of the Python consumer."""

from mutants.mutant import Mutant

__all__ = ["CONSUMERS"]

CONSUMERS = (
    Mutant(
        guarantee="A producer runs no other transaction after a request that timed out.",
        file="kafka/transactions.py",
        old="(self._began > 0 and self._log.is_unanswered)",
        new="False",
        tests="kafka/test_transactions.py -k timed_out_is_spent",
    ),
    Mutant(
        guarantee="A producer hears of a lost answer whatever is asked of its log.",
        file="kafka/transactions.py",
        old='HEARD = {"log_level": 6, "log_connection_close": True}',
        new="HEARD: dict[str, Any] = {}",
        tests="kafka/test_transactions.py -k deaf",
    ),
    Mutant(
        guarantee="A loader opens its producer again after a request that timed out.",
        file="kafka/load.py",
        old="                    if self._transactions.is_spent:\n",
        new="                    if False:\n",
        tests="kafka/test_transactions.py -k loader",
    ),
    Mutant(
        guarantee="A consumer opens its producer again after a request that timed out.",
        file="consumer/into_kafka.py",
        old="        if self._transactions.is_spent:\n",
        new="        if False:\n",
        tests="kafka/test_transactions.py -k consumer",
    ),
    Mutant(
        guarantee="A replay opens its producer again after a request that timed out.",
        file="consumer/dead_letters.py",
        old="        if transactions.is_spent:\n",
        new="        if False:\n",
        tests="kafka/test_transactions.py -k replay",
    ),
    Mutant(
        guarantee="A consumer writes the dead letter of an error whatever that says.",
        file="consumer/retry.py",
        old='    return text.encode(errors="backslashreplace").decode()\n',
        new="    return text\n",
        tests="consumer/test_retry.py -k whatever_the_error_says",
    ),
    Mutant(
        guarantee="A consumer writes the dead letter of an error that has no text.",
        file="consumer/retry.py",
        old="    except Exception as problem:\n",
        new="    except ZeroDivisionError as problem:\n",
        tests="consumer/test_retry.py -k whatever_the_error_says",
    ),
    Mutant(
        guarantee="An Output that cannot be sent is its handler's failure.",
        file="consumer/into_kafka.py",
        old="    return [_checked(output) for output in found]\n",
        new="    return found\n",
        tests="consumer/test_outputs.py -k failure_of_its_handler",
    ),
    Mutant(
        guarantee="A consumer's offset in PostgreSQL moves only from where it knows it to be.",
        file="consumer/into_postgres.py",
        old='AND partition = %s AND next_offset = %s",\n',
        new='AND partition = %s AND next_offset >= %s - 1000000",\n',
        tests="consumer/test_outages.py -k overlap",
    ),
    Mutant(
        guarantee="A consumer takes no record of a partition that it does not own any more.",
        file="consumer/loop.py",
        old="return partition in self._owned and self._terms"
        ".get(partition) == terms.get(partition)",
        new="return True",
        tests="consumer/test_going_back.py consumer/test_run.py -k 'back or rebalance'",
    ),
    Mutant(
        guarantee="A record from outside does not say where it came from.",
        file="consumer/retry.py",
        old="        if record.topic not in self.retry_topics(group):\n",
        new="        if False:\n",
        tests="consumer/test_retry.py -k marks",
    ),
    Mutant(
        guarantee="A record from outside does not say when it is due.",
        file="consumer/loop.py",
        old="if known else 0\n",
        new="if True else 0\n",
        tests="consumer/test_retry.py -k make_a_record_wait",
    ),
    Mutant(
        guarantee="A dead letter with a marker's header is no marker.",
        file="consumer/dead_letters.py",
        old="record.value is not None or len(record.headers) != 1:",
        new="record.value is not None or not record.headers:",
        tests="consumer/test_dead_letters.py -k marker",
    ),
    Mutant(
        guarantee="A replay writes to no topic that is not named.",
        file="consumer/dead_letters.py",
        old="if letter.topic in into and letter.topic in named]",
        new="if letter.topic in named]",
        tests="consumer/test_dead_letters.py -k that_is_named",
    ),
    Mutant(
        guarantee="A pipeline's dead letter keeps what looks like a mark apart.",
        file="targets/kafka/sending.py",
        old="    return [*put_aside(letter.headers), *marks]\n",
        new="    return [*letter.headers, *marks]\n",
        tests="consumer/test_dead_letters.py -k marks_apart",
    ),
    Mutant(
        guarantee="A handler sees no record whose headers could not be read.",
        file="consumer/retry.py",
        old="        if record.is_misnamed:\n",
        new="        if False:\n",
        tests="consumer/test_retry.py -k cannot_be_read",
    ),
    Mutant(
        guarantee="An operation counts once.",
        file="consumer/into_postgres.py",
        old="                    if fresh[at]:\n",
        new="                    if True:\n",
        tests="consumer/test_dedup.py -k counts_once",
    ),
)
"""The same promises, of the Python consumer."""
