"""Breakages by which a record would do more on a terminal than be shown."""

from mutants.mutant import Mutant

__all__ = ["SHOWN"]

SHOWN = (
    Mutant(
        guarantee="A run of which nothing but dead letters came is no success.",
        file="engine/progress.py",
        old="    return rows == 0 and 0 < records <= 2 * letters\n",
        new="    return rows == 0 and 0 < records < letters\n",
        tests="engine/test_progress.py -k nothing_but",
    ),
    Mutant(
        guarantee="What steers a terminal is shown as an escape.",
        file="printable.py",
        old="    return _ODD.sub(_escape, text)\n",
        new="    return text\n",
        tests="./test_printable.py",
    ),
    Mutant(
        guarantee="A line of `consume` holds nothing that steers a terminal.",
        file="cli/consume.py",
        old="            printable(\n",
        new="            str(\n",
        tests="cli/test_printing.py -k record_cannot_steer",
    ),
    Mutant(
        guarantee="A table holds nothing that steers a terminal.",
        file="cli/output.py",
        old="    return escape(printable(str(value)))\n",
        new="    return escape(str(value))\n",
        tests="cli/test_printing.py -k table_cannot_steer",
    ),
    Mutant(
        guarantee="A dead letter is shown without what steers a terminal.",
        file="cli/dead_letters.py",
        old="{printable(str(content))}",
        new="{content}",
        tests="cli/test_printing.py -k letter_cannot_steer",
    ),
    Mutant(
        guarantee="An error is shown without what steers a terminal.",
        file="cli/__init__.py",
        old="tallygate: {printable(str(error), lines=True)}",
        new="tallygate: {error}",
        tests="cli/test_printing.py -k error_cannot_steer",
    ),
    Mutant(
        guarantee="A note is text and no markup.",
        file="cli/pipeline.py",
        old="live.console.print(printable(text), markup=False, highlight=False)",
        new="live.console.print(printable(text), highlight=False)",
        tests="cli/test_printing.py -k note",
    ),
    Mutant(
        guarantee="One record that is not JSON does not keep the next ones from being shown.",
        file="cli/consume.py",
        old="            except (InputError, ValueError, TypeError, RecursionError) as error:\n",
        new="            except InputError as error:\n",
        tests="cli/test_printing.py -k is_no_json",
    ),
)
"""The rule of errors and records on a terminal."""
