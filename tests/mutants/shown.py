"""Breakages by which a record would do more on a terminal than be shown."""

from mutants.mutant import Mutant

__all__ = ["SHOWN"]

SHOWN = (
    Mutant(
        guarantee="A run of which nothing but dead letters came is no success.",
        file="engine/progress.py",
        old="(letters >= records or not filters)\n",
        new="letters > records\n",
        tests="engine/test_progress.py -k nothing_but",
    ),
    Mutant(
        guarantee="Records that a transform leaves out are no dead letters.",
        file="engine/progress.py",
        old="(letters >= records or not filters)\n",
        new="2 * letters >= records\n",
        tests="engine/test_progress.py -k nothing_but",
    ),
    Mutant(
        guarantee="A start leaves the folders of programs that live.",
        file="spark/session.py",
        old="        if not _is_of_living(old.name):",
        new="        if not _is_of_living(old.stem):",
        tests="spark/test_session.py -k folders_of_living",
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
    Mutant(
        guarantee="A record forges no line of its trace.",
        file="auditing/trace.py",
        old="map(printable, self._lines())",
        new="self._lines()",
        tests="cli/test_printing.py -k forges_no_line_of_its_trace",
    ),
    Mutant(
        guarantee="A row forges no line of an audit.",
        file="auditing/verdict.py",
        old="map(printable, self._lines())",
        new="self._lines()",
        tests="cli/test_printing.py -k forges_no_line_of_an_audit",
    ),
)
"""The rule of errors and records on a terminal."""
