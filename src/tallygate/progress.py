"""How long work tells how far it is: by calling a function with a short line."""

from collections.abc import Callable

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Show no progress."""
