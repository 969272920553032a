import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests import helpers
from tftrain import stateless_random
from tftrain.errors import UserError
from tftrain.stateless_random import Position, StatelessDropout

KEY = 2**63 + 12345


def draw(step, first_row, rows, blocks, key=KEY, xla=False):
    @tf.function(jit_compile=xla)
    def drawn(step, first_row):
        return stateless_random.words(key, step, first_row, rows, blocks)

    return drawn(tf.constant(step, tf.int64), tf.constant(first_row, tf.int64)).numpy()


def dropout(inputs, rate, step, first_row=0, key=KEY, xla=False, noise_shape=None):
    position = Position()
    layer = StatelessDropout(key, position)

    @tf.function(jit_compile=xla)
    def dropped(inputs, step, first_row):
        with position.at(step, first_row):
            return layer.dropout(inputs, rate, noise_shape)

    return dropped(tf.constant(inputs), tf.constant(step, tf.int64), tf.constant(first_row, tf.int64)).numpy()


def philox(key: int, counter: int, step: int) -> list[int]:
    """Philox 4x32-10, as its authors give it."""
    x = [counter & 0xFFFFFFFF, counter >> 32, step & 0xFFFFFFFF, step >> 32]
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(b >> 32) ^ x[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ x[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("step, first_row, blocks", [(0, 0, 1), (7, 3, 2), (2**33 + 1, 2**31, 3)])
def test_words_are_philox_counted_from_the_row(step, first_row, blocks, xla):
    expected = [word for block in range(2 * blocks) for word in philox(KEY, first_row * blocks + block, step)]
    assert draw(step, first_row, 2, blocks, xla=xla).tolist() == expected


def test_slices_are_parts_of_the_whole():
    whole = draw(5, 0, 12, 3)
    for rows in (1, 2, 3, 4, 6):
        parts = [draw(5, first, rows, 3) for first in range(0, 12, rows)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_stream_keys_differ_by_seed_and_path_and_repeat():
    dropout = [(stateless_random.DROPOUT, layer) for layer in range(10)]
    others = [(stateless_random.EXAMPLE_ORDER,), (stateless_random.BATCH_ORDER,), (stateless_random.AUGMENTATION,)]
    paths = [(seed, *path) for seed in (0, 1, 2, 2**31 - 1) for path in dropout + others]
    keys = {stateless_random.stream_key(*path) for path in paths}
    assert len(keys) == len(paths)
    assert all(0 <= key < 2**64 for key in keys)
    assert stateless_random.stream_key(3, 1, 2) == stateless_random.stream_key(3, 1, 2)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("shape", [(12, 5), (12, 4, 3), (12, 8)])
def test_dropout_of_a_slice_is_the_slice_of_dropout(shape, xla):
    inputs = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    whole = dropout(inputs, 0.4, step=9)
    for rows in (3, 4):
        parts = [dropout(inputs[i : i + rows], 0.4, 9, i, xla=xla) for i in range(0, 12, rows)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_has_its_rate_and_keeps_the_mean(rate, dtype):
    ones = tf.ones([100, 1000], dtype)
    found = dropout(ones, rate, step=1).astype(np.float64)
    dropped = np.mean(found == 0)
    # Five standard deviations of a share among 100,000.
    assert abs(dropped - rate) < 5 * np.sqrt(rate * (1 - rate) / 100_000)
    kept = found[found != 0]
    assert np.all(kept == kept[0])
    assert kept[0] == pytest.approx(1 / (1 - rate), rel={"float32": 2e-4, "float16": 1e-3, "bfloat16": 8e-3}[dtype])
    by_column = np.mean(found == 0, axis=0)
    assert np.std(by_column) == pytest.approx(np.sqrt(rate * (1 - rate) / 100), rel=0.2)


def test_neighbouring_steps_rows_and_keys_are_independent():
    ones = np.ones([50, 2000], np.float32)
    masks = [dropout(ones, 0.5, step, key=key) == 0 for step in (0, 1, 2) for key in (1, 2)]
    masks += [np.roll(masks[0], 1, axis=0), np.roll(masks[0], 1, axis=1)]
    for i, first in enumerate(masks):
        for second in masks[:i]:
            assert abs(np.mean(first == second) - 0.5) < 0.01


def test_rate_zero_changes_nothing():
    inputs = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    np.testing.assert_array_equal(dropout(inputs, 0.0, step=1), inputs)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_rate_next_to_one_stays_finite(dtype):
    found = dropout(tf.ones([10, 100], dtype), 1 - 1e-7, step=1)
    assert np.all(np.isfinite(found)) and np.mean(found == 0) > 0.99


def test_a_noise_shape_shares_the_mask():
    found = dropout(np.ones([64, 5, 3], np.float32), 0.5, step=1, noise_shape=(64, 1, 3))
    assert np.all(found == found[:, :1])
    assert 0 < np.mean(found == 0) < 1


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_masks_of_a_network_differ_by_step_row_and_layer_and_repeat(replicas, xla):
    """A constant input through two Dropout layers, whose outputs are the logits."""
    run = helpers.start(replicas, xla=xla)

    def build():
        inputs = keras.Input([32])
        return keras.Model(inputs, [keras.layers.Dropout(0.5)(inputs), keras.layers.Dropout(0.5)(inputs)])

    def masks(seed, step):
        network = build()
        position = stateless_random.install(network, seed)
        rows = 4 // replicas

        @tf.function(jit_compile=xla or None)
        def forward(step, first_row):
            with position.at(step, first_row):
                return tf.concat(network(tf.ones([rows, 32]), training=True), axis=1)

        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            return forward(tf.constant(step, tf.int64), tf.cast(number, tf.int64) * rows)

        outputs = run.strategy.experimental_local_results(tf.function(run.strategy.run)(replica))
        return np.concatenate([output.numpy() for output in outputs]) == 0

    first = masks(1, 0)
    halves = [*first[:, :32], *first[:, 32:]]
    assert len({half.tobytes() for half in halves}) == 8  # every row, in either layer
    assert not np.array_equal(first, masks(1, 1))
    assert not np.array_equal(first, masks(2, 0))
    np.testing.assert_array_equal(first, masks(1, 0))


def test_dropout_outside_of_the_training_step_is_an_error():
    network = helpers.dense_network(dropout=0.5)
    stateless_random.install(network, 0)
    with pytest.raises(RuntimeError, match="outside of the training step"):
        network(np.ones([2, 6], np.float32), training=True)
    assert np.all(np.isfinite(network(np.ones([2, 6], np.float32), training=False)))


@pytest.mark.parametrize(
    "layer", [keras.layers.GaussianNoise(0.1), keras.layers.RandomFlip(), keras.layers.AlphaDropout(0.1)]
)
def test_other_random_layers_are_refused(layer):
    network = keras.Sequential([keras.Input([4, 4, 1]), layer, keras.layers.Dropout(0.1)])
    with pytest.raises(UserError, match=rf"{layer.name}.*{type(layer).__name__}.*use Dropout layers"):
        stateless_random.install(network, 0)
