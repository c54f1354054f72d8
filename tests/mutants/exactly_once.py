"""Breakages of exactly once: gaps, overlaps, a second transaction, a second writer."""

from mutants.mutant import Mutant

__all__ = ["NO_GAP", "ONE_TRANSACTION", "ONE_WRITER"]

NO_GAP = (
    Mutant(
        guarantee="A position moves only from where a range starts.",
        file="core/ledger.py",
        old="            if at != each.start:\n",
        new="            if False:\n",
        tests="contract/test_commits.py -k 'sqlite or parquet'",
    ),
    Mutant(
        guarantee="A position moves to the end of its range and no further.",
        file="core/ledger.py",
        old="{each.topic_partition: each.until for each in done},",
        new="{each.topic_partition: each.until + 1 for each in done},",
        tests="contract/test_commits.py -k 'sqlite or parquet'",
    ),
    Mutant(
        guarantee="Where a partition was begun is kept by later commits.",
        file="core/ledger.py",
        old="{each.topic_partition: each.start for each in done} | dict(self.begun)",
        new="dict(self.begun) | {each.topic_partition: each.start for each in done}",
        tests="contract/test_ledger.py -k 'sqlite or parquet'",
    ),
    Mutant(
        guarantee="A batch that begins beyond the ledger is refused.",
        file="core/offsets.py",
        old="        if at < each.start:\n",
        new="        if at < each.start - 1_000:\n",
        tests="core/test_ranges.py",
    ),
    Mutant(
        guarantee="What the target holds of a batch is not written again.",
        file="core/offsets.py",
        old="left.append(Range(each.topic, each.partition, at, each.until))",
        new="left.append(each)",
        tests="core/test_ranges.py",
    ),
    Mutant(
        guarantee="A partition that is new to a known topic begins at 0.",
        file="core/offsets.py",
        old="0 if each.topic in topics else each.start",
        new="each.start",
        tests="core/test_ranges.py",
    ),
    Mutant(
        guarantee="A batch that is partly done is refused where its rows cannot be told apart.",
        file="core/offsets.py",
        old="    if needed and not divisible and needed != whole:\n",
        new="    if False:\n",
        tests="core/test_ranges.py",
    ),
    Mutant(
        guarantee="A range ends before its `until`.",
        file="core/offsets.py",
        old="return self.start <= offset < self.until",
        new="return self.start <= offset <= self.until",
        tests="contract/test_commits.py -k 'sqlite or parquet'",
    ),
    Mutant(
        guarantee="A block is trimmed to what is left of its batch.",
        file="core/blocks.py",
        old="        if plan.trim and given.num_rows:\n",
        new="        if False:\n",
        tests="contract/test_commits.py -k 'sqlite or parquet'",
    ),
    Mutant(
        guarantee="A task that commits by itself holds one partition.",
        file="core/blocks.py",
        old='if len(self.partitions) > 1 or numbers["min"] != numbers["max"]:',
        new="if False:",
        tests="targets/test_staging.py -k split",
    ),
    Mutant(
        guarantee="PostgreSQL moves a position only from where the batch begins.",
        file="postgres/ledger_tables.py",
        old="AND topic = t AND partition = p AND next_offset = s ",
        new="AND topic = t AND partition = p ",
        tests="contract/test_commits.py -k postgres-partition",
    ),
    Mutant(
        guarantee="PostgreSQL commits nothing if one of several positions had moved.",
        file="postgres/ledger_tables.py",
        old="    if len(moved) != len(wanted):\n",
        new="    if not moved:\n",
        tests="contract/test_commits.py -k 'postgres-driver and partition_is_done'",
    ),
    Mutant(
        guarantee="PostgreSQL keeps where a partition begins although nothing was read there.",
        file="targets/postgres/write.py",
        old="            self._move(connection, starts)\n",
        new="",
        tests="contract -k 'postgres-partition and (begins or begun or killed)'",
    ),
    Mutant(
        guarantee="A topic's group moves only from where the batch begins.",
        file="targets/kafka/ledger.py",
        old="if all(at.get(each.topic_partition, each.start) == each.start for each in wanted):",
        new="if True:",
        tests="contract/test_commits.py -k kafka-narrow",
    ),
    Mutant(
        guarantee="Rows that a topic has already are not written to it again.",
        file="targets/kafka/ledger.py",
        old="if all(at.get(each.topic_partition, -1) >= each.until for each in wanted):",
        new="if False:",
        tests="targets/test_kafka_attempts.py -k there_is_not_written_again",
    ),
    Mutant(
        guarantee="A topic's group says where partitions begin before any of them moves.",
        file="targets/kafka/write.py",
        old="        if new:\n            first = min",
        new="        if False:\n            first = min",
        tests="contract/test_kills.py -k 'kafka-narrow and first_batch'",
    ),
    Mutant(
        guarantee="A lost range is given up only from where the ledger is.",
        file="targets/kafka/groups.py",
        old="(self.state() or LedgerState()).moved(change.ranges)",
        new="(self.state() or LedgerState())",
        tests="contract/test_ledger.py -k 'kafka and given_up'",
    ),
    Mutant(
        guarantee="Of two commits to a folder with one number only one appears.",
        file="targets/parquet/folder.py",
        old="            if there is None or there.id != entry.id:\n",
        new="            if False:\n",
        tests="targets/test_parquet_folder.py",
    ),
    Mutant(
        guarantee="Spark's batch is read from where its predecessor ended.",
        file="spark/checkpoint.py",
        old="Range(topic, partition, start.get((topic, partition), 0), until)",
        new="Range(topic, partition, max(0, start.get((topic, partition), 0) - 1), until)",
        tests="spark/test_checkpoint.py engine/test_running.py",
    ),
    Mutant(
        guarantee="Tasks read no record beyond their range.",
        file="kafka/fetch.py",
        old="fit = bisect_left(offsets, wanted.until)",
        new="fit = len(offsets)",
        tests="kafka/test_fetching.py",
    ),
    Mutant(
        guarantee="A task whose rows were cut off commits nothing.",
        file="spark/truncated_input.py",
        old="    if not stream.peek(1):\n",
        new="    if False:\n",
        tests="spark/test_truncated_input.py",
    ),
)
"""Invariants 1 and 3."""

