"""Images as examples."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tftrain.data import decoding, sets
from tftrain.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ImageExamples:
    """Images of one shape in memory.

    Attributes:
      images: uint8 [count, height, width, channels].
      labels: int32 [count].
      augment: takes the images of a batch and `draw`, returns images; for training.
    """

    images: np.ndarray
    labels: np.ndarray
    augment: Callable | None = None
    lengths = None

    def inputs(self, rows: tf.Tensor, length=None, draw: Callable | None = None) -> tf.Tensor:
        """uint8 [batch, height, width, channels]; see `batching.Examples`."""
        del length
        found = tf.gather(tf.constant(self.images), rows)
        return found if draw is None or self.augment is None else self.augment(found, draw)


def read(data: sets.TfdsSet, split: str) -> ImageExamples:
    """Read a split of a TFDS image set.

    Raises:
      UserError: as `TfdsSet.images`, or the images differ in shape.
    """
    source = data.images(split)
    channels = source.shape[2] or 3
    images = [decoding.decode(source.read(row), channels) for row in range(len(source.labels))]
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        shown = ", ".join("x".join(map(str, shape)) for shape in sorted(shapes)[:3])
        raise UserError(
            f"{data.place}: the images of split {split!r} have {len(shapes)} shapes ({shown}); one is needed"
        )
    return ImageExamples(np.stack(images), source.labels)


def flip(images: tf.Tensor, draw: Callable) -> tf.Tensor:
    """Mirror each image left to right with probability one half; an `augment` of `ImageExamples`.

    Args:
      images: [batch, height, width, channels].
      draw: gives random words.
    """
    chosen = tf.bitwise.bitwise_and(draw(4)[:, 0], 1) == 1
    return tf.where(chosen[:, tf.newaxis, tf.newaxis, tf.newaxis], images[:, :, ::-1], images)
