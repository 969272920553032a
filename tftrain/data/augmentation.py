"""Random changes of training images, as functions of the image and of random words alone.

An example's words come from `draw` (see `batching.Examples`): they are a function of (seed, epoch, example), so that
what an example becomes depends neither on the number of replicas nor on what was computed before.

Two functions, at the two places where it is cheapest. `fit` takes one image of any size, by Pillow, in the threads
that decode: random crop, RandAugment, colour jitter. `move` takes a batch of equal size inside the graph: shift, flip.
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from tftrain.configuration import Augmentation
from tftrain.data import decoding

# What each word of an example is for: the first that each purpose takes.
_FLIP, _SHIFT, _JITTER, _CROP, _RANDAUGMENT = 0, 1, 4, 8, 32
_CROP_TRIES = 10
_WORDS_PER_OPERATION = 2
# What comes in from outside where RandAugment turns, shears or moves.
_GREY = 128


@dataclasses.dataclass(frozen=True)
class Augmenter:
    """The changes that some options ask for."""

    options: Augmentation

    @property
    def words(self) -> int:
        """How many random words an example takes; 0 where nothing changes."""
        options = self.options
        if options.randaugment:
            return _RANDAUGMENT + _WORDS_PER_OPERATION * options.randaugment[0]
        if options.random_crop:
            return _RANDAUGMENT
        if options.colour_jitter or options.shift:
            return _CROP
        return 1 if options.flip else 0

    @property
    def fits(self) -> bool:
        """Whether `fit` does more than to resize."""
        return bool(self.options.random_crop or self.options.randaugment or self.options.colour_jitter)

    def fit(self, image: Image.Image | np.ndarray, size, words: np.ndarray) -> np.ndarray:
        """Make a network's input of an image.

        Args:
          image: uint8 [height, width, channels], or from `decoding.load`.
          size: in pixels, of a square, or height and width.
          words: uint32 [self.words].

        Returns:
          uint8 [height, width, channels].
        """
        image = decoding.to_image(image)
        if self.options.random_crop:
            box = random_box(*image.size, self.options.crop_scale, self.options.crop_ratio, words[_CROP:])
            square = decoding.crop_and_resize(image, box, size)
        else:
            square = decoding.resize_and_crop(image, size)
        if self.options.randaugment:
            square = randaugment(square, *self.options.randaugment, words[_RANDAUGMENT:])
        if self.options.colour_jitter:
            square = colour_jitter(square, self.options.colour_jitter, words[_JITTER:])
        return square

    def move(self, images: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        """Shift and mirror each image of a batch.

        Args:
          images: uint8 [batch, height, width, channels].
          words: uint32 [batch, self.words].
        """
        if self.options.shift:
            images = _shift(images, words[:, _SHIFT : _SHIFT + 2], self.options.shift)
        if self.options.flip:
            chosen = tf.bitwise.bitwise_and(words[:, _FLIP], 1) == 1
            images = tf.where(chosen[:, tf.newaxis, tf.newaxis, tf.newaxis], images[:, :, ::-1], images)
        return images


def _uniform(word) -> float:
    """A number in [0, 1)."""
    return int(word) / 2**32


def _below(word, count: int) -> int:
    """A whole number in [0, count)."""
    return int(word) * count >> 32


def _shift(images: tf.Tensor, words: tf.Tensor, most: int) -> tf.Tensor:
    """Move each image by up to `most` pixels down or up and right or left."""
    shape = images.shape
    padded = tf.pad(images, [[0, 0], [most, most], [most, most], [0, 0]])
    for axis in (1, 2):
        first = tf.bitwise.right_shift(tf.cast(words[:, axis - 1], tf.int64) * (2 * most + 1), 32)
        places = first[:, tf.newaxis] + tf.range(shape[axis], dtype=tf.int64)
        padded = tf.gather(padded, places, axis=axis, batch_dims=1)
    return tf.ensure_shape(padded, shape)


def random_box(width: int, height: int, scale, ratio, words: np.ndarray) -> tuple[int, int, int, int]:
    """A part of an image of random area, shape and place (Szegedy et al., "Going deeper with convolutions", 2015).

    The area is uniform in scale, the logarithm of width over height in that of ratio. Of ten draws the first that fits
    into the image is taken; where none does, the largest middle part whose shape `ratio` allows.

    Args:
      width, height: the image's.
      scale: least and greatest share of the area.
      ratio: least and greatest width over height.
      words: uint32, at least 22.

    Returns:
      left, top, right, bottom.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(_CROP_TRIES):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * _uniform(words[2 + 2 * attempt]))
        shape = math.exp(low + (high - low) * _uniform(words[3 + 2 * attempt]))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = _below(words[0], width - w + 1), _below(words[1], height - h + 1)
            return left, top, left + w, top + h
    shape = min(max(width / height, ratio[0]), ratio[1])
    w, h = min(width, max(1, round(height * shape))), min(height, max(1, round(width / shape)))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def colour_jitter(image: np.ndarray, strength: float, words: np.ndarray) -> np.ndarray:
    """Change brightness, contrast and saturation, in this order.

    Args:
      image: uint8 [height, width, channels].
      strength: each is multiplied by a number between 1 - strength and 1 + strength.
      words: uint32, at least 3.
    """
    image = decoding.to_image(image)
    for enhance, word in zip((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), words):
        image = enhance(image).enhance(1 + strength * (2 * _uniform(word) - 1))
    return decoding.to_array(image)


