"""Records of a TFDS set by number, without reading those before them, from TFRecord and from ArrayRecord files.

A TFRecord file is a row of records, each behind a header with its length: one pass over the headers finds where each
begins. ArrayRecord files have such an index of their own. Labels are found in one pass over the records, in which
checksums are verified too. Both are remembered below $XDG_CACHE_HOME/tftrain (default ~/.cache), under a name made of
the files' sizes and times of change.
"""

import dataclasses
import hashlib
import os
import struct
import tempfile
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tftrain import console, paths

_LABELS_AT_ONCE = 1024
# Length and its checksum before a record, the record's checksum behind it.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_VERSION = 1


class RecordError(ValueError):
    """Why records cannot be read; the text names the file."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Consecutive records of one file: `take` of them after `skip`."""

    path: str
    skip: int
    take: int


class Records(Sequence):
    """The records of some parts of files, in their order; safe to read from several threads.

    Args:
      parts: of files of one format.
      array_record: whether that is ArrayRecord; else it is TFRecord.

    Raises:
      RecordError: a file is not there, or not of the format.
    """

    def __init__(self, parts: Sequence[Part], array_record: bool):
        self._parts = list(parts)
        self._array_record = array_record
        self._ends = np.cumsum([part.take for part in parts])
        self._files = {}
        files = list(dict.fromkeys(part.path for part in parts))
        try:
            self._stamp = [(os.path.realpath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in files]
            for path in files:
                self._files[path] = _array_record_reader(path) if array_record else os.open(path, os.O_RDONLY)
        except OSError as error:
            raise RecordError(f"{error.filename}: {error.strerror}") from None
        self._starts = {} if array_record else self._remembered("starts", self._find_starts)
        for part in parts:
            found = self._files[part.path].num_records() if array_record else len(self._starts[part.path])
            if part.skip + part.take > found:
                raise RecordError(f"{part.path}: has {found:,} records; {part.skip + part.take:,} are due")

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, row: int) -> bytes:
        """A record's bytes. Of a TFRecord file, checksums are verified by `labels`, once, and not here.

        Raises:
          RecordError: the file has changed.
        """
        number = int(np.searchsorted(self._ends, row, side="right"))
        part = self._parts[number]
        place = part.skip + row - (int(self._ends[number]) - part.take)
        file = self._files[part.path]
        try:
            if self._array_record:
                return file.read([place])[0]
            begin = int(self._starts[part.path][place])
            (length,) = struct.unpack("<Q", os.pread(file, 8, begin))
            data = os.pread(file, length, begin + _HEADER_BYTES)
        except Exception as error:  # ArrayRecord's reader raises whatever it likes
            raise RecordError(f"{part.path}, record {place}: {error}") from None
        if len(data) != length:
            raise RecordError(f"{part.path}, record {place}: breaks off")
        return data

    def labels(self, column: str) -> np.ndarray:
        """The integer in a column of each record, int64 [count].

        Raises:
          RecordError: a record is damaged, or has no such column.
        """
        rows = [dataclasses.astuple(part) for part in self._parts]
        return self._remembered(f"{column} {rows}", lambda: {column: self._find_labels(column)})[column]

    def _find_labels(self, column: str) -> np.ndarray:
        found = []
        progress = console.Progress("reading labels", len(self), "records")
        try:
            for part in self._parts:
                for records in self._batches(part):
                    parsed = tf.io.parse_example(records, {column: tf.io.FixedLenFeature([], tf.int64)})
                    found.append(parsed[column].numpy())
                    progress.update(sum(map(len, found)))
        except tf.errors.OpError as error:
            raise RecordError(f"{part.path}: {' '.join(error.message.split())}") from None
        finally:
            progress.close()
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _batches(self, part: Part):
        """A part's records in tensors of strings."""
        if self._array_record:
            for begin in range(part.skip, part.skip + part.take, _LABELS_AT_ONCE):
                end = min(begin + _LABELS_AT_ONCE, part.skip + part.take)
                try:
                    yield tf.constant(self._files[part.path].read(begin, end), tf.string)
                except Exception as error:  # as above
                    raise RecordError(f"{part.path}: {error}") from None
        else:
            yield from tf.data.TFRecordDataset(part.path).skip(part.skip).take(part.take).batch(_LABELS_AT_ONCE)

    def _find_starts(self) -> dict[str, np.ndarray]:
        return {path: _starts(path, file) for path, file in self._files.items()}

    def _remembered(self, what: str, find) -> dict[str, np.ndarray]:
        """What `find` returns, arrays by name, or what it returned for the same files before."""
        digest = hashlib.sha256(repr((_VERSION, what, self._stamp)).encode()).hexdigest()[:32]
        memory = paths.cache("records") / f"{digest}.npz"
        try:
            with np.load(memory, allow_pickle=False) as kept:
                names = [str(name) for name in kept["names"]]
                return {name: kept[str(number)] for number, name in enumerate(names)}
        except Exception:  # absent or damaged: a file that anyone could have written
            found = find()
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=memory.parent, delete=False) as temporary:
                arrays = {str(number): array for number, array in enumerate(found.values())}
                np.savez(temporary, names=np.array(list(found)), **arrays)
            os.replace(temporary.name, memory)
        except OSError:  # the next run looks again
            pass
        return found


def _size_and_time(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _starts(path: str, file: int) -> np.ndarray:
    """Where each record of a TFRecord file begins, int64 [count]."""
    size, begin, found = os.fstat(file).st_size, 0, []
    while begin < size:
        header = os.pread(file, _HEADER_BYTES, begin)
        end = (
            begin + _HEADER_BYTES + (struct.unpack("<Q", header[:8])[0] if len(header) == 12 else size) + _FOOTER_BYTES
        )
        if end > size:
            raise RecordError(f"{path}: breaks off in record {len(found)}")
        found.append(begin)
        begin = end
    return np.array(found, np.int64)


def _array_record_reader(path: str):
    from array_record.python import array_record_module

    try:
        # Without options it reads ahead, and holds megabytes for each record that is read by number.
        return array_record_module.ArrayRecordReader(path, "readahead_buffer_size:0")
    except Exception as error:  # as above
        raise RecordError(f"{path}: {' '.join(str(error).split())}") from None
