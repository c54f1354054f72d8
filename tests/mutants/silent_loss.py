"""Breakages by which records would be lost without a word: gone ranges and bad records."""

from mutants.mutant import Mutant

__all__ = ["BAD_RECORDS", "NOTHING_IN_SILENCE"]

NOTHING_IN_SILENCE = (
    Mutant(
        guarantee="Records that retention removed before they were read are an error.",
        file="core/start.py",
        old="        or _refuse_loss(_lost(ledger, source), nature, policy)\n",
        new="",
        tests="core/test_start_source.py",
    ),
    Mutant(
        guarantee="A ledger is gone on with only into the target that it is of.",
        file="core/start.py",
        old="    return None if same else policy.target_id\n",
        new="    return None\n",
        tests="core/test_start.py contract/test_ledger.py -k 'a_start or another_place'",
    ),
    Mutant(
        guarantee="A target that is accepted in the place of another is recorded.",
        file="postgres/ledger_tables.py",
        old="WHERE pipeline = $1 AND next_offset > first_offset",
        new="WHERE pipeline = $1 AND false",
        tests="contract/test_ledger.py -k 'postgres-driver and accepted'",
    ),
    Mutant(
        guarantee="A table that PostgreSQL empties after a crash is refused.",
        file="targets/postgres/table.py",
        old='        if persistence != "p":\n',
        new="        if False:\n",
        tests="targets/test_table.py -k less_long",
    ),
    Mutant(
        guarantee="A row is set aside whatever it is refused for.",
        file="postgres/arrow.py",
        old="    return state[:2] not in (*_PASSING, *_OF_STATEMENTS)\n",
        new="    return state[:2] in ('22', '23')\n",
        tests="postgres/test_refusals.py",
    ),
    Mutant(
        guarantee="Dead letters that the driver would not find are not kept.",
        file="targets/parquet/letters.py",
        old="        if not folder.is_dir():\n",
        new="        folder.mkdir(parents=True, exist_ok=True)\n        if False:\n",
        tests="targets/test_parquet_folder.py -k driver_would_not",
    ),
    Mutant(
        guarantee="A folder that took the place of another is not taken for it.",
        file="targets/parquet/folder.py",
        old="or there is None or there.id != since.id:",
        new="or there is None:",
        tests="targets/test_parquet_folder.py -k in_the_place",
    ),
    Mutant(
        guarantee="A topic that was made again is refused.",
        file="core/start.py",
        old="        if seen.get(topic, topic_id) != topic_id:\n",
        new="        if False:\n",
        tests="core/test_start_source.py",
    ),
    Mutant(
        guarantee="An empty ledger is not gone on from where a checkpoint has batches.",
        file="core/start.py",
        old="            or _refuse_unknown_past(checkpoint, policy)\n",
        new="",
        tests="core/test_start.py",
    ),
    Mutant(
        guarantee="A pipeline with state is refused without its checkpoint.",
        file="core/start.py",
        old="        or _refuse_without_anchor(ledger, checkpoint, source, nature, policy)\n",
        new="",
        tests="core/test_start.py",
    ),
    Mutant(
        guarantee="A checkpoint that is ahead of the ledger is not gone on with.",
        file="core/start.py",
        old="all(begins[partition] <= at <= ends[partition] for partition, at in reached.items())",
        new="all(at <= ends[partition] for partition, at in reached.items())",
        tests="core/test_start.py core/test_start_properties.py",
    ),
    Mutant(
        guarantee="A range that is given up is kept as lost.",
        file="postgres/ledger_tables.py",
        old="    for each in gone:\n        transaction.rows(",
        new="    for each in ():\n        transaction.rows(",
        tests="contract/test_ledger.py -k postgres-driver",
    ),
    Mutant(
        guarantee="Tasks that find records gone say how many.",
        file="kafka/fetch.py",
        old="            if first > wanted.start:\n",
        new="            if first > wanted.until:\n",
        tests="kafka/test_fetching.py",
    ),
    Mutant(
        guarantee="A consumer that finds records gone says so.",
        file="consumer/loop.py",
        old="            self._check_range(partition, message.offset(), error)\n",
        new="            pass\n",
        tests="consumer/test_run.py -k retention",
    ),
)
"""Invariant 5."""

BAD_RECORDS = (
    Mutant(
        guarantee="A record that cannot be decoded becomes a dead letter.",
        file="core/blocks.py",
        old="        self.letters += made.letters\n",
        new="",
        tests="contract/test_letters.py -k 'sqlite or postgres-driver'",
    ),
    Mutant(
        guarantee="A dead letter names its record.",
        file="core/blocks.py",
        old="letters = [letter_of(raw, each.index, each.cause) for each in unfit]",
        new="letters = [letter_of(raw, 0, each.cause) for each in unfit]",
        tests="contract/test_letters.py -k 'sqlite or postgres-driver'",
    ),
    Mutant(
        guarantee="All rows but the one that is refused are written.",
        file="core/halving.py",
        old="        return part(low, middle) + part(middle, high)\n",
        new="        return part(low, middle)\n",
        tests="contract/test_letters.py -k sqlite",
    ),
    Mutant(
        guarantee="A row that is refused is set aside.",
        file="core/halving.py",
        old="                set_aside(low, error)\n",
        new="",
        tests="contract/test_letters.py -k sqlite",
    ),
    Mutant(
        guarantee="A dead letter of PostgreSQL's counts once its batch does.",
        file="postgres/tables.py",
        old='WHERE letters."offset" < positions.next_offset;',
        new="WHERE true;",
        tests="contract/test_letters.py -k postgres-driver",
    ),
    Mutant(
        guarantee="Dead letters of a folder are those of the ranges of their commit.",
        file="targets/parquet/letters.py",
        old="for each in self.letters if lies_in(wanted, *each.at)}",
        new="for each in self.letters}",
        tests="contract/test_letters.py targets/test_parquet_attempts.py -k parquet",
    ),
    Mutant(
        guarantee="A record with a header that cannot be read becomes a dead letter.",
        file="core/decoding.py",
        old="        if not misnamed:\n",
        new="        if True:\n",
        tests="core/test_decoding.py -k header",
    ),
    Mutant(
        guarantee="A message whose headers cannot be read ends no reader.",
        file="kafka/headers.py",
        old="    except (SystemError, UnicodeDecodeError):\n",
        new="    except UnicodeEncodeError:\n",
        tests="kafka/test_headers.py",
    ),
    Mutant(
        guarantee="Headers that cannot be read are an error however often headers were asked for.",
        file="kafka/headers.py",
        old="        given = _ask(message)\n",
        new="        given: Any = message.headers()\n",
        tests="kafka/test_headers.py -k however_often",
    ),
    Mutant(
        guarantee="Too many dead letters stop the pipeline.",
        file="engine/batch.py",
        old="        if limit is not None and self.letters > limit:\n",
        new="        if False:\n",
        tests="targets/test_table.py -k too_many",
    ),
)
"""Invariant 6."""
