"""Images as examples."""

import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tftrain.data import sets
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


def read(folder: pathlib.Path, split: str) -> tuple[ImageExamples, list[str]]:
    """Read a split of a TFDS-format image set, and its label names.

    Raises:
      UserError: as `sets.read`, or the images differ in shape.
    """
    table, label_names = sets.read(folder, split, ("image", "label"))
    first = table["image"][0]
    if not isinstance(first, np.ndarray) or first.ndim != 3:
        found = f"of shape {first.shape}" if isinstance(first, np.ndarray) else f"a {type(first).__name__}"
        raise UserError(f"--dataset={folder}: its column 'image' is {found}; height x width x channels are needed")
    shapes = {image.shape for image in table["image"]}
    if len(shapes) != 1:
        shown = ", ".join("x".join(map(str, shape)) for shape in sorted(shapes)[:3])
        raise UserError(
            f"--dataset={folder}: the images of split {split!r} have {len(shapes)} shapes ({shown}); one is needed"
        )
    if table["image"][0].dtype != np.uint8:
        raise UserError(f"--dataset={folder}: images of {table['image'][0].dtype}; uint8 is needed")
    return ImageExamples(np.stack(table["image"]), np.array(table["label"], np.int32)), label_names


def flip(images: tf.Tensor, draw: Callable) -> tf.Tensor:
    """Mirror each image left to right with probability one half; an `augment` of `ImageExamples`.

    Args:
      images: [batch, height, width, channels].
      draw: gives random words.
    """
    chosen = tf.bitwise.bitwise_and(draw(4)[:, 0], 1) == 1
    return tf.where(chosen[:, tf.newaxis, tf.newaxis, tf.newaxis], images[:, :, ::-1], images)
