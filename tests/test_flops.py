import pytest
import tensorflow as tf
import tf_keras as keras

from tests import helpers
from tftrain import flops


def counted_by_tensorflow(call, signature) -> int:
    """What TensorFlow's own profiler counts of products, convolutions and elementwise operations."""
    graph = tf.function(call).get_concrete_function(signature).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    return tf.compat.v1.profiler.profile(graph, options=options).total_float_ops


def test_the_dense_network_by_hand():
    network = helpers.dense_network(width=6, hidden=8, classes=3)
    assert flops.forward(network, tf.TensorSpec([10, 6])) == 10 * 2 * (6 * 8 + 8 * 3)


def test_convolutions_by_hand():
    network = helpers.build_network("plain")
    found = flops.forward(network, tf.TensorSpec([5, 8, 8, 1], tf.uint8))
    products = [
        2 * layer.kernel.shape.num_elements() * (layer.output.shape[1] * layer.output.shape[2] if conv else 1)
        for layer in network.layers
        for conv in [isinstance(layer, keras.layers.Conv2D)]
        if conv or isinstance(layer, keras.layers.Dense)
    ]
    assert len(products) >= 3 and found == 5 * sum(products)


def test_a_bert_as_tensorflow_counts_it():
    network = helpers.build_network("bert")
    signature = {name: tf.TensorSpec([4, 8], tf.int32) for name in ("input_ids", "attention_mask")}
    found = flops.forward(lambda inputs: network(inputs).logits, signature)
    # A layer: four projections and two products of attention, a feed-forward network; then the pooler and the head.
    layer = 4 * 8 * (4 * 16 * 16 + 2 * 8 * 16 + 2 * 16 * 32)
    assert found == 2 * (layer + 4 * (16 * 16 + 16 * 3))
    total = counted_by_tensorflow(lambda inputs: network(inputs).logits, signature)
    assert found <= total < 1.5 * found  # elementwise operations weigh much in so small a network


@pytest.mark.parametrize(
    "equation, left, right, expected",
    [
        ("ab,bc->ac", [2, 3], [3, 5], 2 * 2 * 3 * 5),
        ("abnh,acnh->anbc", [2, 3, 4, 5], [2, 7, 4, 5], 2 * 2 * 3 * 4 * 5 * 7),
        ("...ab,...bc->...ac", [6, 2, 3], [1, 3, 5], 2 * 6 * 2 * 3 * 5),
    ],
)
def test_einsum(equation, left, right, expected):
    signature = [tf.TensorSpec(left), tf.TensorSpec(right)]
    assert flops.forward(lambda pair: tf.einsum(equation, *pair), signature) == expected


def test_what_is_known_only_when_it_runs_is_not_guessed():
    assert flops.forward(lambda x: tf.matmul(x, x), tf.TensorSpec([None, None])) is None


def test_peaks():
    assert flops.known_peak("NVIDIA A100-SXM4-80GB", "mixed_bfloat16") == 312e12
    assert flops.known_peak("NVIDIA H100 PCIe", "float32") == 378e12
    assert flops.known_peak("NVIDIA L40S", "mixed_float16") == 362e12
    assert flops.known_peak("Quadro K620", "float32") is None
    assert 1e8 < flops.measured_peak("float32", size=128) < 1e14
    assert flops.text(1.234e9) == "1.23 GFLOP" and flops.text(12) == "12 FLOP"
