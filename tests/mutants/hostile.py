"""Breakages by which a record that is made to do harm would do some."""

from mutants.mutant import Mutant

__all__ = ["HOSTILE"]

HOSTILE = (
    Mutant(
        guarantee="The key counts for how large a record is.",
        file="core/decoding.py",
        old='        sizes = pc.add(sizes, _lengths(raw.column("key")))\n',
        new="        pass\n",
        tests="core/test_refused_records.py -k together",
    ),
    Mutant(
        guarantee="Headers count for how large a record is.",
        file="core/decoding.py",
        old="[added.get(at, 0) for at in range(len(sizes))]",
        new="[0 for at in range(len(sizes))]",
        tests="core/test_refused_records.py -k together",
    ),
    Mutant(
        guarantee="The values of a record are counted before they are made.",
        file="core/most_values.py",
        old="    if count > MOST_VALUES:\n",
        new="    if False:\n",
        tests="core/test_most_values.py",
    ),
    Mutant(
        guarantee="What is in a string counts for no value.",
        file="core/most_values.py",
        old='string.sub(b"", value).count',
        new="value.count",
        tests="core/test_most_values.py -k commas",
    ),
    Mutant(
        guarantee="A branch or a symbol of Avro that is not there is not the last one.",
        file="core/avro_reading.py",
        old="    if not 0 <= number < most:\n",
        new="    if number >= most:\n",
        tests="core/test_avro_reading.py",
    ),
    Mutant(
        guarantee="A cause is no longer than every store keeps.",
        file="core/letters.py",
        old='        object.__setattr__(self, "cause", _bounded(self.cause))\n',
        new="        pass\n",
        tests="core/test_letters.py -k cause",
    ),
    Mutant(
        guarantee="A dead letter keeps no more of a key than of a value.",
        file="core/letters.py",
        old="    first = None if key is None else key[: most // _SHARE]\n",
        new="    first = key\n",
        tests="core/test_letters.py -k no_part",
    ),
    Mutant(
        guarantee="A time that only one reader knows is null.",
        file="core/decoding.py",
        old="    return pc.if_else(dated, column, None)\n",
        new="    return column\n",
        tests="core/test_refused_records.py -k beyond_all_dates",
    ),
    Mutant(
        guarantee="What a source says of the size of its records reaches the decoder.",
        file="engine/frames.py",
        old="    largest = None if size < 0 else size\n",
        new="    largest = None\n",
        tests="engine/test_hostile_into_targets.py -k how_large",
    ),
    Mutant(
        guarantee="A batch that Spark's reader cannot read is read by our own.",
        file="engine/read_path.py",
        old="            small=0 if beyond_spark or apart else self.request.small,\n",
        new="            small=0 if apart else self.request.small,\n",
        tests="engine/test_hostile_into_targets.py -k 'stop_nothing and postgres'",
    ),
    Mutant(
        guarantee="A consumer's dead letter fits into its topic.",
        file="consumer/retry.py",
        old="    if _size(whole) <= most:\n",
        new="    if True:\n",
        tests="consumer/test_large_letters.py -k fits_into",
    ),
    Mutant(
        guarantee="No record makes its retry topic wait longer than that says.",
        file="consumer/loop.py",
        old='        return min(number(record.header("tallygate.not-before")), longest)\n',
        new='        return number(record.header("tallygate.not-before"))\n',
        tests="consumer/test_retry.py -k waits_longer",
    ),
    Mutant(
        guarantee="A record from the future does not make a dedup forget.",
        file="consumer/dedup.py",
        old="    return [min(stamp, now) for stamp in stamps]\n",
        new="    return stamps\n",
        tests="consumer/test_dedup.py -k ahead",
    ),
)
"""Invariant 6, against those who would break it."""