def randaugment(image: np.ndarray, count: int, magnitude: int, words: np.ndarray) -> np.ndarray:
    """Apply `count` operations, each drawn from OPERATIONS (Cubuk et al., "RandAugment", 2020).

    The strengths at magnitude 10 are AutoAugment's, with translation in proportion to the image.

    Args:
      image: uint8 [height, width, channels].
      count: of operations, one after the other.
      magnitude: from 0 to 10.
      words: uint32, two for each operation: which, and whether up or down (left or right) where it has two ways.
    """
    image = decoding.to_image(image)
    for i in range(count):
        which, sign = words[_WORDS_PER_OPERATION * i : _WORDS_PER_OPERATION * (i + 1)]
        operation = OPERATIONS[_below(which, len(OPERATIONS))]
        image = operation(image, magnitude / 10, 1 if sign >= 2**31 else -1)
    return decoding.to_array(image)


def _affine(image: Image.Image, *coefficients: float) -> Image.Image:
    """Each pixel (x, y) comes from (a x + b y + c, d x + e y + f), with the image's middle as origin."""
    a, b, c, d, e, f = coefficients
    x, y = image.width / 2, image.height / 2
    centred = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
    fill = (_GREY,) * len(image.getbands())
    return image.transform(image.size, Image.Transform.AFFINE, centred, fillcolor=fill if len(fill) > 1 else _GREY)


def _rotate(image, strength, sign):
    angle = math.radians(30 * strength * sign)
    return _affine(image, math.cos(angle), math.sin(angle), 0, -math.sin(angle), math.cos(angle), 0)


def _enhanced(kind):
    return lambda image, strength, sign: kind(image).enhance(1 + 0.9 * strength * sign)


# Each takes a Pillow image, a strength from 0 to 1, and a sign.
OPERATIONS = (
    lambda image, strength, sign: image,
    lambda image, strength, sign: ImageOps.autocontrast(image),
    lambda image, strength, sign: ImageOps.equalize(image),
    _rotate,
    lambda image, strength, sign: ImageOps.solarize(image, round(256 * (1 - strength))),
    lambda image, strength, sign: ImageOps.posterize(image, 8 - round(4 * strength)),
    _enhanced(ImageEnhance.Color),
    _enhanced(ImageEnhance.Contrast),
    _enhanced(ImageEnhance.Brightness),
    _enhanced(ImageEnhance.Sharpness),
    lambda image, strength, sign: _affine(image, 1, 0.3 * strength * sign, 0, 0, 1, 0),
    lambda image, strength, sign: _affine(image, 1, 0, 0, 0.3 * strength * sign, 1, 0),
    lambda image, strength, sign: _affine(image, 1, 0, 0.45 * image.width * strength * sign, 0, 1, 0),
    lambda image, strength, sign: _affine(image, 1, 0, 0, 0, 1, 0.45 * image.height * strength * sign),
)