ONE_TRANSACTION = (
    Mutant(
        guarantee="Exactly once, rows and offsets are in one transaction.",
        file="delivery.py",
        old='    if delivery == "exactly-once":\n        return [[rows, ledger]]\n',
        new="",
        tests="contract/test_kills.py -k 'sqlite or postgres-driver'",
    ),
    Mutant(
        guarantee="At most once, offsets are saved before rows.",
        file="delivery.py",
        old='return [[ledger], [rows]] if delivery == "at-most-once" else [[rows], [ledger]]',
        new="return [[rows], [ledger]]",
        tests="contract/test_kills.py -k 'sqlite and twins'",
    ),
    Mutant(
        guarantee="At least once, rows are saved before offsets.",
        file="delivery.py",
        old='return [[ledger], [rows]] if delivery == "at-most-once" else [[rows], [ledger]]',
        new="return [[ledger], [rows]]",
        tests="contract/test_kills.py -k 'sqlite and twins'",
    ),
    Mutant(
        guarantee="Exactly once into a topic, rows and offsets are in a transaction.",
        file="targets/kafka/write.py",
        old='return self.delivery == "exactly-once"',
        new="return False",
        tests="contract -k 'kafka-narrow and (killed or fenced)'",
    ),
    Mutant(
        guarantee="Only rows of attempts that the driver heard of are merged.",
        file="targets/postgres/staging.py",
        old="_attempt = ANY (string_to_array($1, ',')) \"",
        new='$1::text IS NOT NULL "',
        tests="contract/test_attempts.py -k postgres-staged",
    ),
    Mutant(
        guarantee="Staged rows that PostgreSQL has lost are noticed.",
        file="targets/postgres/staging.py",
        old="        if counted[0] != expected:\n",
        new="        if False:\n",
        tests="targets/test_staging.py",
    ),
    Mutant(
        guarantee="Only files of attempts that the driver heard of are in a commit.",
        file="targets/parquet/write.py",
        old="    return {files / report.attempt: report.rows for report in reports if report.rows}",
        new="    import pyarrow.parquet as q\n"
        "    return {each: q.read_metadata(each).num_rows for each in files.iterdir()}",
        tests="contract/test_attempts.py -k parquet",
    ),
    Mutant(
        guarantee="A file that the driver cannot see whole is in no commit.",
        file="targets/parquet/write.py",
        old="    if found != rows:\n",
        new="    if False:\n",
        tests="targets/test_parquet_attempts.py -k does_not_see",
    ),
    Mutant(
        guarantee="A write that Delta has left out is noticed.",
        file="targets/delta/ledger.py",
        old="        if found.number != entry.number:\n",
        new="        if False:\n",
        tests="targets/test_delta_ledger.py -k 'did_not_take_place or left_out'",
    ),
    Mutant(
        guarantee="A broken connection in a commit is an unknown outcome, and the ledger is asked.",
        file="targets/postgres/rows.py",
        old="        if is_lost(error):\n"
        "            raise UnknownOutcomeError(str(error)) from error\n",
        new="",
        tests="contract/test_lost_answers.py",
    ),
    Mutant(
        guarantee="What no task has moved the ledger for, the driver moves.",
        file="targets/task_report.py",
        old="return [each for each in left if each.topic_partition not in done]",
        new="return []",
        tests="contract/test_commits.py -k postgres-partition",
    ),
    Mutant(
        guarantee="The last row of a key wins, wherever it was staged.",
        file="targets/postgres/staging.py",
        old='return ", _offset DESC, _row DESC" if self._orders else ", _row DESC"',
        new='return ", _row"',
        tests="contract/test_commits.py -k postgres-merged",
    ),
)
"""Invariants 1 and 4."""

