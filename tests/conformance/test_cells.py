"""Every network trains on every kind of replication, precision, compilation and optimizer."""

import itertools

import numpy as np
import pytest

from tests import helpers
from tests.conformance import cells

STEPS = 14
LEARNING_RATES = {"sgd": 0.05, "adam": 1e-2, "adamw": 1e-2}


def test_the_cells_hold_every_pair_of_values_that_can_occur_together():
    covered = set().union(*map(cells.pairs, cells.pair_cover()))
    for (first, first_values), (second, second_values) in itertools.combinations(cells.FACTORS.items(), 2):
        for pair in itertools.product(first_values, second_values):
            # The one pair that no cell can hold; see `cells.feasible`.
            expected = {first: pair[0], second: pair[1]} != {"precision": "mixed_float16", "xla": False}
            assert (((first, pair[0]), (second, pair[1])) in covered) == expected, pair


def test_the_cells_leave_out_what_is_refused():
    assert all(cells.feasible(cell) for cell in cells.pair_cover())


@pytest.mark.slow
@pytest.mark.parametrize("network, replicas, precision, xla, optimizer", cells.pair_cover())
def test_trains(network, replicas, precision, xla, optimizer):
    run = helpers.start(replicas, precision, xla)
    assert (run.replicas, run.precision, run.xla) == (replicas, precision, xla)
    batches = helpers.batches_for(network, 24, 8, seed=3)
    model = helpers.make_model(
        run,
        lambda: helpers.build_network(network, dropout=0.1),
        helpers.recipe_optimizer(optimizer, LEARNING_RATES[optimizer], STEPS),
    )
    before = helpers.weights(model)
    losses = helpers.fit(model, run, batches, STEPS)

    assert np.all(np.isfinite(losses))
    # 24 examples are 3 steps of 8: the mean over the first epoch against that over the last.
    assert np.mean(losses[-3:]) < 0.9 * np.mean(losses[:3])
    assert any(np.any(old != new) for old, new in zip(before, helpers.weights(model)))
    for weight in model.network.trainable_weights:
        values = helpers.components(weight)
        assert len(values) == replicas
        assert np.all(np.isfinite(values[0]))
        assert all(np.array_equal(values[0], value) for value in values[1:]), weight.name
    for weight in model.network.non_trainable_weights:
        # The moving averages of batch normalisation are each replica's own; their mean is the weight.
        assert all(np.all(np.isfinite(value)) for value in helpers.components(weight)), weight.name
    assert int(model.optimizer.iterations.numpy()) == STEPS
