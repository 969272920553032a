import math

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests import helpers
from tftrain import optimizers
from tftrain.configuration import Recipe


def rates(kind: str, peak: float, warmup: int, total: int) -> list[float]:
    schedule = optimizers.Schedule(kind, peak, warmup, total)
    return [float(schedule(tf.constant(step, tf.int64))) for step in range(total + 1)]


@pytest.mark.parametrize("peak, warmup, total", [(0.1, 0, 10), (1e-3, 3, 10), (2.0, 10, 10), (0.5, 1, 2)])
def test_schedules_have_their_formulas(peak, warmup, total):
    done = [min(1, max(0, (step - warmup) / max(1, total - warmup))) for step in range(total)]
    formulas = {
        "constant": [peak] * total,
        "linear": [peak * (1 - share) for share in done],
        "cosine": [peak * (1 + math.cos(math.pi * share)) / 2 for share in done],
    }
    for kind, expected in formulas.items():
        expected[:warmup] = [peak * (step + 1) / warmup for step in range(warmup)]
        np.testing.assert_allclose(rates(kind, peak, warmup, total)[:total], expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 0.1, 7])
def test_the_rate_is_near_zero_at_the_last_step_alone(kind, warmup):
    # 101 rows in batches of 10, 5 epochs.
    steps = 5 * math.ceil(101 / 10)
    assert steps == 55
    recipe = Recipe(batch_size=10, epochs=5, learning_rate=1.0, schedule=kind, warmup=warmup)
    schedule = optimizers.make_schedule(recipe, steps)
    found = [float(schedule(step)) for step in range(steps)]
    assert found[-1] == min(found)
    assert 0 < found[-1] < 0.025
    assert float(schedule(steps)) == pytest.approx(0, abs=1e-6)
    assert found.index(max(found)) <= max(1, round(warmup if warmup >= 1 else warmup * steps))
    assert sum(rate < 0.025 for rate in found) <= 5


@pytest.mark.parametrize("warmup, expected", [(0, 0), (0.1, 20), (0.999, 200), (1, 1), (50, 50), (500, 200)])
def test_warm_up_is_a_share_or_a_number_of_steps(warmup, expected):
    recipe = Recipe(batch_size=1, steps=200, learning_rate=1.0, schedule="linear", warmup=warmup)
    assert optimizers.make_schedule(recipe, 200).warmup_steps == expected


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_weight_decay_is_of_kernels_and_embeddings_alone(optimizer, replicas, precision):
    run = helpers.start(replicas, precision, xla=True)
    recipe = Recipe(batch_size=2, steps=1, learning_rate=0.5, optimizer=optimizer, weight_decay=0.1)
    with run.strategy.scope():
        network = keras.Sequential(
            [
                keras.Input([4], dtype=tf.int32),
                keras.layers.Embedding(9, 6),
                keras.layers.LayerNormalization(beta_initializer="ones"),
                keras.layers.Conv1D(3, 2, bias_initializer="ones"),
                keras.layers.BatchNormalization(beta_initializer="ones"),
                keras.layers.Flatten(),
                keras.layers.Dense(2, bias_initializer="ones"),
            ]
        )
        variables = network.trainable_variables
        made = optimizers.make_optimizer(recipe, 1, variables)
    before = [variable.numpy() for variable in variables]

    @tf.function
    def step():
        def replica():
            made.apply_gradients([(tf.zeros(variable.shape), variable) for variable in variables])

        run.strategy.run(replica)

    step()
    decayed = 0
    for variable, old in zip(variables, before):
        decays = variable.name.split("/")[-1].split(":")[0] in ("kernel", "embeddings")
        decayed += decays
        # Decoupled: the weight times learning rate times decay.
        expected = old * (1 - 0.5 * 0.1) if decays else old
        for value in helpers.components(variable):
            np.testing.assert_allclose(value, expected, rtol=1e-6 if decays else 0, err_msg=variable.name)
    assert decayed == 3


def test_adamw_decays_by_default_and_the_others_do_not():
    def decay(name):
        recipe = Recipe(batch_size=1, steps=1, learning_rate=0.1, optimizer=name)
        return optimizers.make_optimizer(recipe, 1, []).weight_decay

    assert decay("adamw") == 0.01
    assert decay("adam") is None
    assert decay("sgd") is None


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_two_steps_are_the_textbook_s(name):
    recipe = Recipe(batch_size=1, steps=4, learning_rate=0.1, optimizer=name, schedule="linear")
    variable = tf.Variable([1.0, -2.0])
    made = optimizers.make_optimizer(recipe, 4, [variable])
    gradients = [np.array([0.5, -1.0]), np.array([0.25, 3.0])]
    for gradient in gradients:
        made.apply_gradients([(tf.constant(gradient, tf.float32), variable)])
    expected, first, second = np.array([1.0, -2.0]), 0, 0
    for step, gradient in enumerate(gradients):
        rate = 0.1 * (1 - step / 4)
        if name == "sgd":
            first = 0.9 * first - rate * gradient
            expected = expected + first
        else:
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            corrected = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
            expected = expected - rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-7)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_the_loss_is_scaled_under_float16_alone(precision):
    keras.mixed_precision.set_global_policy(precision)
    made = optimizers.make_optimizer(Recipe(batch_size=1, steps=1, learning_rate=0.1), 1, [])
    scaled = isinstance(made, keras.mixed_precision.LossScaleOptimizer)
    assert scaled == (precision == "mixed_float16")
    if scaled:
        assert made.dynamic and float(made.loss_scale) == 2**15
