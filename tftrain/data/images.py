"""Images as examples: read by row number, brought to one size, and changed at random for training.

An image source has `labels` (int32 [count]), `name(row)` (what messages call an image) and either `read(row)` (the
bytes of an encoded file) or `array(row)` (uint8 [height, width, channels]). What is known of its images beforehand
stands in `images` (uint8 [count, height, width, channels], all of them) or `facts` (int32 [n, 3]: width, height and
channels of each, or of a sample). `take(rows)` is a source of these rows alone.
"""

import concurrent.futures
import dataclasses
import functools
import os
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tftrain import console
from tftrain.configuration import Augmentation
from tftrain.data import decoding, image_cache, sets
from tftrain.data.augmentation import Augmenter
from tftrain.errors import UserError

# A TFDS split of images of one shape is decoded into one array up to so many bytes.
IN_MEMORY = 2**30


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Arrays:
    """An image source in memory.

    Attributes:
      images: uint8 [count, height, width, channels].
      labels: int32 [count].
      place: where they come from, for messages.
    """

    images: np.ndarray
    labels: np.ndarray
    place: str = "image"

    def array(self, row: int) -> np.ndarray:
        """uint8 [height, width, channels]."""
        return self.images[row]

    def name(self, row: int) -> str:
        """What messages call the image."""
        return f"{self.place}, row {row}"

    def take(self, rows: np.ndarray) -> "Arrays":
        """These rows alone."""
        return Arrays(self.images[rows], self.labels[rows], self.place)


class ImageExamples:
    """The images of a source, all of one size; see `batching.Examples`.

    Where they are in memory and have that size already, a batch is gathered from them. Else each is decoded, resized
    and cropped on its own, in as many threads as there are cores, while the devices compute.

    Args:
      source: the images.
      size: height and width in pixels; None: the images' own, which has to be the same for all.
      channels: 1 for grey, 3 for RGB; None: the images' own.
      augmentation: the changes in training.
      cache: where decoded images are kept; None: nowhere.
    """

    lengths = None

    def __init__(
        self,
        source,
        size: tuple[int, int] | None = None,
        channels: int | None = None,
        augmentation: Augmentation | None = None,
        cache: image_cache.Plan | None = None,
    ):
        own = own_shape(source)
        if own is None and (size is None or channels is None):
            raise ValueError("images of several shapes need a size and channels")
        self.source = source
        self.shape = (*(size or own[:2]), channels or own[2])
        self.augmenter = Augmenter(augmentation or Augmentation())
        kept = cache is not None and cache.kind != "none"
        self._cache = image_cache.Cache(cache.kind, cache.limit) if kept else None
        self._failure: str | None = None
        self._lock = threading.Lock()
        self._whole = None
        if is_whole(source, self.shape, self.augmenter):
            with tf.device("CPU"):
                self._whole = tf.constant(source.images)

    @property
    def labels(self) -> np.ndarray:
        """int32 [count]."""
        return self.source.labels

    def inputs(self, rows: tf.Tensor, length=None, draw: Callable | None = None) -> tf.Tensor:
        """uint8 [batch, height, width, channels]; see `batching.Examples`."""
        del length
        words = None if draw is None or not self.augmenter.words else draw(self.augmenter.words)
        if self._whole is not None:
            found = tf.gather(self._whole, rows)
        else:
            fitting = words is not None and self.augmenter.fits
            given = words if fitting else tf.zeros([tf.shape(rows)[0], 0], tf.uint32)
            load = functools.partial(self._load, fitting)
            found = tf.ensure_shape(tf.numpy_function(load, [rows, given], tf.uint8), [*rows.shape, *self.shape])
        return found if words is None else self.augmenter.move(found, words)

    def check(self) -> None:
        """Tell what went wrong in the threads that read: to be called between executions.

        Raises:
          UserError: an image could not be read; black stands in its place in a batch that may have been used already.
        """
        if self._failure is not None:
            raise UserError(self._failure)
        if self._cache is not None and self._cache.full_disk is not None:
            console.say(f"note         --cache=disk: {self._cache.full_disk}; going on without what does not fit")
            self._cache.full_disk = None

    def _load(self, fitting: bool, rows: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The images of some rows, from an op of TensorFlow, where an exception would print a traceback and no more."""
        images = np.zeros([len(rows), *self.shape], np.uint8)

        def one(place: int) -> None:
            try:
                images[place] = self._image(int(rows[place]), words[place] if fitting else None)
            except Exception as error:  # whatever it is: `check` tells it
                with self._lock:
                    if self._failure is None:
                        self._failure = f"{self.source.name(int(rows[place]))}: {_reason(error)}"

        list(_threads().map(one, range(len(rows))))
        return images

    def _image(self, row: int, words: np.ndarray | None) -> np.ndarray:
        """One image in its size; with `words`, changed by `Augmenter.fit`."""
        whole = self.augmenter.options.random_crop  # the part is cut from the whole image, so that is what is kept
        image = self._cache.get(row) if self._cache is not None else None
        if image is None:
            image = self._decode(row)
            if not whole:
                image = self._square(image)
            if self._cache is not None:
                image = decoding.to_array(image)
                self._cache.put(row, image)
        if words is not None:
            return self.augmenter.fit(image, self.shape[:2], words)
        return self._square(image) if whole else decoding.to_array(image)

    def _decode(self, row: int):
        if hasattr(self.source, "read"):
            return decoding.load(self.source.read(row), self.shape[2])
        array = self.source.array(row)
        if array.shape[2] != self.shape[2]:
            image = decoding.to_image(array)
            return image.convert("L" if self.shape[2] == 1 else "RGB")
        return array

    def _square(self, image) -> np.ndarray:
        return decoding.resize_and_crop(image, self.shape[:2])


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    """Shared by all examples: one thread a core, since Pillow computes without Python's lock."""
    return concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)), "images")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    return " ".join(str(error).split()) or type(error).__name__


