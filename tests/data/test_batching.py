import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from tests import helpers
from tftrain.configuration import Augmentation
from tftrain.data import batching
from tftrain.data.batching import Batches

FLIP = Augmentation(flip=True)
MANY_LENGTHS = np.random.default_rng(5).integers(3, 60, 101)


def text_batches(**options) -> Batches:
    examples = helpers.text_examples(MANY_LENGTHS)
    return Batches(examples, 10, batch_lengths=batching.choose_batch_lengths(MANY_LENGTHS)[0], **options)


@pytest.fixture(params=["one shape", "many lengths"])
def batches(request) -> Batches:
    """101 examples in batches of 10, in a new order each epoch."""
    return text_batches(seed=7) if request.param == "many lengths" else Batches(helpers.vectors(101), 10, seed=7)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_every_epoch_holds_every_example_once(batches, replicas):
    steps = helpers.elements(batches, replicas, 2 * 11)
    for epoch in (steps[:11], steps[11:]):
        assert sorted(row for step in epoch for row in helpers.real_rows(step)) == list(range(101))
        assert [len(helpers.real_rows(step)) for step in epoch] == [10] * 10 + [1]
        assert [{float(part["examples"]) for part in step} for step in epoch] == [{10.0}] * 10 + [{1.0}]


def test_any_number_of_replicas_sees_the_same_batches(batches):
    expected = [helpers.real_rows(step) for step in helpers.elements(batches, 1, 14)]
    for replicas in (2, 3, 4):
        assert [helpers.real_rows(step) for step in helpers.elements(batches, replicas, 14)] == expected


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("first_step", [1, 10, 11, 17])
def test_starting_later_is_skipping(batches, replicas, first_step):
    skipped = helpers.elements(batches, replicas, 20)[first_step:]
    started = helpers.elements(batches, replicas, 20 - first_step, first_step)
    tf.nest.map_structure(np.testing.assert_array_equal, started, skipped)


def test_the_order_is_new_each_epoch_and_with_each_seed(batches):
    steps = [tuple(helpers.real_rows(step)) for step in helpers.elements(batches, 1, 22)]
    assert steps[:11] != steps[11:]
    assert not set(steps[:10]) & set(steps[11:21])
    other = Batches(batches.examples, 10, seed=8, batch_lengths=batches.batch_lengths)
    assert [tuple(helpers.real_rows(step)) for step in helpers.elements(other, 1, 11)] != steps[:11]


def test_the_order_is_not_nearly_the_order_of_the_data():
    rows = [
        row for step in helpers.elements(Batches(helpers.vectors(1000), 100, seed=0), 1, 10) for row in step[0]["rows"]
    ]
    # The rank correlation of two independent orders of 1,000 has a standard deviation of 0.03.
    assert abs(np.corrcoef(rows, np.arange(1000))[0, 1]) < 0.15


def test_without_a_seed_the_order_is_that_of_the_data():
    steps = helpers.elements(Batches(helpers.vectors(23), 5), 2, 5)
    assert [row for step in steps for row in helpers.real_rows(step)] == list(range(23))


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("row_multiple", [1, 2])
def test_every_replica_has_the_same_number_of_rows_in_every_step(replicas, row_multiple):
    batches = Batches(helpers.vectors(23), 5, seed=1, row_multiple=row_multiple)
    share = math.ceil(5 / (replicas * row_multiple)) * row_multiple
    assert batches.rows_per_replica(replicas) == share
    for number, step in enumerate(helpers.elements(batches, replicas, 6)):
        assert [part["inputs"].shape for part in step] == [(share, 6)] * replicas
        assert [int(part["first_row"]) for part in step] == [share * replica for replica in range(replicas)]
        assert {int(part["step"]) for part in step} == {number}


def test_a_row_comes_with_its_own_inputs_and_label(batches):
    examples = batches.examples
    for step in helpers.elements(batches, 2, 12):
        for part in step:
            np.testing.assert_array_equal(part["labels"], examples.labels[part["rows"]])
            if examples.lengths is None:
                np.testing.assert_array_equal(part["inputs"], examples.values[part["rows"]])
                continue
            for row, ids, weight in zip(part["rows"], part["inputs"]["input_ids"], part["weights"]):
                tokens = examples.tokens[examples.starts[row] :][: examples.lengths[row]]
                if weight:
                    assert len(tokens) <= len(ids)
                tokens = tokens[: len(ids)]
                np.testing.assert_array_equal(ids, np.pad(tokens, (0, len(ids) - len(tokens))))


def test_a_batch_has_the_least_of_the_lengths_that_holds_its_texts():
    batches = text_batches(seed=7)
    assert len(batches.batch_lengths) > 1
    for step, parts in enumerate(helpers.elements(batches, 2, 22)):
        longest = max(MANY_LENGTHS[row] for row in helpers.real_rows(parts))
        expected = min(length for length in batches.batch_lengths if length >= longest)
        assert {part["inputs"]["input_ids"].shape[1] for part in parts} == {expected}
        assert batches.lengths_at(step, 1) == {expected}
    assert batches.lengths_at(0, 11) == {int(length) for length in batches.batch_lengths}


def test_batches_of_different_lengths_are_mixed():
    batches = text_batches(seed=7)
    lengths = [min(batches.lengths_at(step, 1)) for step in range(10)]
    assert lengths != sorted(lengths)
    assert lengths != [min(batches.lengths_at(step, 1)) for step in range(11, 21)]


