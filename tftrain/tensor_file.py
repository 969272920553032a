"""Arrays in a file of the safetensors format: a length, a JSON header, and plain numbers.

The format is https://huggingface.co/docs/safetensors. The library's own writer cannot take a checksum on the way, and
its NumPy reader has no bfloat16.
"""

import hashlib
import json
import math
import os
import pathlib
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from tftrain import durable

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# The library's limit too.
MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 32
MAX_ITEMS = 1 << 58  # an empty array, too, has a shape
_CHUNK_BYTES = 1 << 24


class Damaged(ValueError):
    """What a file holds is not what was written; the text says how it shows."""


def write(file, arrays: Mapping[str, np.ndarray]) -> str:
    """Write arrays to an open file; their SHA-256, of all bytes of the file, is returned."""
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    # The widest first, so that each array's start is a multiple of its item's size.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header, offset = {}, 0
    for name in names:
        array = arrays[name]
        kind, end = _NAMES[array.dtype.newbyteorder("<")], offset + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()

    def put(content) -> None:
        digest.update(content)
        file.write(content)

    put(len(text).to_bytes(8, "little") + text)
    for name in names:
        dtype = DTYPES[header[name]["dtype"]]
        content = memoryview(np.ascontiguousarray(arrays[name], dtype).reshape(-1).view(np.uint8))
        for start in range(0, len(content), _CHUNK_BYTES):
            put(content[start : start + _CHUNK_BYTES])
    return digest.hexdigest()


def sha256(path: pathlib.Path) -> str:
    """The SHA-256 of a file's bytes.

    Raises:
      OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with durable.reading(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def read(path: pathlib.Path, like: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a file by name. No more memory is taken than the file has bytes.

    Args:
      like: what is to be read: by name, anything with a shape and a NumPy dtype; left out: all that is there.

    Raises:
      Damaged: the file is not of the format, or an array of `like` is missing or of another shape or dtype.
      OSError: it cannot be read.
    """
    with durable.reading(path) as file:
        found, start = _read_header(file)
        if like is not None:
            for name, expected in like.items():
                wanted = np.dtype(expected.dtype), tuple(expected.shape)
                if name not in found:
                    raise Damaged(f"has no {name}")
                if found[name][:2] != wanted:
                    raise Damaged(f"{name} is {_describe(*found[name][:2])}; expected {_describe(*wanted)}")
            found = {name: found[name] for name in like}
        arrays = {}
        for name, (dtype, shape, offset) in found.items():
            array = np.empty(math.prod(shape), dtype)
            file.seek(start + offset)
            if file.readinto(memoryview(array.view(np.uint8))) != array.nbytes:
                raise Damaged("is truncated")
            arrays[name] = array.reshape(shape)
    return arrays


def _read_header(file) -> tuple[dict[str, tuple[np.dtype, tuple[int, ...], int]], int]:
    """Each array's dtype, shape and offset by name, and where the first array starts; all of it checked."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise Damaged("is no whole safetensors file")
    try:
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found, end = {}, 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (first, last) = DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
            if not all(type(number) is int and number >= 0 for number in (*shape, first, last)):
                raise Damaged(f"{name} has no possible shape or place")
            if len(shape) > MAX_DIMENSIONS or math.prod(max(1, number) for number in shape) > MAX_ITEMS:
                raise Damaged(f"{name} has a shape that no array can have")
            if first != end or last - first != math.prod(shape) * dtype.itemsize:
                raise Damaged(f"{name} does not take the place that it is given")
            found[name], end = (dtype, shape, first), last
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise error if isinstance(error, Damaged) else Damaged("has a header that is not safetensors'") from None
    if 8 + length + end != size:
        raise Damaged(f"has {size:,} bytes where its header names {8 + length + end:,}")
    return found, 8 + length


def _describe(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    return f"{dtype.name} {list(shape)}"
