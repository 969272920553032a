"""From what a person names to images with labels, and the size at which a network sees them."""

import dataclasses
import pathlib

import numpy as np

from tftrain import paths
from tftrain.configuration import Augmentation, DataSource
from tftrain.data import fashion_mnist, image_cache, image_folders, labels, sets
from tftrain.errors import UserError

# The side of the network's squares where images have sizes of their own, unless they are smaller.
DEFAULT_SIZE = 128
# Images that all have one size are taken as they are up to this side; a network for larger ones would be slow.
LARGEST_OWN = 256
CHANNELS = ("auto", "1", "3")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ImageData:
    """Images to train and to test on.

    Attributes:
      train, test: image sources; see `images`.
      label_names: the classes in the order of their numbers.
      skipped: (path, reason) of each file that is left out.
      notes: lines for the banner, as (name, text).
    """

    train: object
    test: object
    label_names: list[str]
    skipped: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    notes: tuple[tuple[str, str], ...] = ()


def find(source: DataSource, seed: int, bad_files: str) -> ImageData | sets.Found:
    """Read the images of class folders or IDX files, or find a TFDS set for `read_set`.

    TensorFlow is not needed for it.

    Raises:
      UserError: it is not there, or is no image set.
    """
    if source.train_data is None:
        if source.dataset == fashion_mnist.NAME and not pathlib.Path(source.dataset).exists():
            return _fashion_mnist(source)
        folder = None if source.dataset in sets.IMAGES else paths.given("dataset", source.dataset)
        of_tfds = folder is None or not folder.is_dir() or (folder / "dataset_info.json").is_file()
        if of_tfds or any(folder.glob("*/dataset_info.json")):
            return sets.find(source, sets.IMAGES)
    found = image_folders.read(source, seed, bad_files)
    return ImageData(found.train, found.test, found.label_names, found.skipped, found.notes)


def _fashion_mnist(source: DataSource) -> ImageData | sets.Found:
    if fashion_mnist.installed():
        for name in ("train_split", "test_split", "hold_out"):
            if getattr(source, name) is not None:
                raise UserError(f"--{name}={getattr(source, name)}: the IDX files of {source.dataset} have none")
        parts = (fashion_mnist.read("train"), fashion_mnist.read("test"))
        return ImageData(*parts, list(fashion_mnist.LABEL_NAMES), notes=(("files", str(fashion_mnist.FOLDER)),))
    raise UserError(
        f"--dataset={source.dataset}: its files are not in {fashion_mnist.FOLDER}; "
        f"run `apt-get install {fashion_mnist.PACKAGE}` (Debian), or give the folder of a prepared TFDS set"
    )


def read_set(found: sets.Found, source: DataSource, seed: int) -> ImageData:
    """Read a TFDS set.

    Args:
      seed: of the images that are held out, where the set has no test part.

    Raises:
      UserError: it cannot be read, or is no image set.
    """
    from tftrain.data import images

    data = sets.TfdsSet(found, source)
    train = images.read(data, data.train_split)
    if data.test_split is not None:
        return ImageData(train, images.read(data, data.test_split), data.label_names, notes=(data.note,))
    share = image_folders.HOLD_OUT if source.hold_out is None else source.hold_out
    train_rows, test_rows = labels.hold_out(train.labels, share, seed)
    note = ("test data", f"{len(test_rows):,} of {len(train.labels):,} images, held out (--hold_out, --seed)")
    return ImageData(train.take(train_rows), train.take(test_rows), data.label_names, notes=(data.note, note))


def choose_shape(data: ImageData, image_size: int | None, channels: str) -> tuple[tuple[int, int, int], str]:
    """The shape at which the network sees the images.

    Args:
      data: the images.
      image_size: the side of a square; None: the images' own size, where all have one up to LARGEST_OWN; else the
        median of their shorter sides, rounded up to a multiple of 8, and at most DEFAULT_SIZE.
      channels: one of CHANNELS; auto: 1 where all are grey, else 3.

    Returns:
      height, width and channels, and a line for the banner.
    """
    sizes = np.concatenate([_sizes(data.train), _sizes(data.test)])
    least, most = sizes.min(axis=0), sizes.max(axis=0)
    own = (least == most).all()
    if image_size is not None:
        height = width = image_size
    elif own and most.max() <= LARGEST_OWN:
        width, height = map(int, most)
    else:
        median = int(np.median(sizes.min(axis=1)))
        height = width = min(DEFAULT_SIZE, -(-median // 8) * 8)
    if channels == "auto":
        depth = max(_channels(data.train), _channels(data.test))
    else:
        depth = int(channels)
    text = f"{height}x{width}, {({1: 'grey', 3: 'RGB'}).get(depth, f'{depth} channels')}"
    if not own:
        text += f", from sides of {least.min():,} to {most.max():,} pixels (--image_size)"
    elif tuple(most) != (width, height):
        text += f", from {most[1]:,}x{most[0]:,} (--image_size)"
    return (height, width, depth), text


def _sizes(source) -> np.ndarray:
    """Width and height of each image, or of all in one row: int [count or 1, 2]."""
    array = getattr(source, "images", None)
    return source.facts[:, :2] if array is None else np.array([[array.shape[2], array.shape[1]]])


def _channels(source) -> int:
    """1 where all images are grey, else 3; arrays may have another number."""
    array = getattr(source, "images", None)
    return int(source.facts[:, 2].max() if array is None else array.shape[3])


def check_channels(source, shape, augmentation: Augmentation | None = None) -> None:
    """Refuse images that would have to be resized or changed, and are neither grey nor RGB.

    Raises:
      UserError: they have another number of channels.
    """
    from tftrain.data.augmentation import Augmenter
    from tftrain.data.images import is_whole

    if not is_whole(source, shape, Augmenter(augmentation or Augmentation())) and not {_channels(source), shape[2]} <= {
        1,
        3,
    }:
        raise UserError(
            f"{source.name(0)}: {_channels(source)} channels, and the network takes {shape[2]}; images of 1 or 3 can "
            "be resized or changed"
        )


def make_examples(data: ImageData, shape: tuple[int, int, int], augmentation: Augmentation, cache: str):
    """The training and the test examples, and a line for the banner about what is kept decoded.

    Args:
      data: the images.
      shape: height, width, channels.
      augmentation: of the training images.
      cache: one of configuration.CACHES.

    Raises:
      UserError: images have a number of channels that cannot be resized, or do not fit on the disk.
    """
    from tftrain.data.augmentation import Augmenter
    from tftrain.data.images import ImageExamples, is_whole, kept_bytes

    parts = [(data.train, augmentation), (data.test, Augmentation())]
    wholes = [is_whole(source, shape, Augmenter(options)) for source, options in parts]
    for source, options in parts:
        check_channels(source, shape, options)
    sizes = [0 if whole else kept_bytes(source, shape, options) for (source, options), whole in zip(parts, wholes)]
    if all(wholes):
        nbytes = sum(source.images.nbytes for source, _ in parts)
        note = f"not needed: all images are in memory, {image_cache.size(nbytes)}"
        return *(ImageExamples(source, shape[:2], shape[2], options) for source, options in parts), note
    plan = image_cache.plan(cache, sum(sizes))
    plans = [dataclasses.replace(plan, limit=plan.limit * size // sum(sizes)) for size in sizes]
    made = (ImageExamples(source, shape[:2], shape[2], options, own) for (source, options), own in zip(parts, plans))
    return *made, plan.text
