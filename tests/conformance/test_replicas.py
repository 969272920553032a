"""In float32 and without batch normalisation, N replicas compute what one computes with the same global batch.

Losses and weights are compared to 1e-5, which is the rounding of float32 over a few steps. Weights are compared
element by element, relative to the greatest of their tensor, after SGD: its update is linear in the gradient, so that
rounding stays rounding. Adam divides by the gradient's own size: where a gradient is zero in exact arithmetic, as that
of a BERT's attention key bias is (it shifts all of a row's scores alike), Adam makes whole steps of rounding noise.
So after Adam, the difference of all weights is compared with their norm, and those biases are left out.
"""

import functools

import numpy as np
import pytest

from tests import helpers

STEPS = 5
# 10 examples divide over neither 4 replicas nor the 26 examples: some rows stand in, the third batch is short.
COUNT, BATCH = 26, 10


def train(network: str, dropout: float, replicas: int, xla: bool = False, optimizer: str = "sgd", **options):
    run = helpers.start(replicas, xla=xla)
    model = helpers.make_model(
        run,
        lambda: helpers.build_network(network, dropout),
        helpers.recipe_optimizer(optimizer, 0.05 if optimizer == "sgd" else 1e-3, STEPS),
        **options,
    )
    batches = helpers.batches_for(network, COUNT, BATCH, seed=3, row_multiple=options.get("accumulate_steps", 1))
    losses = helpers.fit(model, run, batches, STEPS)
    names = [weight.name for weight in model.network.weights]
    return losses, dict(zip(names, helpers.weights(model)))


@functools.cache
def one_replica(network: str, dropout: float, optimizer: str = "sgd"):
    return train(network, dropout, replicas=1, optimizer=optimizer)


def assert_equal(found, expected):
    losses, weights = found
    expected_losses, expected_weights = expected
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name, value in expected_weights.items():
        if "key/bias" in name:  # zero and rounding
            assert np.abs(weights[name]).max() < 1e-7
            continue
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("network", ["plain", "bert"])
@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_compute_what_one_computes(network, dropout, replicas):
    assert_equal(train(network, dropout, replicas), one_replica(network, dropout))


@pytest.mark.slow
@pytest.mark.parametrize("network, dropout, replicas", [("plain", 0.3, 2), ("plain", 0.0, 4), ("bert", 0.3, 2)])
def test_compiled_replicas_compute_what_one_computes_uncompiled(network, dropout, replicas):
    assert_equal(train(network, dropout, replicas, xla=True), one_replica(network, dropout))


@pytest.mark.slow
def test_micro_batches_on_replicas_compute_what_one_computes():
    assert_equal(train("plain", 0.3, 2, accumulate_steps=3), one_replica("plain", 0.3))


@pytest.mark.slow
def test_dropout_takes_part():
    assert one_replica("plain", 0.0)[0][0] != one_replica("plain", 0.3)[0][0]
    assert one_replica("bert", 0.0)[0][0] != one_replica("bert", 0.3)[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["plain", "bert"])
def test_replicas_with_adam_compute_what_one_computes(network):
    losses, weights = train(network, 0.3, 2, optimizer="adam")
    expected_losses, expected = one_replica(network, 0.3, "adam")
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    names = [name for name in expected if "key/bias" not in name]
    difference = helpers.flat(weights[name] - expected[name] for name in names)
    assert np.linalg.norm(difference) < 1e-5 * np.linalg.norm(helpers.flat(expected[name] for name in names))
