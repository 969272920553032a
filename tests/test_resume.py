"""A run that was stopped and goes on, against one that was never stopped."""

import math

import numpy as np
import pytest

from tests import helpers
from tests.test_trainer import points, train
from tftrain import signals, training_loop
from tftrain.checkpoints import Checkpoints
from tftrain.errors import UserError
from tftrain.keeper import Keeper

# 11 steps an epoch, the last of one row.
STEPS_PER_EPOCH = 11
RUN = dict(rows=101, epochs=3, dropout=0.3, schedule="cosine", optimizer="adam", learning_rate=0.01)


class Killed(Exception):
    pass


def stop_at(monkeypatch, step: int, save: bool = False) -> None:
    """Have the next training end after `step` steps, as if killed, or as by a signal where it saves."""

    def on_train_batch_end(keeper, batch, logs=None, original=Keeper.on_train_batch_end):
        original(keeper, batch, logs)
        if keeper._monitor.step >= step:
            if save:
                keeper.save()
            keeper._checkpoints.wait()
            raise Killed

    monkeypatch.setattr(Keeper, "on_train_batch_end", on_train_batch_end)
    monkeypatch.setattr("tftrain.monitor.MAX_STEPS_PER_EXECUTION", 1)


def stopped_and_resumed(monkeypatch, folder, step, save=False, **options) -> dict:
    with monkeypatch.context() as patch:
        stop_at(patch, step, save)
        with pytest.raises(Killed):
            train(folder, **options)
    return train(folder, **options)


def curves(folder, run: str, tags=("loss", "accuracy")) -> dict:
    found = helpers.curves(folder / "tensorboard" / run)
    return {tag: found[tag] for tag in tags}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    found = {}

    def run(replicas: int, kind: str = "dense"):
        if (replicas, kind) not in found:
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            found[replicas, kind] = folder, train(folder, replicas, build=NETWORKS[kind], **RUN)
        return found[replicas, kind]

    return run


def normalised():
    """With batch normalisation, whose averages each replica has for itself."""
    import tf_keras as keras

    inputs = keras.Input([6])
    x = keras.layers.BatchNormalization()(keras.layers.Dense(8)(inputs))
    x = keras.layers.Dropout(0.3)(keras.layers.ReLU()(x))
    return keras.Model(inputs, keras.layers.Dense(3, dtype="float32")(x))


NETWORKS = {"dense": None, "normalised": normalised}


@pytest.mark.parametrize(
    "replicas, kind, step, save",
    [
        (1, "dense", 16, True),  # within an epoch
        (2, "normalised", 16, True),
        (2, "normalised", 11, False),  # at an epoch's end, before its evaluation
        (1, "dense", 20, False),  # back to the end of the epoch before
        (1, "dense", 33, False),  # at the run's end
    ],
)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    monkeypatch, tmp_path, undisturbed, replicas, kind, step, save
):
    expected_folder, expected = undisturbed(replicas, kind)
    options = dict(replicas=replicas, build=NETWORKS[kind], **RUN)
    results = stopped_and_resumed(monkeypatch, tmp_path / "run", step, save, **options)
    assert results["weights_sha256"] == expected["weights_sha256"]
    for name in ("steps", "epochs", "train_loss", "test_loss", "test_accuracy", "best_test_accuracy", "best_step"):
        assert results[name] == expected[name], name
    for run in ("train", "test"):
        assert curves(tmp_path / "run", run) == curves(expected_folder, run)
    rates = helpers.curves(tmp_path / "run" / "tensorboard" / "train")["learning_rate"]
    assert [at for at, _ in rates] == points(STEPS_PER_EPOCH, 33)


def test_a_run_that_is_stopped_again_and_again_ends_as_one_that_was_not(monkeypatch, tmp_path, undisturbed):
    with monkeypatch.context() as patch:
        for step in (3, 7, 15, 22, 23, 31):
            stop_at(patch, step, save=True)
            with pytest.raises(Killed):
                train(tmp_path / "run", **RUN)
            patch.undo()
    results = train(tmp_path / "run", **RUN)
    folder, expected = undisturbed(1)
    assert results["weights_sha256"] == expected["weights_sha256"]
    assert curves(tmp_path / "run", "train") == curves(folder, "train")


