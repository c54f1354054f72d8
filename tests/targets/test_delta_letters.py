"""Dead letters of a Delta table, which are files named after their records."""

from pathlib import Path

from tallygate.core.letters import Letter
from tallygate.targets.delta.letters import LetterFolder

NAME = "forgotten:20260102T030405Z:t"


def _folder(path: Path) -> LetterFolder:
    (path / "_delta_log").mkdir()
    folder = path / "_tallygate" / "p" / "letters"
    folder.mkdir(parents=True)
    return LetterFolder(str(folder))


def test_those_of_a_topic_that_is_forgotten_follow_its_name(tmp_path: Path) -> None:
    """Those of a batch that was never committed do not, and those of another topic of that name
    that comes later stay where they are."""
    letters = _folder(tmp_path)
    letters.keep([Letter("t", 0, at, "old") for at in (3, 10_005, 10_009)])
    held = {(NAME, 0): 10_006, ("w", 0): 7}
    for _ in range(2):
        letters.follow_names(held)
        letters.remove_beyond(held)
        assert sorted(letters.offsets((NAME, 0), 0, None)) == [3, 10_005]
        assert letters.offsets(("t", 0), 0, None) == []
    assert letters.letter(("t", 0, 3)).cause == "old"
    letters.keep([Letter("t", 0, 3, "new")])
    for later in (held, {**held, ("t", 0): 4}):
        letters.follow_names(later)
    letters.remove_beyond({**held, ("t", 0): 4})
    assert letters.letter((NAME, 0, 3)).cause == "old"
    assert letters.letter(("t", 0, 3)).cause == "new"


def test_a_name_that_was_followed_in_part_is_followed_to_the_end(tmp_path: Path) -> None:
    letters = _folder(tmp_path)
    letters.keep([Letter("t", 0, at, "old") for at in (3, 4)])
    letters.keep([Letter(NAME.replace(":", "~"), 0, 2, "old")])
    held = {(NAME, 0): 5}
    letters.follow_names(held)
    letters.remove_beyond(held)
    assert sorted(letters.offsets((NAME, 0), 0, None)) == [2, 3, 4]
