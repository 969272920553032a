import gzip
import struct

import numpy as np
import pytest

from tftrain.data import fashion_mnist
from tftrain.errors import UserError

COUNTS = {"train": 6, "test": 4}


def write_idx(file, values: np.ndarray) -> None:
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    file.write_bytes(gzip.compress(header + values.tobytes()))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The package's four files, with fewer images."""
    monkeypatch.setattr(fashion_mnist, "_COUNTS", COUNTS)
    generator = np.random.default_rng(0)
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = generator.integers(0, 256, (COUNTS[split], 28, 28), dtype=np.uint8)
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte.gz", np.arange(COUNTS[split], dtype=np.uint8))
    return tmp_path


def test_the_files_are_read_byte_for_byte(folder):
    generator = np.random.default_rng(0)
    assert fashion_mnist.installed(folder)
    for split in ("train", "test"):
        found = fashion_mnist.read(split, folder)
        expected = generator.integers(0, 256, (COUNTS[split], 28, 28), dtype=np.uint8)
        np.testing.assert_array_equal(found.images, expected[..., np.newaxis])
        np.testing.assert_array_equal(found.array(2), expected[2][..., np.newaxis])
        assert found.labels.tolist() == list(range(COUNTS[split])) and found.labels.dtype == np.int32


def test_a_lacking_file_is_no_installation(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    assert not fashion_mnist.installed(folder)


def cut(file):
    file.write_bytes(file.read_bytes()[:-20])


def damage(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(data)


def plain(file):
    file.write_bytes(b"no gzip")


def of_floats(file):
    data = bytearray(gzip.decompress(file.read_bytes()))
    data[2] = 0x0D
    file.write_bytes(gzip.compress(data))


def longer(file):
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) + b"\0"))


def of_another_size(file):
    write_idx(file, np.zeros((6, 27, 28), np.uint8))


@pytest.mark.parametrize("change", [cut, damage, plain, of_floats, longer, of_another_size])
def test_a_damaged_file_is_refused_by_name(folder, change):
    file = folder / "train-images-idx3-ubyte.gz"
    change(file)
    with pytest.raises(UserError, match=f"{file}: .*; install Debian's package dataset-fashion-mnist again"):
        fashion_mnist.read("train", folder)


def test_a_label_that_is_no_class_is_refused(folder):
    write_idx(folder / "train-labels-idx1-ubyte.gz", np.full(6, 10, np.uint8))
    with pytest.raises(UserError, match="label 10 in it"):
        fashion_mnist.read("train", folder)


@pytest.mark.skipif(not fashion_mnist.installed(), reason="needs Debian's package dataset-fashion-mnist")
def test_the_package_has_each_class_equally_often():
    for split, count in (("train", 6000), ("test", 1000)):
        assert np.bincount(fashion_mnist.read(split).labels).tolist() == [count] * 10
