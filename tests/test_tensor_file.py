import hashlib
import io
import json
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tftrain import tensor_file
from tftrain.tensor_file import Damaged

ARRAYS = {
    "float32": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a scalar": np.array(3, np.int64),
    "a NumPy number": np.float32(0.1),
    "uint64": np.array([2**64 - 1, 0], np.uint64),
    "bool": np.array([[True], [False]]),
    "float16": np.array([1.5, np.inf], np.float16),
    "empty": np.empty((0, 5), np.float64),
    "é/日": np.array([-1], np.int8),
    "int32, transposed": np.arange(6, dtype=np.int32).reshape(2, 3).T,
    "every second": np.arange(10, dtype=np.uint8)[::2],
    "nan": np.array([np.nan, -0.0], np.float32),
}
BFLOAT16 = {"bfloat16": np.array([[1.0, -2.5], [3e38, 0]], ml_dtypes.bfloat16)}


def write(path, arrays) -> str:
    with open(path, "wb") as file:
        return tensor_file.write(file, arrays)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == np.ascontiguousarray(array).tobytes()


def test_arrays_come_back_bit_for_bit(tmp_path):
    digest = write(tmp_path / "a", ARRAYS | BFLOAT16)
    assert digest == hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest() == tensor_file.sha256(tmp_path / "a")
    found = tensor_file.read(tmp_path / "a")
    assert_same(found, ARRAYS | BFLOAT16)
    found["float32"][0, 0] = 5  # they are the caller's


def test_large_arrays_are_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_file, "_CHUNK_BYTES", 7)
    digest = write(tmp_path / "a", ARRAYS)
    assert_same(tensor_file.read(tmp_path / "a"), ARRAYS)
    assert tensor_file.sha256(tmp_path / "a") == digest


def test_the_safetensors_library_reads_what_is_written(tmp_path):
    write(tmp_path / "a", ARRAYS)
    assert_same(safetensors.numpy.load_file(tmp_path / "a"), ARRAYS)


def test_what_the_safetensors_library_writes_is_read(tmp_path):
    arrays = {name: np.array(array, order="C") for name, array in ARRAYS.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "a", metadata={"format": "np"})
    assert_same(tensor_file.read(tmp_path / "a"), arrays)


def test_other_byte_orders_are_turned(tmp_path):
    write(tmp_path / "a", {"a": np.array([1, 2], ">i4")})
    assert tensor_file.read(tmp_path / "a")["a"].tolist() == [1, 2]


def test_what_the_format_has_not_is_refused():
    for array in (np.array(["a"]), np.array([None]), np.array([1j])):
        with pytest.raises(KeyError):
            tensor_file.write(io.BytesIO(), {"a": array})


def test_nothing_in_a_file_is_believed(tmp_path):
    """Each header claims what the 8 bytes after it cannot be."""
    whole = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for header in (
        {"a": whole | {"shape": [2**40]}},
        {"a": whole | {"data_offsets": [0, 2**40], "shape": [2**38]}},
        {"a": whole | {"shape": [-2]}},
        {"a": whole | {"shape": [2.0]}},
        {"a": whole | {"shape": [True, 2]}},
        {"a": whole | {"shape": "2"}},
        {"a": whole | {"dtype": "object"}},
        {"a": whole | {"dtype": ["F32"]}},
        {"a": whole | {"data_offsets": [8, 0]}},
        {"a": whole | {"data_offsets": [0]}},
        {"a": whole | {"data_offsets": [-8, 0]}},
        {"a": whole, "b": whole},
        {"a": whole, "b": whole | {"data_offsets": [0, 0], "shape": [0, 2**62, 2**62]}},
        {"a": whole, "b": whole | {"data_offsets": [0, 0], "shape": [0] * 100}},
        {"a": whole | {"data_offsets": [0, 4], "shape": [1]}},
        {"a": None},
        {},
        ["a"],
        None,
    ):
        text = json.dumps(header).encode()
        (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
        tracemalloc.start()
        with pytest.raises(Damaged):
            tensor_file.read(tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()


@pytest.mark.parametrize(
    "content", [b"", b"1234567", b"\xff" * 8, b"\xff" * 100, bytes(8), (2).to_bytes(8, "little") + b"\xff\xfe"]
)
def test_other_files_are_told(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(Damaged):
        tensor_file.read(tmp_path / "a")


def test_a_header_of_many_brackets_is_no_safetensors_file(tmp_path):
    text = b"[" * 100_000
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(Damaged):
        tensor_file.read(tmp_path / "a")
