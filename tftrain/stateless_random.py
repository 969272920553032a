"""Random numbers that are a function of where they are used, with no generator state to save.

A stream is named by a 64-bit key. The words of row i of the global batch at step k stand at a place in the stream
that (k, i) alone gives, so a replica that holds rows a..b draws just the slice for them: what a row sees does not
depend on the number of replicas, on micro-batches or on what was drawn before. Philox 4x32 (Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", 2011) makes that a matter of setting its counter, which counts blocks of four
32-bit words. TensorFlow and XLA draw the same bits.
"""

import contextlib
import threading

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tftrain.errors import UserError

_PHILOX = 1
_WORDS_PER_BLOCK = 4
# The purposes that streams are apart by; the first number of a key's path.
DROPOUT, EXAMPLE_ORDER, BATCH_ORDER, AUGMENTATION = range(4)


def stream_key(seed: int, *path: int) -> int:
    """A 64-bit key for the stream that `seed` and `path` name."""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0])


def words(key: int, step: tf.Tensor, first_row: tf.Tensor, rows: tf.Tensor | int, blocks_per_row: tf.Tensor | int):
    """Draw the words of some consecutive rows.

    Args:
      key: the stream, from `stream_key`.
      step: scalar integer; the high half of Philox's counter.
      first_row: scalar integer; the first row's number.
      rows: how many rows.
      blocks_per_row: how many blocks of four words a row takes.

    Returns:
      uint32 [rows * blocks_per_row * 4].
    """
    block = tf.cast(first_row, tf.int64) * tf.cast(blocks_per_row, tf.int64)
    counter = tf.stack([tf.cast(block, tf.uint64), tf.cast(step, tf.uint64)])
    count = tf.cast(rows, tf.int32) * tf.cast(blocks_per_row, tf.int32) * _WORDS_PER_BLOCK
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[count], key=tf.constant([key], tf.uint64), counter=counter, alg=_PHILOX, dtype=tf.uint32
    )


class Position(threading.local):
    """The step and the first row of what is being computed, for the Dropout layers inside.

    Thread-local, since tf.distribute traces each replica in a thread of its own.
    """

    step = None
    first_row = None

    @contextlib.contextmanager
    def at(self, step: tf.Tensor, first_row: tf.Tensor):
        """Within the block, Dropout layers draw for rows first_row, first_row + 1, ... of step `step`."""
        before = self.step, self.first_row
        self.step, self.first_row = step, first_row
        try:
            yield
        finally:
            self.step, self.first_row = before


class StatelessDropout:
    """Stands in for a Keras Dropout layer's `_random_generator`.

    Masks take 16 random bits an element, so the rate is exact to 1/65536; half the cost of the usual 32.
    """

    _rng_type = "stateless"

    def __init__(self, key: int, position: Position):
        self._key, self._position = key, position

    def _maybe_init(self) -> None:
        """Keras calls this when it builds the layer; there is no state to make."""

    def dropout(self, inputs: tf.Tensor, rate: float, noise_shape=None) -> tf.Tensor:
        """Zero each element of `inputs` with probability `rate` and scale the rest by 1 / (1 - rate).

        Args:
          inputs: floating, [batch, ...].
          rate: in [0, 1).
          noise_shape: as in tf.nn.dropout; its first dimension has to be the batch.
        """
        if self._position.step is None:
            raise RuntimeError("dropout was called in training outside of the training step")
        shape = tf.shape(inputs) if noise_shape is None else noise_shape
        elements = tf.reduce_prod(shape[1:])
        per_block = _WORDS_PER_BLOCK * 2
        blocks = (elements + per_block - 1) // per_block
        drawn = words(self._key, self._position.step, self._position.first_row, shape[0], blocks)
        bits = tf.reshape(tf.bitcast(drawn, tf.uint16), [shape[0], blocks * per_block])[:, :elements]
        threshold = min(round(rate * 2**16), 2**16 - 2)  # 1 would divide by zero, and float16 ends at 65504
        scale = 2**16 / (2**16 - threshold)
        keep = tf.cast(tf.reshape(bits, shape) >= tf.constant(threshold, tf.uint16), inputs.dtype)
        return inputs * (keep * tf.cast(scale, inputs.dtype))


def install(network: keras.Model, seed: int) -> Position:
    """Make every Dropout layer of a built or unbuilt network draw statelessly.

    Returns:
      the position to set around a forward pass in training.

    Raises:
      UserError: a layer draws random numbers in another way than dropout.
    """
    position = Position()
    layers = [layer for layer in network.submodules if hasattr(layer, "_random_generator")]
    for index, layer in enumerate(layers):
        if not isinstance(layer, keras.layers.Dropout):
            raise UserError(
                f"layer {layer.name!r} ({type(layer).__name__}) draws random numbers from a generator that cannot be "
                "resumed or divided over replicas; use Dropout layers"
            )
        layer._random_generator = StatelessDropout(stream_key(seed, DROPOUT, index), position)
    return position