ONE_WRITER = (
    Mutant(
        guarantee="An older run is fenced.",
        file="core/ledger.py",
        old="        if writer.epoch > self.run.epoch or twin:\n",
        new="        if twin:\n",
        tests="contract/test_writers.py -k 'parquet or kafka-narrow'",
    ),
    Mutant(
        guarantee="Of two runs that took one number, one is fenced.",
        file="core/ledger.py",
        old="        if writer.epoch > self.run.epoch or twin:\n",
        new="        if writer.epoch > self.run.epoch:\n",
        tests="contract/test_writers.py targets/test_kafka_attempts.py -k 'kafka or one_number'",
    ),
    Mutant(
        guarantee="PostgreSQL checks the epoch in the transaction of the rows.",
        file="targets/postgres/rows.py",
        old="                check_claim(connection, self.claim)\n"
        "                move(connection, self.claim, blocks.ranges)\n",
        new="                move(connection, self.claim, blocks.ranges)\n",
        tests="contract/test_writers.py -k postgres-partition",
    ),
    Mutant(
        guarantee="A run that takes over waits for the commits of the older one.",
        file="postgres/ledger_tables.py",
        old='WHERE name = $1 FOR SHARE"',
        new='WHERE name = $1"',
        tests="contract/test_writers.py -k 'postgres and paused'",
    ),
    Mutant(
        guarantee="Each run takes the next epoch.",
        file="postgres/ledger_tables.py",
        old='"epoch = pipelines.epoch + 1, target',
        new='"epoch = pipelines.epoch, target',
        tests="contract/test_writers.py contract/test_ledger.py -k postgres-driver",
    ),
    Mutant(
        guarantee="A run that takes over fences the producers of the older one.",
        file="targets/kafka/target.py",
        old="        groups.mark_again(claim, self._remembered, before)\n        return claim\n",
        new="        return claim\n",
        tests="contract/test_writers.py -k kafka-narrow",
    ),
    Mutant(
        guarantee="A weaker delivery moves the ledger of a topic behind a fence, too.",
        file="targets/kafka/sending.py",
        old="            self.fenced.send_offsets_to_transaction(offsets, group, ANSWER_TIMEOUT)\n",
        new="            self.consumer.commit(offsets=offsets, asynchronous=False)\n",
        tests="contract/test_writers.py -k 'kafka-narrow and set_the_ledger_back'",
    ),
    Mutant(
        guarantee="An older run commits nothing to a Delta table.",
        file="targets/delta/ledger.py",
        old="if entry is None or entry.state.run.id != claim.run.id:",
        new="if entry is None:",
        tests="targets/test_delta_ledger.py",
    ),
    Mutant(
        guarantee="The heartbeat of an older run finds the newer one.",
        file="postgres/ledger_tables.py",
        old="    if not found:\n        raise _fenced(connection, claim)\n",
        new="    if not found:\n        return False\n",
        tests="postgres/test_ledger_tables.py",
    ),
)
"""Invariant 2."""
