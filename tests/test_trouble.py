"""Trainings that go wrong, and gradients that are clipped so that they do not."""

import re

import numpy as np
import pytest
import tf_keras as keras

from tests import helpers
from tests.test_resume import Killed, stop_at
from tests.test_trainer import train
from tftrain import trouble
from tftrain.checkpoints import Checkpoints
from tftrain.data.batching import Batches
from tftrain.errors import UserError
from tftrain.optimizers import make_schedule
from tftrain.trainer import Recipe

SEED, BATCH, ROWS, BAD = 4, 10, 101, 37
RUN = dict(epochs=1, batch_size=BATCH, seed=SEED, optimizer="adam", learning_rate=0.01, schedule="linear")


def spoilt():
    """Vectors, of which one is not a number."""
    examples = helpers.vectors(ROWS)
    examples.values[BAD] = np.nan
    return examples


@pytest.fixture(scope="module")
def bad_step() -> int:
    """Steps before the one that holds the bad row in the first epoch."""
    steps = helpers.elements(Batches(helpers.vectors(ROWS), BATCH, seed=SEED), 1, 11)
    (found,) = [number for number, step in enumerate(steps) if BAD in helpers.real_rows(step)]
    assert 3 <= found <= 9
    return found


@pytest.mark.parametrize("replicas, precision", [(1, "float32"), (2, "mixed_bfloat16")])
def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path, bad_step, replicas, precision):
    saving = dict(checkpoint_every="1")
    with pytest.raises(UserError) as caught:
        train(tmp_path / "run", replicas, precision=precision, examples=spoilt(), saving=saving, **RUN)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"step {bad_step + 1}: the loss or a gradient is not finite; the learning rate was ")
    rate = float(make_schedule(Recipe(**RUN), 11)(bad_step))
    assert float(re.search(r"rate was ([\d.e-]+);", message)[1]) == pytest.approx(rate, rel=1e-4)
    last = Checkpoints(tmp_path / "run").latest()
    assert last.step == bad_step and f"the last good checkpoint is {last.path}." in message
    assert all(np.all(np.isfinite(tensor)) for tensor in last.tensors().values())


def test_a_loss_that_is_not_finite_stops_the_run_though_gradients_are(tmp_path):
    class Apart(keras.layers.Layer):
        """Logits so far apart that the loss is more than float32 holds, with a gradient that is finite."""

        def build(self, shape):
            self.bias = self.add_weight("bias", [3], initializer="zeros")

        def call(self, inputs):
            return self.bias + np.array([3e38, -3e38, -3e38], np.float32)

    def build():
        inputs = keras.Input([6])
        return keras.Model(inputs, keras.layers.Dense(3, kernel_initializer="zeros")(inputs) + Apart()(inputs))

    with pytest.raises(UserError, match="step 1: the loss or a gradient is not finite"):
        train(tmp_path / "run", build=build, **RUN)
    assert Checkpoints(tmp_path / "run").latest() is None


def test_a_loss_scale_that_does_not_help_stops_the_run(tmp_path):
    examples = helpers.vectors(ROWS)
    examples.values[:] *= 1e6
    with pytest.raises(
        UserError, match="gradients have overflowed float16 20 times with the least loss scale, 1;"
    ) as e:
        train(tmp_path / "run", precision="mixed_float16", examples=examples, **RUN | dict(epochs=8))
    # From 2^15 down to 1 it takes 15 steps.
    assert str(e.value).startswith(f"step {15 + trouble.FLOOR_OVERFLOWS}: ")


@pytest.mark.parametrize("every", ["2", "1h"])
def test_a_rollback_leaves_the_batch_out_and_nothing_else(tmp_path, monkeypatch, bad_step, every, capfd):
    options = dict(examples=spoilt(), saving=dict(on_nan="rollback", checkpoint_every=every), **RUN)
    results = train(tmp_path / "run", **options)
    assert results["skipped_steps"] == [bad_step] and results["steps"] == 11
    assert capfd.readouterr().err.count("\nrollback ") == 1
    curve = helpers.curves(tmp_path / "run" / "tensorboard" / "train")["loss"]
    assert [step for step, _ in curve] == [11] and np.all(np.isfinite(curve))
    # The same steps by hand.
    run, batches = helpers.start(), Batches(helpers.vectors(ROWS), BATCH, seed=SEED)
    model = helpers.make_model(run, helpers.dense_network, helpers.recipe_optimizer("adam", 0.01, 11), seed=SEED)
    model.optimizer._learning_rate = make_schedule(Recipe(**RUN), 11)
    helpers.fit(model, run, batches, bad_step)
    model.optimizer.iterations.assign(bad_step + 1)
    helpers.fit(model, run, batches, 10 - bad_step, first_step=bad_step + 1)
    tensors = Checkpoints(tmp_path / "run").latest().tensors()
    names = sorted(name for name in tensors if name.startswith("network/"))
    for name, weight in zip(names, helpers.weights(model), strict=True):
        np.testing.assert_array_equal(tensors[name], weight)
    # Stopped after the rollback, it does not meet the batch again.
    with monkeypatch.context() as patch:
        stop_at(patch, bad_step + 2, save=True)
        with pytest.raises(Killed):
            train(tmp_path / "stopped", **options)
    capfd.readouterr()
    assert train(tmp_path / "stopped", **options)["weights_sha256"] == results["weights_sha256"]
    assert "\nrollback " not in capfd.readouterr().err


def test_rollbacks_end(tmp_path):
    saving = dict(on_nan="rollback", max_rollbacks=2)
    with pytest.raises(UserError, match=r"after 2 rollbacks \(--max_rollbacks\); the last good checkpoint is "):
        train(tmp_path / "run", examples=spoilt(), saving=saving, **RUN | dict(epochs=3))
    assert Checkpoints(tmp_path / "run").latest().step == 22


@pytest.mark.parametrize("replicas, precision", [(1, "float32"), (2, "float32"), (2, "mixed_float16")])
def test_the_gradient_over_all_replicas_is_clipped(replicas, precision):
    examples = helpers.vectors(16)

    def step(replicas, precision, clip_norm):
        run = helpers.start(replicas, precision, xla=precision == "mixed_float16")
        scaled = keras.mixed_precision.LossScaleOptimizer
        model = helpers.make_model(
            run,
            helpers.dense_network,
            lambda _: scaled(keras.optimizers.SGD(1.0)) if run.xla else keras.optimizers.SGD(1.0),
            clip_norm=clip_norm,
        )
        before = helpers.flat(helpers.weights(model))
        helpers.fit(model, run, Batches(examples, 16), 1)
        norm = float(model.watch.norm.result())
        return helpers.flat(helpers.weights(model)) - before, norm

    whole, _ = step(1, "float32", None)
    length = np.linalg.norm(whole)
    tolerance = 1e-5 if precision == "float32" else 1e-2
    clipped, norm = step(replicas, precision, length / 3)
    assert norm == pytest.approx(length, rel=tolerance)
    np.testing.assert_allclose(clipped, whole / 3, rtol=0, atol=tolerance * np.abs(whole).max())
    left, _ = step(replicas, precision, length * 3)
    np.testing.assert_allclose(left, whole, rtol=0, atol=tolerance * np.abs(whole).max())
