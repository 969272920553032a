"""Decoded images kept in memory or on disk, so that each is decoded once; what is kept changes no value."""

import dataclasses
import os
import tempfile
import threading

import numpy as np
import psutil

from tftrain.errors import UserError

# --cache=auto keeps images in memory where all of them take less than this share of what is free; --cache=memory keeps
# as many as fit into that other one.
AUTO_SHARE = 0.25
MOST_SHARE = 0.8


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where images are kept: `kind` is "none", "memory" or "disk", `limit` the most bytes; `text` is for the banner."""

    kind: str
    limit: int
    text: str


def plan(choice: str, estimate: int | None, free: int | None = None) -> Plan:
    """Decide where images are kept.

    Args:
      choice: "auto", "none", "memory" or "disk".
      estimate: bytes of all images as they are kept; None: not known beforehand.
      free: bytes of memory that are free; None: what the system says.

    Raises:
      UserError: "disk", and they do not fit there.
    """
    free = psutil.virtual_memory().available if free is None else free
    shown = "an unknown size" if estimate is None else size(estimate)
    if choice == "auto":
        bound = f"{AUTO_SHARE:.0%} of {size(free)} free"
        if estimate is not None and estimate <= AUTO_SHARE * free:
            return Plan("memory", estimate, f"in memory, {shown} (auto: below {bound})")
        return Plan("none", 0, f"none, for {shown} (auto: memory only below {bound})")
    if choice == "memory":
        limit = int(MOST_SHARE * free) if estimate is None else min(estimate, int(MOST_SHARE * free))
        return Plan("memory", limit, f"in memory, {shown}, at most {size(limit)}; what is beyond is decoded each time")
    if choice == "disk":
        status = os.statvfs(tempfile.gettempdir())
        room = status.f_bavail * status.f_frsize
        if estimate is not None and estimate > room:
            raise UserError(
                f"--cache=disk: {shown} are needed, and {tempfile.gettempdir()} has {size(room)}; "
                "set TMPDIR to another folder, or give --cache=none"
            )
        return Plan("disk", room, f"on disk, {shown}, in {tempfile.gettempdir()} while the run lasts")
    return Plan("none", 0, "none")


def size(count: int) -> str:
    """Bytes as a person reads them."""
    for unit, bytes_each in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= bytes_each:
            return f"{count / bytes_each:.1f} {unit}"
    return f"{count} bytes"


class Cache:
    """uint8 arrays by row number, up to a limit of bytes; safe to use from several threads.

    On disk they are in a file that has no name, so that it goes with the process, however that ends. It is written
    and read by calls, not mapped: a full disk is then an error to handle, and no memory is held.

    Attributes:
      full_disk: why nothing more is kept on disk; None while that goes well.
    """

    def __init__(self, kind: str, limit: int):
        self._limit, self._used = limit, 0
        self._lock = threading.Lock()
        self._arrays: dict[int, np.ndarray] = {}
        self._places: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._file = tempfile.TemporaryFile() if kind == "disk" else None
        self.full_disk: str | None = None

    def get(self, row: int) -> np.ndarray | None:
        """What `put` was given for this row, if it was kept."""
        if self._file is None:
            return self._arrays.get(row)
        if (place := self._places.get(row)) is None:
            return None
        offset, shape = place
        array = np.empty(shape, np.uint8)
        return array if os.preadv(self._file.fileno(), [array], offset) == array.nbytes else None

    def put(self, row: int, array: np.ndarray) -> None:
        """Keep an array if there is room for it."""
        with self._lock:
            if row in self._arrays or row in self._places or self._used + array.nbytes > self._limit:
                return
            offset = self._used
            self._used += array.nbytes
            if self._file is None:
                self._arrays[row] = array
        if self._file is not None:
            try:
                if os.pwrite(self._file.fileno(), np.ascontiguousarray(array), offset) == array.nbytes:
                    self._places[row] = offset, array.shape
            except OSError as error:
                self.full_disk, self._limit = error.strerror, 0
