"""Breakages by which a file that is odd would cost more than a sentence."""

from mutants.mutant import Mutant

__all__ = ["FILES"]

FILES = (
    Mutant(
        guarantee="A damaged file of rows is refused in a sentence.",
        file="kafka/record_files.py",
        old="            raise  # the disk's, and not Arrow's\n",
        new="            pass\n        raise\n",
        tests="core/test_files.py -k 'damaged or not_what_it_says'",
    ),
    Mutant(
        guarantee="A row that JSON cannot hold is a bad row.",
        file="kafka/record_files.py",
        old="            except TypeError as error:\n",
        new="            except ZeroDivisionError as error:\n",
        tests="core/test_files.py -k 'json_cannot_hold or form_in_json'",
    ),
    Mutant(
        guarantee="A row of a time that Python has not is a bad row, and the others are sent.",
        file="kafka/record_files.py",
        old="        yield from _careful_rows(batch)\n",
        new="        raise\n",
        tests="core/test_files.py -k no_date_can_be",
    ),
    Mutant(
        guarantee="A number that is guessed of a cell of CSV has all of its digits.",
        file="kafka/csv_cells.py",
        old="    if len(cell) > _SAFE_DIGITS and Decimal(repr(number)) != Decimal(cell):\n",
        new="    if number - number != 0:\n",
        tests="kafka/test_csv_cells.py -k 'odd_leaves or loses_nothing'",
    ),
    Mutant(
        guarantee="A first line of CSV that names the columns is no row.",
        file="engine/schema.py",
        old="    if first is not None and names_columns(",
        new="    if first is None and names_columns(",
        tests="engine/test_schema.py -k first_line_that_names",
    ),
    Mutant(
        guarantee="A few aliases do not stand for millions of values.",
        file="spec/places.py",
        old="        if count > MOST_NODES:\n",
        new="        if False:\n",
        tests="spec/test_yaml.py -k odd_is_refused",
    ),
    Mutant(
        guarantee="A file nests no deeper than it can be read.",
        file="spec/places.py",
        old="        if self._depth > DEEPEST:\n",
        new="        if False:\n",
        tests="spec/test_yaml.py -k odd_is_refused",
    ),
    Mutant(
        guarantee="A mapping that is part of itself is refused.",
        file="spec/places.py",
        old="        sizes[node] = None\n",
        new="",
        tests="spec/test_yaml.py -k odd_is_refused",
    ),
    Mutant(
        guarantee="What a file says twice is refused.",
        file="spec/places.py",
        old="            if key in keys:\n",
        new="            if False:\n",
        tests="spec/test_yaml.py -k odd_is_refused",
    ),
    Mutant(
        guarantee="A value that is not of its tag is refused with its line.",
        file="spec/places.py",
        old="        except _ODD:\n",
        new="        except ZeroDivisionError:\n",
        tests="spec/test_yaml.py -k odd_is_refused",
    ),
    Mutant(
        guarantee="A date in a pipeline's file is the text that it is.",
        file="spec/places.py",
        old='tag not in (f"{_TAG}bool", f"{_TAG}timestamp")',
        new='tag != f"{_TAG}bool"',
        tests="spec/test_yaml.py -k date_needs_no_quotes",
    ),
    Mutant(
        guarantee="A number without end is no duration.",
        file="units.py",
        old='_NUMBER = r"([0-9]{1,15}(?:',
        new='_NUMBER = r"([0-9]+(?:',
        tests="spec/test_yaml.py test_units.py -k 'bad or odd_is_refused'",
    ),
)
"""Invariant 6, of files."""
