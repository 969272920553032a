"""Which examples are in the batch of step k, and on which replica.

The content of step k's global batch is a function of (data, seed, k) alone, found without reading the batches
before it, and without regard to the number of replicas: replica r of R holds consecutive rows of it. All batches have
the same number of rows. Where the examples of an epoch do not fill the last one, or the global batch does not divide
evenly over the replicas, rows of other examples stand in with weight 0: shapes stay constant (one compilation), no
replica is ever empty, and batch normalisation sees a full batch.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from tftrain import stateless_random

# Padding, as a share of all tokens, that makes another batch length not worth its compilation.
PADDING_TARGET = 0.15
PADDING_SLACK = 0.02
MAX_LENGTHS = 8
LENGTH_MULTIPLE = 8
# Elements that are made at once, ahead of the step.
PARALLEL_ELEMENTS = 4


class Examples(Protocol):
    """A data set that is read by row numbers inside a TensorFlow function.

    Attributes:
      labels: int32 [count], each in [0, classes).
      lengths: int [count], the length of each example, or None where all have one shape.
    """

    labels: np.ndarray
    lengths: np.ndarray | None

    def inputs(self, rows: tf.Tensor, length: tf.Tensor | None, draw: Callable | None):
        """The network's inputs for row numbers int64 [batch], cut or padded to `length` where lengths differ.

        In training, draw(n) gives uint32 [batch, n], the random words of each row's example in this epoch, the same at
        each call; augmentation takes all it needs from one call. In evaluation `draw` is None.
        """


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """An endless sequence of global batches over some examples.

    Attributes:
      examples: the data set.
      batch_size: real examples in a global batch.
      seed: of the order, a new one every epoch, and of augmentation; None: the order of the data, without
        augmentation, as evaluation wants it.
      batch_lengths: ascending; each batch is padded to the least that holds its examples. Empty: one shape.
    """

    examples: Examples
    batch_size: int
    seed: int | None = None
    batch_lengths: Sequence[int] = ()
    row_multiple: int = 1

    @property
    def count(self) -> int:
        """Examples in an epoch."""
        return len(self.examples.labels)

    @property
    def steps_per_epoch(self) -> int:
        """Steps that hold every example once; the last may hold fewer than the others."""
        return math.ceil(self.count / self.batch_size)

    def rows_per_replica(self, replicas: int) -> int:
        """Rows of each replica's share of a batch, those that stand in included."""
        rows = min(self.batch_size, self.count)
        return math.ceil(rows / (replicas * self.row_multiple)) * self.row_multiple

    def examples_at(self, first_step: int, steps: int) -> int:
        """Real examples in `steps` steps from `first_step` on."""
        whole, rest = divmod(first_step + steps, self.steps_per_epoch)
        skipped, skipped_rest = divmod(first_step, self.steps_per_epoch)
        return (whole - skipped) * self.count + (rest - skipped_rest) * self.batch_size

    def lengths_at(self, first_step: int, steps: int) -> set[int]:
        """The batch lengths that occur in `steps` steps from `first_step` on; {0} where all examples have one shape."""
        return {*self.length_of_each(first_step, steps)}

    def length_of_each(self, first_step: int, steps: int) -> list[int]:
        """The length of each batch of `steps` steps from `first_step` on; 0 where all examples have one shape."""
        if len(self.batch_lengths) < 2:
            return [*(self.batch_lengths or (0,))] * steps
        begin, real = self._locate(tf.range(first_step, first_step + steps, dtype=tf.int64))
        return self._length(begin, real).numpy().tolist()

    def distribute(self, strategy: tf.distribute.Strategy, first_step: int = 0):
        """The batches from step `first_step` on, for `fit` and `evaluate` under a strategy.

        Each element is a dictionary with one replica's share of a step:
          inputs: what `Examples.inputs` returns.
          labels: int32 [batch].
          weights: float32 [batch], 1 for a real example and 0 for one that stands in.
          rows: int64 [batch], the examples' row numbers.
          examples: float32 scalar, the real examples of the step over all replicas.
          step: int64 scalar.
          first_row: int64 scalar, the first row's place in the global batch.
        """

        def worker_dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
            replicas = context.num_replicas_in_sync
            local = replicas // context.num_input_pipelines
            first_replica = context.input_pipeline_id * local
            share = self.rows_per_replica(replicas)
            element = self._element_function(share)
            dataset = tf.data.Dataset.counter(start=first_step * local)
            dataset = dataset.map(
                lambda i: element(step=i // local, first_row=(first_replica + i % local) * share),
                num_parallel_calls=PARALLEL_ELEMENTS,
                deterministic=True,
            )
            options = tf.data.Options()
            # Its thread sleeps for up to a minute between two looks, and the end of a run at times waited for that.
            options.autotune.enabled = False
            return dataset.prefetch(2 * local).with_options(options)

        return strategy.distribute_datasets_from_function(worker_dataset)

    def beginning(self, rows: int, step: int = 0) -> dict:
        """The first rows of a step's global batch, at most the examples that it has; see `distribute`."""
        element = self._element_function(min(rows, self.batch_size, self.count))
        return element(step=tf.constant(step, tf.int64), first_row=tf.constant(0, tf.int64))

    def _locate(self, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Where in an epoch's order the batches of these steps begin, and how many real examples each has.

        int64 [n] each. Batches of different lengths come in a new order every epoch; the last, which may have fewer
        examples, stays last.
        """
        epochs, batches = steps // self.steps_per_epoch, steps % self.steps_per_epoch
        full = self.count // self.batch_size
        if self.seed is not None and len(self.batch_lengths) > 1 and full > 1:
            shuffled = _shuffle(
                tf.minimum(batches, full - 1), self.seed, stateless_random.BATCH_ORDER, epochs, full - 1
            )
            batches = tf.where(batches < full, shuffled, batches)
        begin = batches * self.batch_size
        return begin, tf.minimum(tf.constant(self.batch_size, tf.int64), self.count - begin)

    def _length(self, begin: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
        """The length of batches that `_locate` gave: that of their last real example, int32 [n]."""
        bucket = tf.searchsorted(self._bucket_ends, begin + real - 1, side="right")
        return tf.gather(tf.constant(self.batch_lengths, tf.int32), bucket)

    def _element_function(self, share: int) -> Callable:
        """The function from (step, first row) to the element with `share` rows."""
        labels = tf.constant(self.examples.labels, tf.int32)
        order = None if self._order is None else tf.constant(self._order, tf.int64)
        ends = tf.constant(self._bucket_ends, tf.int64)
        starts = tf.concat([[0], ends[:-1]], axis=0)

        def element(step: tf.Tensor, first_row: tf.Tensor) -> dict:
            epoch = step // self.steps_per_epoch
            begin, real = self._locate(step[tf.newaxis])
            places = first_row + tf.range(share, dtype=tf.int64)
            positions = rows = (begin + places) % self.count
            if self.seed is not None:
                bucket = tf.searchsorted(ends, positions, side="right")
                start = tf.gather(starts, bucket)
                last = tf.gather(ends, bucket) - start - 1
                rows = start + _shuffle(positions - start, self.seed, stateless_random.EXAMPLE_ORDER, epoch, last)
            if order is not None:
                rows = tf.gather(order, rows)
            length = self._length(begin, real)[0] if self.batch_lengths else None
            training = self.seed is not None
            draw = functools.partial(self._draw, epoch, begin[0] + first_row, share) if training else None
            return {
                "inputs": self.examples.inputs(rows, length, draw),
                "labels": tf.gather(labels, rows),
                "weights": tf.cast(places < real, tf.float32),
                "rows": rows,
                "examples": tf.cast(real[0], tf.float32),
                "step": step,
                "first_row": first_row,
            }

        return element

    def _draw(self, epoch, first_position, rows: int, words_per_row) -> tf.Tensor:
        """Random words of the examples at consecutive positions of an epoch's order, uint32 [rows, words_per_row]."""
        key = stateless_random.stream_key(self.seed, stateless_random.AUGMENTATION)
        drawn = stateless_random.words(key, epoch, first_position, rows, (words_per_row + 3) // 4)
        return tf.reshape(drawn, [rows, -1])[:, :words_per_row]

    @functools.cached_property
    def _bucket(self) -> np.ndarray:
        """The number of each example's batch length."""
        return np.searchsorted(self.batch_lengths, self.examples.lengths)

    @functools.cached_property
    def _order(self) -> np.ndarray | None:
        """Row numbers ordered by batch length; None: as they are."""
        return np.argsort(self._bucket, kind="stable") if self.batch_lengths else None

    @functools.cached_property
    def _bucket_ends(self) -> np.ndarray:
        """Where in that order each batch length's examples end, int64."""
        if not self.batch_lengths:
            return np.array([self.count])
        return np.cumsum(np.bincount(self._bucket, minlength=len(self.batch_lengths)))


def _shuffle(index, seed: int, purpose: int, epoch, last):
    """Where `index`, int64 [n] in [0, last], goes in the epoch's permutation; `epoch` and `last` scalar or [n]."""
    key = stateless_random.stream_key(seed, purpose) % 2**63
    shape = tf.shape(index)
    last = tf.broadcast_to(tf.cast(last, tf.int64), shape)
    seeds = [tf.fill(shape, tf.constant(key, tf.int64)), tf.broadcast_to(epoch, shape), last]
    # The raw operation, since tf.random.experimental.index_shuffle takes no vector of seeds (TensorFlow 2.21).
    return tf.raw_ops.RandomIndexShuffle(index=index, seed=tf.stack(seeds, axis=1), max_index=last, rounds=4)


def choose_batch_lengths(lengths: np.ndarray, longest: int | None = None) -> tuple[list[int], float]:
    """Choose the lengths that batches are padded to.

    Of the choices with 1 to MAX_LENGTHS lengths, each with the least padding (found exactly, by dynamic programming),
    it is the one with the fewest lengths that keeps padding under PADDING_TARGET, or, where none does, within
    PADDING_SLACK of the least. Lengths are multiples of LENGTH_MULTIPLE, which suits matrix units.

    Args:
      lengths: int [count], at least 1 each.
      longest: no batch is longer, so the last length may be no multiple; at least the greatest of `lengths`.

    Returns:
      the lengths in ascending order, and the share of padding in all tokens.
    """
    longest = np.inf if longest is None else longest
    cells = np.bincount((np.asarray(lengths) + LENGTH_MULTIPLE - 1) // LENGTH_MULTIPLE)
    candidates = np.flatnonzero(cells)
    below = np.concatenate([[0], np.cumsum(cells[candidates])])  # examples shorter than each candidate
    # tokens[j]: the least padded tokens of the examples below candidate j, with as many lengths as rounds so far.
    tokens = np.concatenate([[0.0], np.full(len(candidates), np.inf)])
    rounds = []
    for _ in range(min(MAX_LENGTHS, len(candidates))):
        choice = np.zeros(len(candidates) + 1, int)
        padded = np.full(len(candidates) + 1, np.inf)
        for j in range(1, len(candidates) + 1):
            # Examples between candidates i and j are padded to candidate j - 1.
            totals = tokens[:j] + (below[j] - below[:j]) * min(candidates[j - 1] * LENGTH_MULTIPLE, longest)
            choice[j] = np.argmin(totals)
            padded[j] = totals[choice[j]]
        tokens = padded
        rounds.append((1 - np.sum(lengths) / tokens[-1], choice))
    allowed = max(PADDING_TARGET, rounds[-1][0] + PADDING_SLACK)
    fewest = next(k for k, (padding, _) in enumerate(rounds) if padding <= allowed)
    chosen, j = [], len(candidates)
    for _, choice in reversed(rounds[: fewest + 1]):
        chosen.append(int(min(candidates[j - 1] * LENGTH_MULTIPLE, longest)))
        j = choice[j]
    return chosen[::-1], float(rounds[fewest][0])