def own_shape(source) -> tuple[int, int, int] | None:
    """Height, width and channels of all images of a source; None where they differ."""
    images = getattr(source, "images", None)
    if images is not None:
        return images.shape[1:]
    facts = source.facts
    width, height = facts[0, :2]
    same = (facts[:, :2] == (width, height)).all()
    return (int(height), int(width), int(facts[:, 2].max())) if same else None


def is_whole(source, shape: tuple[int, ...], augmenter: Augmenter) -> bool:
    """Whether a source's images can be gathered as they are."""
    images = getattr(source, "images", None)
    return images is not None and tuple(images.shape[1:]) == tuple(shape) and not augmenter.fits


def kept_bytes(source, shape: tuple[int, ...], augmentation: Augmentation) -> int:
    """What a cache of all images of a source would take."""
    if augmentation.random_crop and hasattr(source, "facts"):
        pixels = source.facts[:, :2].astype(np.int64).prod(axis=1).mean()
        return int(pixels * len(source.labels)) * shape[2]
    return len(source.labels) * int(np.prod(shape))


def read(data: sets.TfdsSet, split: str):
    """The images of a split of a TFDS set: an array, where all have one shape and take at most IN_MEMORY bytes.

    Raises:
      UserError: as `TfdsSet.images`, or one cannot be decoded.
    """
    source = data.images(split)
    if None in source.shape or len(source.labels) * int(np.prod(source.shape)) > IN_MEMORY:
        return source
    channels = 1 if source.shape[2] == 1 else 3

    def decoded(row: int) -> np.ndarray:
        try:
            return decoding.decode(source.read(row), channels)
        except ValueError as error:
            raise UserError(f"{source.name(row)}: {error}") from None

    return Arrays(np.stack([*_threads().map(decoded, range(len(source.labels)))]), source.labels, source.place)
