"""Files wherever Spark can have them: on a disk, on HDFS, in an object store.

All goes through Hadoop's file systems in Spark's JVM, which know the same addresses as Spark does.
"""

from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from tallygate.errors import TargetError
from tallygate.spark.error_text import reason


class Folder:
    """A folder and what is below it; every name is a path from there."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path, self._text = jvm.org.apache.hadoop.fs.Path, jvm.org.apache.commons.io.IOUtils
        session: Any = spark._jsparkSession
        given = self._path(path)
        self._files = given.getFileSystem(session.sessionState().newHadoopConf())
        self.path = path

    @property
    def address(self) -> str:
        """The path with its file system: two ways to write one path give one address."""
        return str(self._files.makeQualified(self._path(self.path)).toString())

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine, or on one that is mounted like one."""
        return bool(self._files.getUri().getScheme() == "file")

    @property
    def local_path(self) -> Path:
        """Where it is on this machine, if it `is_local`."""
        return Path(str(self._files.makeQualified(self._path(self.path)).toUri().getPath()))

    def has(self, name: str = "") -> bool:
        return bool(self._files.exists(self._at(name)))

    def names(self, folder: str = "") -> list[str]:
        """What is in a folder; nothing if it does not exist."""
        if not self.has(folder):
            return []
        return [str(each.getPath().getName()) for each in self._files.listStatus(self._at(folder))]

    def versions(self) -> list[tuple[str, int, int]]:
        """Every file below, with its size and the time of its last change."""
        seen, found = [], self._files.listFiles(self._at(""), True)
        while found.hasNext():
            each = found.next()
            seen.append((str(each.getPath()), each.getLen(), each.getModificationTime()))
        return sorted(seen)

    def read(self, name: str) -> str | None:
        """The text of a file, if it is there."""
        if not self.has(name):
            return None
        stream = self._files.open(self._at(name))
        try:
            return str(self._text.toString(stream, "UTF-8"))
        except Py4JJavaError as error:
            raise TargetError(f"{self.at(name)} cannot be read: {reason(error)}.") from error
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        stream = self._files.create(self._at(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def replace(self, name: str, text: str) -> None:
        """Write a file, whole or not at all."""
        partial = f"{name}.partial"
        self.write(partial, text)
        self.remove(name)  # a crash here leaves the partial one, which is whole
        self._files.rename(self._at(partial), self._at(name))

    def remove(self, name: str) -> None:
        self._files.delete(self._at(name), True)

    def rename(self, path: str) -> bool:
        """Move the folder; False if that cannot be, as where something is there already."""
        if not self._files.rename(self._path(self.path), self._path(path)):
            return False
        self.path = path
        return True

    def at(self, name: str) -> str:
        """The path of what is in the folder."""
        return f"{self.path}/{name}" if name else self.path

    def _at(self, name: str) -> Any:
        return self._path(self.at(name))
