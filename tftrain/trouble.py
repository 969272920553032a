"""Notices, inside the training step, that a training has gone wrong.

A loss alone does not tell: on the CPU a ReLU turns NaN into 0, so that weights that are not numbers can have a finite
loss. The norm of all gradients together is not finite as soon as one of their elements is not; it costs 0.1 to 0.2 ms
a step on a CPU.
"""

import tensorflow as tf
import tf_keras as keras

# Overflows at the loss scale's least value, 1, with none in between that it recovered from. Below that nothing helps.
FLOOR_OVERFLOWS = 20


class NotFinite(Exception):
    """A loss, a gradient or a weight is not a finite number.

    Attributes:
      step: steps that were done before the one that did it.
      what: what was not finite, to go into a sentence.
    """

    def __init__(self, step: int, what: str):
        super().__init__(f"step {step + 1}: {what}")
        self.step, self.what = step, what


class Watch:
    """Follows the gradients of a `TrainingModel`; made under the strategy's scope.

    Attributes:
      norm: the mean norm of the gradient, before clipping, since it was last reset; steps that are not finite are left
        out.
      overflows: int64, how often in a row gradients overflowed with the loss scale at its floor.
    """

    def __init__(self):
        self.norm = keras.metrics.Mean("gradient_norm", dtype=tf.float64)
        self.overflows = _counter("overflows_at_floor", 0)
        self._first = _counter("first_not_finite", -1)

    def update(self, norm: tf.Tensor, loss: tf.Tensor, position: tf.Tensor, scale: tf.Tensor | None) -> None:
        """Take note of a step, on each replica with the same values.

        Args:
          norm: float32 scalar, of the gradient over all replicas.
          loss: float32 scalar, over all replicas.
          position: int64 scalar, the batch's place in the data.
          scale: the loss scale that the step was computed with; None without one. With one, a gradient that is not
            finite is part of finding the scale.
        """
        finite = tf.math.is_finite(norm)
        self.norm.update_state(tf.where(finite, norm, 0.0), sample_weight=tf.cast(finite, tf.float64))
        if scale is None:
            wrong = ~(finite & tf.math.is_finite(loss))
        else:
            overflows = tf.where(scale > 1, tf.zeros([], tf.int64), self.overflows + tf.cast(~finite, tf.int64))
            self.overflows.assign(overflows)
            wrong = overflows >= FLOOR_OVERFLOWS
        first = self._first.read_value()
        self._first.assign(tf.where(wrong & (first < 0), position, first))

    @property
    def first(self) -> int | None:
        """The position of the first batch that went wrong; None: none did."""
        first = int(self._first.numpy())
        return None if first < 0 else first

    def forget(self) -> None:
        """Begin anew, after a rollback."""
        self._first.assign(-1)


def _counter(name: str, value: int) -> tf.Variable:
    """An integer that each replica keeps for itself, all alike."""
    return tf.Variable(
        value,
        dtype=tf.int64,
        trainable=False,
        name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
