"""What an evaluation finds beside loss and accuracy: the worst mistakes, and how far confidence can be trusted."""

import dataclasses

import numpy as np
import tensorflow as tf
import tf_keras as keras

# The most confident mistakes that are kept.
MISTAKES = 25
# Bins of [0, 1] that probabilities are counted in.
BINS = 101


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A test example that was taken for another class.

    Attributes:
      row: its number in the test data.
      label, predicted: the numbers of its class and of the class that it was taken for.
      confidence: the probability of the latter.
    """

    row: int
    label: int
    predicted: int
    confidence: float


class Mistakes(keras.metrics.Metric):
    """The examples that are wrong with the most confidence; each replica keeps those of its own rows."""

    def __init__(self, name: str = "mistakes"):
        super().__init__(name=name, dtype=tf.float32)
        options = {"initializer": "zeros", "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self.confidences = self.add_weight("confidences", shape=[MISTAKES], **options)
        self.examples = self.add_weight("examples", shape=[MISTAKES, 3], dtype=tf.int64, **options)

    def update_state(self, rows, labels, probabilities, weights):
        """Take rows int64 [batch], labels int32 [batch], probabilities [batch, classes], weights [batch]."""
        predictions = tf.argmax(probabilities, axis=-1, output_type=tf.int64)
        labels = tf.cast(labels, tf.int64)
        wrong = (predictions != labels) & (weights > 0)
        confidences = tf.where(wrong, tf.reduce_max(probabilities, axis=-1), 0)
        confidences = tf.concat([self.confidences, confidences], axis=0)
        examples = tf.concat([self.examples, tf.stack([rows, labels, predictions], axis=-1)], axis=0)
        kept, places = tf.math.top_k(confidences, MISTAKES)
        self.confidences.assign(kept)
        self.examples.assign(tf.gather(examples, places))

    def reset_state(self):
        for variable in self.variables:
            variable.assign(tf.zeros(variable.shape, variable.dtype))

    def result(self):
        """Nothing: a tensor that could be added over replicas is not to be had; see `worst`."""
        return tf.zeros([])

    def worst(self) -> list[Mistake]:
        """The MISTAKES worst, the most confident first; in cross-replica context."""
        confidences = np.concatenate(_on_each_replica(self.confidences))
        examples = np.concatenate(_on_each_replica(self.examples))
        # By row number where they tie, so that the number of replicas does not show.
        order = np.lexsort([examples[:, 0], -confidences])
        return [Mistake(*map(int, examples[i]), float(confidences[i])) for i in order[:MISTAKES] if confidences[i] > 0]


class Confidences(keras.metrics.Metric):
    """How often each class gets which probability, int64 [classes, 2, BINS]: from examples of other classes, and from
    its own. Bin b holds probabilities from b / (BINS - 1) on; the last one those of 1."""

    def __init__(self, classes: int, name: str = "confidences"):
        super().__init__(name=name, dtype=tf.int64)
        self.counts = self.add_weight("counts", shape=[classes, 2, BINS], initializer="zeros", dtype=tf.int64)

    def update_state(self, labels, probabilities, weights):
        """Take labels int32 [batch], probabilities [batch, classes], weights [batch]."""
        classes = self.counts.shape[0]
        bins = tf.clip_by_value(tf.cast(probabilities * (BINS - 1), tf.int64), 0, BINS - 1)  # NaN is no index
        own = tf.one_hot(labels, classes, dtype=tf.int64)
        cells = (tf.range(classes, dtype=tf.int64) * 2 + own) * BINS + bins
        each = tf.broadcast_to(tf.cast(weights, tf.int64)[:, tf.newaxis], tf.shape(cells))
        added = tf.math.unsorted_segment_sum(tf.reshape(each, [-1]), tf.reshape(cells, [-1]), classes * 2 * BINS)
        self.counts.assign_add(tf.reshape(added, self.counts.shape))

    def reset_state(self):
        self.counts.assign(tf.zeros(self.counts.shape, tf.int64))

    def result(self):
        return tf.convert_to_tensor(self.counts)


def _on_each_replica(variable) -> list[np.ndarray]:
    return [part.numpy() for part in getattr(variable, "values", (variable,))]
