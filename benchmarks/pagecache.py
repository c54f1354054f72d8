"""Memory as on a machine that has been up for a while: full of files.

A virtual machine gets its memory from its host page by page, when a page is first used, and may
give back what has been free for a while. That is slow: 3 s of CPU for a GiB were measured. Whatever
writes files takes new pages for as long as there are some, so the first to write after a rest pays
for it, and of two runs the one that writes more: rates seemed to fall with the number of rows.
Where memory is full of files, pages of those are used anew, and cost next to nothing.

So free memory is filled with pages of a file that has no contents and takes no place on the disk;
the kernel gives them up as soon as anyone needs memory.
"""

from pathlib import Path

import psutil

__all__ = ["PageCache"]

BLOCK = 8 * 2**20
STILL = 64
"""So many blocks without less free memory than before: the kernel keeps the rest free."""
MOST = 64 * 2**30
"""To read at a time: of larger machines only a part is filled."""


class PageCache:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "no-contents"
        self._size = 4 * max(psutil.virtual_memory().total, MOST)
        """Far more than memory: what is read next has been given up before, if it ever was read."""
        self._at = 0

    def fill(self) -> None:
        """Until there is no less free memory by more of it."""
        if not self._file.exists():
            with self._file.open("wb") as file:
                file.truncate(self._size)
        least, still = _free(), 0
        with self._file.open("rb", buffering=0) as file:
            block = bytearray(BLOCK)
            for _ in range(MOST // BLOCK):
                file.seek(self._at)
                file.readinto(block)
                self._at = (self._at + BLOCK) % self._size
                free = _free()
                least, still = (free, 0) if free < least - BLOCK // 2 else (least, still + 1)
                if still == STILL:
                    break


def _free() -> int:
    return int(psutil.virtual_memory().free)
