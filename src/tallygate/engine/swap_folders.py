"""Exchange two folders in one step, so that a reader sees one or the other."""

import ctypes
import os
from pathlib import Path

__all__ = ["exchange"]

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def exchange(one: Path, other: Path) -> None:
    """Linux can do this for most file systems; where it cannot, that is an error."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one), None, str(other))
