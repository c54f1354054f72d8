"""Breakages of the audit: it would call valid what it did not check, or what is wrong."""

from mutants.mutant import Mutant

__all__ = ["PROOF"]

PROOF = (
    Mutant(
        guarantee="Unknown is never valid.",
        file="auditing/verdict.py",
        old="        if self.unknown:\n",
        new="        if False:\n",
        tests="audit/test_verdict.py",
    ),
    Mutant(
        guarantee="A check of nothing is unknown.",
        file="auditing/verdict.py",
        old="default=Verdict.UNKNOWN)",
        new="default=Verdict.VALID)",
        tests="audit/test_verdict.py",
    ),
    Mutant(
        guarantee="A part in which nothing lies is unknown.",
        file="auditing/scope.py",
        old="    if count(scope.ranges) or not count(ledger.ranges.values()):\n",
        new="    if True:\n",
        tests="audit/test_scope.py audit/test_result.py",
    ),
    Mutant(
        guarantee="What retention removed is unknown unless it is older than what was asked for.",
        file="auditing/scope.py",
        old="            if 0 <= firsts[partition] < begin:\n",
        new="            if True:\n",
        tests="audit/test_scope.py -k retention",
    ),
    Mutant(
        guarantee="The files of a folder are those of the commits that the audit counts.",
        file="targets/parquet/snapshot.py",
        old="if (folder.number(path) or 0) <= newest]",
        new="if folder.number(path) != 0]",
        tests="targets/test_parquet_folder.py -k one_moment",
    ),
    Mutant(
        guarantee="A lane that lacks a partition has done nothing of it.",
        file="targets/kafka/snapshot.py",
        old="held[partition].offset if partition in held else 0 for held in lanes)",
        new="held[partition].offset for held in lanes if partition in held)",
        tests="targets/test_kafka_snapshot.py",
    ),
    Mutant(
        guarantee="For an audit a dead letter counts once the ledger is past it.",
        file="core/ledger_snapshot.py",
        old="if each[2] < at.get(each[:2], 0)),",
        new="if each[2] <= at.get(each[:2], 0)),",
        tests="core/test_ledger_snapshot.py targets/test_kafka_snapshot.py",
    ),
    Mutant(
        guarantee="A batch that was interrupted explains the offsets that it held, and no others.",
        file="auditing/history.py",
        old="in told if each.topic_partition == gap.topic_partition):\n",
        new="in told):\n",
        tests="audit/test_history.py",
    ),
    Mutant(
        guarantee="Only a compacted topic excuses rows whose records are gone.",
        file="auditing/compaction.py",
        old='if "compact" in (said or "")),',
        new='if said != ""),',
        tests="audit/test_compaction.py -k 'policy or offsets'",
    ),
    Mutant(
        guarantee="The content of each column counts.",
        file="auditing/digest_sums.py",
        old='for name in ("_offset", *self.content)])',
        new='for name in ("_offset",)])',
        tests="audit/test_digest_sums.py",
    ),
    Mutant(
        guarantee="Rows of records that the ledger does not claim are found.",
        file="auditing/digest_sums.py",
        old="        sums.outside += block.num_rows - named\n",
        new="",
        tests="audit/test_digest_sums.py",
    ),
    Mutant(
        guarantee="A row that is there too often is a duplicate.",
        file="auditing/comparing.py",
        old='        .when(there > wanted, "duplicate")\n',
        new="",
        tests="audit/test_audit.py -k planted",
    ),
    Mutant(
        guarantee="A gap in the ledger's history is found.",
        file="auditing/history.py",
        old="            if each.start > here:\n",
        new="            if False:\n",
        tests="audit/test_history.py",
    ),
    Mutant(
        guarantee="A null has a number that no value has.",
        file="auditing/hashing.py",
        old="        if column.null_count:\n",
        new="        if False:\n",
        tests="audit/test_hashing.py",
    ),
    Mutant(
        guarantee="Of a shared table, rows of the pipeline's own topics are looked at.",
        file="auditing/coordinates.py",
        old="        found = found.where(_own(claimed))\n",
        new="        found = found.limit(0)\n",
        tests="audit/test_audit.py -k rows_of_others",
    ),
    Mutant(
        guarantee="What another transform made is not called wrong.",
        file="auditing/audit.py",
        old="    if made_by is None or not set(case.ledger.specs) - {made_by}:\n",
        new="    if case is not None:\n",
        tests="audit/test_audit.py -k another_transform",
    ),
    Mutant(
        guarantee="What rows were made by stays in the ledger when that changes.",
        file="core/ledger.py",
        old="dict.fromkeys((*specs, *([] if spec is None else [spec])))",
        new="dict.fromkeys([] if spec is None else [spec])",
        tests="contract/test_ledger.py -k 'rows_were_made_by and postgres'",
    ),
)
"""Invariant 7."""
