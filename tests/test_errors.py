import inspect

from tallygate import errors
from tallygate.errors import TallygateError


def _classes() -> list[type[TallygateError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    assert all(inspect.isclass(each) and issubclass(each, TallygateError) for each in found)
    return found


def test_every_error_has_an_exit_code_of_its_own() -> None:
    codes = [error.exit_code for error in _classes()]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes
    assert 2 not in codes, "2 means wrong usage"


def test_the_tree_at_the_top_of_the_module_is_whole() -> None:
    drawn = errors.__doc__ or ""
    for error in _classes():
        line = next(line for line in drawn.splitlines() if f"{error.__name__} " in line)
        assert f" {error.exit_code} " in line
