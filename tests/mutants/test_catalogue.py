"""The mutants themselves: each can be applied, and names tests that are there."""

import ast
import shlex

import pytest

from mutants.catalogue import MUTANTS
from mutants.mutant import ROOT, Mutant


def test_there_are_enough_of_them_and_each_breaks_something_else() -> None:
    assert len(MUTANTS) >= 40
    assert len({each.guarantee for each in MUTANTS}) == len(MUTANTS)
    assert len({(each.file, each.old, each.new) for each in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guarantee)
def test_a_mutant_is_another_program_and_names_its_tests(mutant: Mutant) -> None:
    ast.parse(mutant.applied(ROOT))
    paths = [each for each in shlex.split(mutant.tests) if "/" in each or each == "contract"]
    assert paths
    for path in paths:
        assert (ROOT / "tests" / path).exists(), path
