import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests import helpers
from tftrain.networks import convolutional


@pytest.mark.parametrize("shape", [(8, 8, 1), (9, 13, 3), (28, 28, 1)])
@pytest.mark.parametrize("kind", convolutional.KINDS)
def test_images_become_float32_logits(kind, shape):
    network = convolutional.build(kind, shape, 7, filters=[4, 6], dense_units=5, dropout=0.1)
    pictures = np.random.default_rng(0).integers(0, 256, (2, *shape), dtype=np.uint8)
    logits = network(pictures)
    assert logits.shape == (2, 7) and logits.dtype == tf.float32


def parameters(network) -> int:
    return sum(int(np.prod(weight.shape)) for weight in network.weights)


def test_the_networks_have_the_parameters_that_arithmetic_says():
    # 3x3 kernels 1 -> 4 -> 6, two halvings of 8x8 to 2x2, dense 24 -> 5 -> 7.
    kernels = 9 * 1 * 4 + 9 * 4 * 6
    head = 24 * 5 + 5 + 5 * 7 + 7
    options = dict(filters=[4, 6], dense_units=5, dropout=0.0)
    assert parameters(convolutional.build("plain", (8, 8, 1), 7, **options)) == kernels + 4 + 6 + head
    assert parameters(convolutional.build("normalised", (8, 8, 1), 7, **options)) == kernels + 4 * (4 + 6) + head


def test_a_large_map_is_averaged_in_the_head():
    # 3x3 kernels 3 -> 4, one halving of 18x18 to 9x9, above 8x8.
    network = convolutional.build("plain", (18, 18, 3), 7, filters=[4], dense_units=5, dropout=0.0)
    assert parameters(network) == 9 * 3 * 4 + 4 + 4 * 5 + 5 + 5 * 7 + 7


@pytest.mark.parametrize(
    "size, expected",
    [
        (8, [64, 128]),
        (28, [64, 128]),
        (32, [64, 128]),
        (33, [64, 128, 256]),
        (128, [32, 64, 128, 256]),
        (256, [16, 32, 64, 128, 256]),
        (512, [16, 16, 32, 64, 128, 256]),
    ],
)
def test_stages_suit_the_size_of_the_images(size, expected):
    found = convolutional.stages(size)
    assert found == expected
    assert (
        parameters(convolutional.build("plain", (size, size, 3), 1000, filters=found, dense_units=128, dropout=0)) < 3e6
    )


@pytest.mark.parametrize("kind, normalisations", [("plain", 0), ("normalised", 2)])
@pytest.mark.parametrize("rate, dropouts", [(0.0, 0), (0.2, 2)])
def test_layers_are_as_asked_for(kind, normalisations, rate, dropouts):
    network = convolutional.build(kind, (8, 8, 1), 3, filters=[4, 4], dense_units=5, dropout=rate)
    found = [layer for layer in network.layers if isinstance(layer, keras.layers.Dropout)]
    assert [layer.rate for layer in found] == [rate] * dropouts
    assert sum(isinstance(layer, keras.layers.BatchNormalization) for layer in network.layers) == normalisations


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_logits_are_float32_in_mixed_precision(precision):
    keras.mixed_precision.set_global_policy(precision)
    network = helpers.build_network("plain")
    assert network.dtype_policy.name == precision
    assert network.output.dtype == tf.float32
    assert all(weight.dtype == tf.float32 for weight in network.weights)