def test_the_number_of_steps_in_an_execution_changes_nothing(monkeypatch, tmp_path, undisturbed):
    monkeypatch.setattr("tftrain.monitor.MAX_STEPS_PER_EXECUTION", 3)
    saving = dict(checkpoint_every="4")
    results = train(tmp_path / "run", saving=saving, **RUN)
    assert results["weights_sha256"] == undisturbed(1)[1]["weights_sha256"]


def test_time_and_pace_go_on(monkeypatch, tmp_path):
    results = stopped_and_resumed(monkeypatch, tmp_path / "run", 20, True, **RUN)
    state = Checkpoints(tmp_path / "run").latest().state
    assert results["seconds"] > state["seconds"] > results["seconds_to_first_step"] > 0
    examples, seconds = state["monitor"]["steady"]
    # Two first steps, each of the 10 examples of a batch, are not steady.
    assert examples == 3 * 101 - 20
    assert results["examples_per_second"] == pytest.approx(examples / seconds)


@pytest.mark.parametrize("replicas", [1, 4])
def test_the_optimizer_goes_on_on_another_number_of_replicas(tmp_path, monkeypatch, replicas):
    options = dict(rows=101, schedule="constant", optimizer="adam", learning_rate=0.01)
    train(tmp_path / "run", 2, epochs=3, **options)
    saved = Checkpoints(tmp_path / "run").latest().tensors()
    saved = [saved[name] for name in sorted(saved) if name.startswith("optimizer/")]
    moments = {}

    def run(loop):
        moments.update(model=loop._model, read=[v.numpy() for v in loop._model.optimizer.variables])
        return original(loop)

    original = training_loop.TrainingLoop.run
    monkeypatch.setattr(training_loop.TrainingLoop, "run", run)
    results = train(tmp_path / "run", replicas, epochs=5, **options)
    assert (results["steps"], results["replicas"]) == (55, replicas)
    assert saved[0] == 33 and any(np.any(array) for array in saved[1:])
    for found, expected in zip(moments["read"], saved, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert int(moments["model"].optimizer.iterations.numpy()) == 55
    # As if it had run on one kind of hardware all the time, to rounding.
    whole = train(tmp_path / "whole", 1, epochs=5, **options)
    assert results["test_loss"] == pytest.approx(whole["test_loss"], rel=1e-3)


def test_averages_are_averaged_on_another_number_of_replicas(tmp_path, monkeypatch):
    options = dict(rows=101, build=normalised)
    train(tmp_path / "run", 2, epochs=1, **options)
    tensors = Checkpoints(tmp_path / "run").latest().tensors()
    (name,) = [name for name in tensors if name.startswith("network/") and name.endswith("moving_mean@0")]
    each = tensors[name], tensors[name.replace("@0", "@1")]
    assert np.any(each[0] != each[1])
    read = []

    def restore(loop, checkpoint):
        note = original(loop, checkpoint)
        (mean,) = [weight for weight in loop._model.network.weights if "moving_mean" in weight.name]
        read.append(helpers.components(mean))
        return note

    original = training_loop.TrainingLoop.restore
    monkeypatch.setattr(training_loop.TrainingLoop, "restore", restore)
    train(tmp_path / "run", 4, epochs=2, **options)
    assert len(read[0]) == 4
    for value in read[0]:
        np.testing.assert_allclose(value, np.mean(each, axis=0), rtol=1e-6)


def test_a_loss_scale_is_restored_or_said_to_be_ignored(tmp_path, monkeypatch, capfd):
    options = dict(rows=41, optimizer="adam", learning_rate=0.01, schedule="constant")
    train(tmp_path / "run", precision="mixed_float16", steps=3, **options)
    saved = Checkpoints(tmp_path / "run").latest().state["loss_scale"]
    assert saved == {"scale": 2.0**15, "good_steps": 3, "overflows": 0}
    train(tmp_path / "run", precision="mixed_float16", steps=4, **options)
    assert Checkpoints(tmp_path / "run").latest().state["loss_scale"]["good_steps"] == 4
    capfd.readouterr()
    results = train(tmp_path / "run", precision="float32", steps=6, **options)
    assert "the loss scale of the run so far, 32768, is ignored" in capfd.readouterr().err
    assert results["steps"] == 6 and results["precision"] == "float32"
    train(tmp_path / "run", precision="mixed_float16", steps=7, **options)
    assert "float16 begins with 32768" in capfd.readouterr().err


def test_a_finished_run_says_so_and_goes_on_if_there_is_more(tmp_path, capfd):
    first = train(tmp_path / "run", **RUN)
    capfd.readouterr()
    again = train(tmp_path / "run", **RUN)
    assert again["weights_sha256"] == first["weights_sha256"] and again["seconds"] == first["seconds"]
    assert "has been trained for all of its 33 steps already" in capfd.readouterr().err
    more = train(tmp_path / "run", **RUN | dict(epochs=4))
    said = capfd.readouterr().err
    assert more["steps"] == 44
    assert "resumed      from step 33, in epoch 3" in said
    assert "--epochs=4, in place of --epochs=3" in said
    with pytest.raises(UserError, match=r"--epochs=3, 33 steps: the run has gone 44 steps already"):
        train(tmp_path / "run", **RUN)


def test_another_batch_size_goes_on_at_the_same_place_of_the_data(tmp_path, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        stop_at(patch, 15, save=True)
        with pytest.raises(Killed):
            train(tmp_path / "run", **RUN)
    # 40 of the second epoch's 101 examples are done: 2 of its 6 batches of 20, so 4 of it and 6 of the third follow.
    results = train(tmp_path / "run", batch_size=20, **RUN)
    assert "--batch_size=20, in place of --batch_size=10" in capfd.readouterr().err
    assert results["steps"] == 15 + 4 + 6 and results["epochs"] == 3
    rates = helpers.curves(tmp_path / "run" / "tensorboard" / "train")["learning_rate"]
    last = 0.01 * 0.5 * (1 + math.cos(math.pi * 24 / 25))
    assert rates[-1] == (25, pytest.approx(last, rel=1e-4))


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(seed=5), r"--seed=5: .* was begun with --seed=4, which may not change"),
        (dict(optimizer="sgd"), "--optimizer=sgd: .*--optimizer=adam"),
        (dict(rows=99), "the data are others"),
        (dict(given={"filters": [8, 16]}), "--filters=8,16: .*--filters=8, which may not change"),
    ],
)
def test_what_may_not_change_is_refused(begun, options, message):
    with pytest.raises(UserError, match=message) as caught:
        train(begun, **RUN | dict(given={"filters": [8]}) | options)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun") / "run"
    train(folder, given={"filters": [8]}, **RUN | dict(epochs=1))
    return folder


