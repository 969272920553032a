"""Fashion-MNIST whole, from the IDX files that Debian's package dataset-fashion-mnist installs.

Xiao, Rasul and Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms", 2017:
60,000 training and 10,000 test images of 28x28 in ten classes. IDX is the format of MNIST's own files: a number whose
third byte is the type (8: uint8) and whose fourth the number of dimensions, then the dimensions, all of them
big-endian and of 32 bits, then the values.
"""

import dataclasses
import gzip
import math
import pathlib
import zlib

import numpy as np

from tftrain.errors import UserError

NAME = "fashion_mnist"
PACKAGE = "dataset-fashion-mnist"
FOLDER = pathlib.Path("/usr/share/datasets/fashion-mnist")
LABEL_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_PREFIXES = {"train": "train", "test": "t10k"}
_COUNTS = {"train": 60_000, "test": 10_000}
_SIDE = 28
_UINT8 = 8


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Images:
    """An image source of one split.

    Attributes:
      images: uint8 [count, 28, 28, 1].
      labels: int32 [count].
    """

    images: np.ndarray
    labels: np.ndarray

    def array(self, row: int) -> np.ndarray:
        """uint8 [28, 28, 1]."""
        return self.images[row]

    def name(self, row: int) -> str:
        """What messages call the image."""
        return f"{NAME}, image {row}"


def installed(folder: pathlib.Path = FOLDER) -> bool:
    """Whether the package's files are there."""
    return all(_file(folder, split, kind).is_file() for split in _PREFIXES for kind in ("images-idx3", "labels-idx1"))


def read(split: str, folder: pathlib.Path = FOLDER) -> Images:
    """Read a split, "train" or "test".

    Raises:
      UserError: a file is damaged, or is not Fashion-MNIST's.
    """
    count = _COUNTS[split]
    images = _read_idx(_file(folder, split, "images-idx3"), (count, _SIDE, _SIDE))
    file = _file(folder, split, "labels-idx1")
    labels = _read_idx(file, (count,))
    if labels.max() >= len(LABEL_NAMES):
        raise UserError(f"{file}: label {labels.max()} in it; {NAME} has 0 to {len(LABEL_NAMES) - 1}")
    return Images(images[..., np.newaxis], labels.astype(np.int32))


def _file(folder: pathlib.Path, split: str, kind: str) -> pathlib.Path:
    return folder / f"{_PREFIXES[split]}-{kind}-ubyte.gz"


def _read_idx(file: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray:
    """The values of an IDX file of uint8 that should have this shape."""
    try:
        with gzip.open(file, "rb") as opened:
            # One byte more than is due, so that more than that is noticed and never unpacked.
            data = opened.read(4 + 4 * len(shape) + math.prod(shape) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{file}: cannot be read ({error}); install Debian's package {PACKAGE} again") from None
    header = np.array([_UINT8 << 8 | len(shape), *shape], ">u4").tobytes()
    if data[: len(header)] != header or len(data) != len(header) + math.prod(shape):
        shown = "x".join(map(str, shape))
        raise UserError(f"{file}: not an IDX file of {shown} bytes; install Debian's package {PACKAGE} again")
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape)
