"""Files of rows, written so that they are worth reading and outlast a power cut."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tallygate.errors import TargetError
from tallygate.targets.base import UnknownOutcomeError
from tallygate.targets.parquet.folder import sync

ROW_GROUP_BYTES = 32 << 20
_FOR_GOOD = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A full disk or one that is away may come back, so the batch is tried again; a folder that may
    not be written is the user's to change."""
    try:
        yield
    except OSError as error:
        said = f"{path} cannot be written: {error.strerror or error}"
        if error.errno in _FOR_GOOD:
            raise TargetError(f"{said}.") from error
        raise UnknownOutcomeError(said) from error


class RowFile:
    """A file that is begun with its first row. Blocks are gathered to row groups of a size that is
    worth reading."""

    def __init__(self, path: Path, columns: pa.Schema) -> None:
        self._path, self._columns = path, columns
        self._writer: pq.ParquetWriter | None = None
        self._gathered: list[pa.RecordBatch] = []
        self._bytes = 0
        self.rows = 0

    @property
    def size(self) -> int:
        """The bytes that are in the file so far."""
        return 0 if self._writer is None else self._path.stat().st_size

    def add(self, block: pa.RecordBatch) -> None:
        if self._writer is None:
            with disk_errors(self._path.parent):
                self._writer = pq.ParquetWriter(self._path, self._columns)
        self._gathered.append(block)
        self._bytes += block.nbytes
        self.rows += block.num_rows
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        if self._writer is not None:
            self._flush()
            with disk_errors(self._path.parent):
                self._writer.close()
                sync(self._path)

    def _flush(self) -> None:
        if self._gathered and self._writer is not None:
            with disk_errors(self._path.parent):
                self._writer.write_table(pa.Table.from_batches(self._gathered, self._columns))
        self._gathered, self._bytes = [], 0