def test_never_refuses_a_used_folder(begun):
    with pytest.raises(UserError, match="--resume=never"):
        train(begun, saving=dict(resume="never"), **RUN)


def test_another_network_is_refused_though_no_flag_tells(begun):
    with pytest.raises(UserError, match="the checkpoint"):
        train(begun, build=lambda: helpers.dense_network(hidden=9), given={"filters": [8]}, **RUN)


def test_a_signal_in_training_saves_and_is_raised(tmp_path, monkeypatch, undisturbed, capfd):
    def on_train_batch_end(keeper, batch, logs=None, original=Keeper.on_train_batch_end):
        if keeper._monitor.step >= 5:
            signals.defer()
            signals._note(15)
        original(keeper, batch, logs)

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "on_train_batch_end", on_train_batch_end)
        with pytest.raises(signals.Interrupted) as caught:
            train(tmp_path / "run", **RUN)
    assert caught.value.status == 143
    assert "by SIGTERM; saved at step" in capfd.readouterr().err
    assert Checkpoints(tmp_path / "run").latest().step >= 5
    assert train(tmp_path / "run", **RUN)["weights_sha256"] == undisturbed(1)[1]["weights_sha256"]


def test_many_epochs_trace_nothing_anew(tmp_path, monkeypatch):
    models = {}
    original = training_loop.TrainingLoop.run

    def run(loop):
        models["model"] = loop._model
        return original(loop)

    monkeypatch.setattr(training_loop.TrainingLoop, "run", run)
    train(tmp_path / "run", rows=30, batch_size=10, epochs=30)
    assert models["model"]._gradients.experimental_get_tracing_count() == 1
    assert models["model"].train_function.experimental_get_tracing_count() == 1