@pytest.mark.parametrize("replicas, share", [(1, 5), (2, 3), (4, 2)])
def test_a_batch_that_is_larger_than_the_data_computes_no_more_rows_than_there_are(replicas, share):
    batches = Batches(helpers.vectors(5), 100, seed=1)
    assert batches.rows_per_replica(replicas) == share
    for step in helpers.elements(batches, replicas, 2):
        assert sorted(helpers.real_rows(step)) == list(range(5))


@pytest.mark.parametrize("count, batch_size", [(5, 10), (10, 10), (11, 10), (21, 10), (1, 1)])
def test_small_numbers_of_texts_are_batched_too(count, batch_size):
    lengths = MANY_LENGTHS[:count]
    examples = helpers.text_examples(lengths)
    batches = Batches(examples, batch_size, seed=1, batch_lengths=batching.choose_batch_lengths(lengths)[0])
    steps = math.ceil(count / batch_size)
    assert batches.steps_per_epoch == steps
    for first in (0, steps):
        rows = [row for step in helpers.elements(batches, 1, steps, first) for row in helpers.real_rows(step)]
        assert sorted(rows) == list(range(count))


@pytest.mark.parametrize("first_step, steps", [(0, 1), (0, 11), (10, 1), (10, 2), (3, 20), (11, 11), (21, 3)])
def test_examples_at_counts_the_real_examples(batches, first_step, steps):
    expected = sum(len(helpers.real_rows(step)) for step in helpers.elements(batches, 1, steps, first_step))
    assert batches.examples_at(first_step, steps) == expected


@pytest.mark.parametrize("replicas", [2, 3])
def test_augmentation_does_not_depend_on_the_replicas(replicas):
    batches = Batches(helpers.images(23, augmentation=FLIP), 6, seed=4)

    def seen(replicas):
        steps = helpers.elements(batches, replicas, 8)
        return [np.concatenate([part["inputs"][part["weights"] == 1] for part in step]) for step in steps]

    for found, expected in zip(seen(replicas), seen(1)):
        np.testing.assert_array_equal(found, expected)


def test_augmentation_differs_between_epochs_and_repeats_under_the_same_seed():
    def flipped(seed, first_step):
        examples = helpers.images(64, augmentation=FLIP)
        step = helpers.elements(Batches(examples, 64, seed=seed), 1, 1, first_step)[0][0]
        changed = [not np.array_equal(a, examples.source.images[row]) for a, row in zip(step["inputs"], step["rows"])]
        return dict(zip(step["rows"].tolist(), changed))

    first, second = flipped(4, 0), flipped(4, 1)
    assert 10 < sum(first.values()) < 54  # of 64, more than 5 standard deviations around one half
    assert first != second
    assert flipped(4, 0) == first
    assert flipped(5, 0) != first


def padded_tokens(lengths, chosen) -> int:
    return sum(min(length for length in chosen if length >= text) for text in lengths)


@pytest.mark.parametrize("seed", range(6))
def test_choose_batch_lengths_is_the_best_of_all_choices(seed):
    generator = np.random.default_rng(seed)
    lengths = np.minimum(1 + generator.geometric(generator.uniform(0.02, 0.2), 60), 72)
    chosen, padding = batching.choose_batch_lengths(lengths)
    assert chosen == sorted(set(chosen))
    assert all(length % 8 == 0 for length in chosen)
    assert padding == pytest.approx(1 - lengths.sum() / padded_tokens(lengths, chosen))

    multiples = sorted({8 * math.ceil(length / 8) for length in lengths})
    longest, others = multiples[-1], multiples[:-1]

    def least(count):
        choices = itertools.combinations(others, count - 1)
        return min(1 - lengths.sum() / padded_tokens(lengths, [*choice, longest]) for choice in choices)

    most = min(batching.MAX_LENGTHS, len(multiples))
    allowed = max(batching.PADDING_TARGET, least(most) + batching.PADDING_SLACK)
    fewest = next(count for count in range(1, most + 1) if least(count) <= allowed + 1e-12)
    assert len(chosen) == fewest
    assert padding == pytest.approx(least(fewest))


@pytest.mark.parametrize(
    "lengths, expected", [([8] * 5, [8]), ([1], [8]), ([9], [16]), ([8] * 50 + [128] * 50, [8, 128]), ([7, 8], [8])]
)
def test_choose_batch_lengths_of_plain_cases(lengths, expected):
    assert batching.choose_batch_lengths(np.array(lengths))[0] == expected


@pytest.mark.parametrize("longest, expected", [(10, [10]), (16, [16]), (20, [16])])
def test_no_batch_is_longer_than_the_longest_that_is_allowed(longest, expected):
    lengths = np.array([9, 10, 10])
    assert batching.choose_batch_lengths(lengths, longest) == (expected, pytest.approx(1 - 29 / (3 * expected[0])))


def test_the_beginning_of_a_step_is_that_of_its_batch():
    batches = Batches(helpers.text_examples([3, 5, 9, 12] * 6), 8, seed=3, batch_lengths=(8, 16))
    for step in (0, 2, 4):
        ((whole,),) = helpers.elements(batches, 1, 1, first_step=step)
        part = batches.beginning(5, step)
        for name in ("rows", "labels", "weights"):
            assert part[name].numpy().tolist() == whole[name][:5].tolist()
        assert part["inputs"]["input_ids"].numpy().tolist() == whole["inputs"]["input_ids"][:5].tolist()
        assert batches.length_of_each(step, 1) == [whole["inputs"]["input_ids"].shape[1]]
    assert len(batches.beginning(100)["labels"]) == 8
