"""Where Tallygate keeps files: downloads in the cache folder, stacks and logs in the state folder.

Both follow the XDG rules and can be set. Root is the exception for the state folder: PostgreSQL
refuses to run as root and so runs as another user, who cannot look into root's home.
"""

import contextlib
import os
from pathlib import Path


def default_cache_dir() -> Path:
    return _xdg("XDG_CACHE_HOME", ".cache")


def default_state_dir() -> Path:
    if os.geteuid() == 0 and "XDG_STATE_HOME" not in os.environ:
        return Path("/var/lib/tallygate")
    return _xdg("XDG_STATE_HOME", ".local/state")


def _xdg(variable: str, fallback: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / fallback) / "tallygate"


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a text file, without reading more than its end."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 400 * lines - 4096))
        return file.read().decode(errors="replace").splitlines()[-lines:]
    return []
