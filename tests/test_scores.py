import numpy as np
import pytest
import tensorflow as tf

from tests import helpers
from tftrain import scores

CLASSES = 4


def update(replicas: int, rows: int = 96):
    """Metrics that have seen random probabilities on so many replicas, 8 rows at a time, and what they have seen."""
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.full(CLASSES, 0.3), rows).astype(np.float32)
    labels = generator.integers(0, CLASSES, rows).astype(np.int32)
    weights = (generator.random(rows) < 0.8).astype(np.float32)
    strategy = helpers.start(replicas).strategy
    with strategy.scope():
        mistakes, confidences = scores.Mistakes(), scores.Confidences(CLASSES)

    @tf.function
    def step(part):
        def replica(context):
            index = part * replicas + context.replica_id_in_sync_group
            own = tf.range(index * 8, index * 8 + 8)
            values = [tf.gather(tf.constant(array), own) for array in (labels, probabilities, weights)]
            mistakes.update_state(tf.cast(own, tf.int64), *values)
            confidences.update_state(*values)

        strategy.run(lambda: replica(tf.distribute.get_replica_context()))

    for part in range(rows // (8 * replicas)):
        step(tf.constant(part))
    return mistakes, confidences, probabilities, labels, weights


@pytest.mark.parametrize("replicas", [1, 2])
def test_scores_on_any_number_of_replicas(replicas):
    mistakes, confidences, probabilities, labels, weights = update(replicas)
    predicted = probabilities.argmax(axis=1)
    wrong = np.flatnonzero((predicted != labels) & (weights > 0))
    expected = sorted(wrong, key=lambda row: (-probabilities[row].max(), row))[: scores.MISTAKES]
    assert len(expected) == scores.MISTAKES
    found = mistakes.worst()
    assert [mistake.row for mistake in found] == expected
    assert [mistake.label for mistake in found] == labels[expected].tolist()
    assert [mistake.predicted for mistake in found] == predicted[expected].tolist()
    assert [mistake.confidence for mistake in found] == pytest.approx(probabilities[expected].max(axis=1).tolist())
    for number in range(CLASSES):
        for own in (False, True):
            chosen = ((labels == number) == own) & (weights > 0)
            bins = np.floor(probabilities[chosen, number] * np.float32(scores.BINS - 1)).astype(int)
            assert confidences.result().numpy()[number, int(own)].tolist() == np.bincount(bins, minlength=101).tolist()
    for metric in (mistakes, confidences):
        metric.reset_state()
    assert mistakes.worst() == [] and confidences.result().numpy().sum() == 0


def test_fewer_mistakes_than_are_kept():
    mistakes = scores.Mistakes()
    probabilities = np.array([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]], np.float32)
    mistakes.update_state(np.array([7, 8, 9], np.int64), np.array([1, 1, 0]), probabilities, np.ones(3, np.float32))
    (only,) = mistakes.worst()
    assert (only.row, only.label, only.predicted) == (7, 1, 0)
