"""A breakage of a guarantee: one text of the source in the place of another."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "SOURCE", "Mutant"]

ROOT = Path(__file__).parent.parent.parent
SOURCE = Path("src") / "tallygate"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    guarantee: str
    """What does not hold any more."""
    file: str
    """In which module, below `src/tallygate`."""
    old: str
    """The text that keeps the guarantee; it stands there once."""
    new: str
    tests: str
    """The tests of the default suite that must see it: arguments of pytest, below `tests`."""

    def applied(self, root: Path) -> str:
        """The module with the breakage in it."""
        text = (root / SOURCE / self.file).read_text()
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.file} has {self.old!r} {found} times and should have it once")
        return text.replace(self.old, self.new)
