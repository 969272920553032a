import hashlib
import json
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from tests import helpers
from tftrain import trainer
from tftrain.checkpoints import Checkpoints
from tftrain.configuration import Recipe, Saving
from tftrain.data.batching import Batches
from tftrain.errors import UserError
from tftrain.run_directory import RunDirectory

RESULTS = {
    "steps",
    "epochs",
    "train_loss",
    "test_examples",
    "test_loss",
    "test_accuracy",
    "best_test_accuracy",
    "examples_per_second",
    "seconds_to_first_step",
    "seconds",
    "replicas",
    "global_batch_size",
    "precision",
    "xla",
    "parameters",
    "weights_sha256",
    "best_metric",
    "best_score",
    "best_step",
    "stopped_early",
    "skipped_steps",
}


def points(steps_per_epoch: int, total_steps: int) -> list[int]:
    """The steps of a curve's points: 20 apart, and the ends of the epochs and of the run."""
    return sorted({*range(20, total_steps + 1, 20), *range(steps_per_epoch, total_steps, steps_per_epoch), total_steps})


def train(
    folder,
    replicas=1,
    rows=101,
    dropout=0.0,
    precision="float32",
    build=None,
    saving=None,
    given=None,
    examples=None,
    **options,
) -> dict:
    """Train the dense network, or what `build` returns, on `rows` vectors through the whole trainer.

    Args:
      saving: of Saving, as a dictionary.
      given: flags beside the recipe's.
      examples: other ones to train on.
    """
    options = {"batch_size": 10, "learning_rate": 0.05, "optimizer": "sgd", "seed": 4} | options
    if "steps" not in options:
        options.setdefault("epochs", 2)
    recipe = Recipe(**options)
    chosen = helpers.start(replicas, precision, xla=precision == "mixed_float16")
    saving = Saving(**(saving or {}))
    task = trainer.Task(
        name="dense",
        train=Batches(
            examples or helpers.vectors(rows),
            recipe.batch_size,
            seed=recipe.seed,
            row_multiple=recipe.accumulate_steps,
        ),
        test=Batches(helpers.vectors(57, seed=1), recipe.evaluation_batch_size),
        label_names=["a", "b", "c"],
        build_network=build or (lambda: helpers.dense_network(dropout=dropout)),
    )
    run = RunDirectory(folder, "dense", saving.resume)
    try:
        return trainer.train(task, recipe, chosen, run, saving=saving, flags={"seed": recipe.seed, **(given or {})})
    finally:
        run.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Runs of one recipe on 1, 2 and 4 replicas: folder, results and console of each."""
    found = {}
    for replicas in (1, 2, 4):
        folder = tmp_path_factory.mktemp("runs") / str(replicas)
        found[replicas] = folder, train(folder, replicas, epochs=3, eval_batch_size=16)
    return found


def test_a_run_leaves_its_results(finished):
    folder, results = finished[2]
    assert set(results) == RESULTS
    assert helpers.read_json(folder / "results.json") == json.loads(json.dumps(results))
    assert results["steps"] == 33 and results["epochs"] == 3
    assert results["test_examples"] == 57
    assert (results["replicas"], results["global_batch_size"]) == (2, 10)
    assert (results["precision"], results["xla"]) == ("float32", False)
    assert results["parameters"] == 6 * 8 + 8 + 8 * 3 + 3
    assert re.fullmatch("[0-9a-f]{64}", results["weights_sha256"])
    assert 0 < results["seconds_to_first_step"] < results["seconds"]
    assert results["examples_per_second"] > 0
    assert results["best_test_accuracy"] >= results["test_accuracy"] > 0.5


def test_a_run_leaves_its_configuration(finished):
    folder, _ = finished[2]
    config = helpers.read_json(folder / "config.json")
    assert config["experiment"] == "dense"
    assert config["label_names"] == ["a", "b", "c"]
    assert config["flags"] == {"seed": 4}
    assert config["recipe"]["batch_size"] == 10 and config["recipe"]["eval_batch_size"] == 16
    assert config["chosen"]["replicas"] == 2
    assert config["chosen"]["strategy"] == "MirroredStrategy"
    assert config["chosen"]["reduction"] == "reduction to one device"
    assert config["chosen"]["precision"] == "float32"
    assert config["chosen"]["xla"] is False
    assert config["chosen"]["total_steps"] == 33
    assert config["versions"]["tensorflow"] == tf.__version__


def test_the_checkpoint_holds_the_weights_and_the_step(finished):
    folder, results = finished[1]
    checkpoint = Checkpoints(folder).latest()
    tensors = checkpoint.tensors()
    names = sorted(name for name in tensors if name.startswith("network/"))
    digest = hashlib.sha256(b"".join(tensors[name].astype("<f4").tobytes() for name in names))
    assert digest.hexdigest() == results["weights_sha256"]
    assert checkpoint.step == tensors["optimizer/000/iteration"] == 33


def test_the_test_results_are_those_of_the_weights(finished):
    folder, results = finished[4]
    network = helpers.dense_network()
    tensors = Checkpoints(folder).latest().tensors()
    network.set_weights([tensors[name] for name in sorted(tensors) if name.startswith("network/")])
    examples = helpers.vectors(57, seed=1)
    logits = network(examples.values).numpy().astype(np.float64)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(57), examples.labels]
    assert results["test_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert results["test_accuracy"] == pytest.approx(np.mean(logits.argmax(1) == examples.labels), rel=1e-9)


def test_curves_are_the_same_on_any_number_of_replicas(finished):
    expected = {run: helpers.curves(finished[1][0] / "tensorboard" / run) for run in ("train", "test")}
    assert [step for step, _ in expected["train"]["loss"]] == points(11, 33)
    assert [step for step, _ in expected["train"]["learning_rate"]] == points(11, 33)
    assert [step for step, _ in expected["test"]["loss"]] == [11, 22, 33]
    for replicas in (2, 4):
        for run, tags in (("train", ("loss", "accuracy", "learning_rate")), ("test", ("loss", "accuracy"))):
            found = helpers.curves(finished[replicas][0] / "tensorboard" / run)
            for tag in tags:
                assert [step for step, _ in found[tag]] == [step for step, _ in expected[run][tag]]
                np.testing.assert_allclose(
                    [value for _, value in found[tag]], [value for _, value in expected[run][tag]], rtol=1e-4
                )
        for name in ("train_loss", "test_loss", "test_accuracy", "best_test_accuracy"):
            assert finished[replicas][1][name] == pytest.approx(finished[1][1][name], rel=1e-4)


def test_an_epoch_s_train_loss_is_the_mean_of_its_examples(finished):
    folder, results = finished[1]
    (step, loss) = helpers.curves(folder / "tensorboard" / "train")["loss"][-1]
    assert step == 33  # since the end of the epoch before
    assert results["train_loss"] == pytest.approx(loss, rel=1e-6)


def test_the_console_tells_the_same_on_any_number_of_replicas(tmp_path, capfd):
    told = []
    for replicas in (1, 2):
        train(tmp_path / str(replicas), replicas, epochs=1)
        lines = capfd.readouterr()
        assert lines.out == ""
        (epoch,) = [line for line in lines.err.splitlines() if line.startswith("epoch 1/1: step 11, ")]
        told.append(
            re.match(r"epoch 1/1: step 11, train loss \S+ accuracy \S+, test loss \S+ accuracy \d\.\d+", epoch)[0]
        )
        assert f"{replicas} replica" in lines.err
        if replicas == 2:
            assert "gradients: reduction to one device" in lines.err
            assert "NCCL takes one replica a GPU" in lines.err
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "options, steps, epochs", [(dict(epochs=5), 55, 5), (dict(steps=4), 4, 4 / 11), (dict(steps=25), 25, 25 / 11)]
)
def test_epochs_and_steps_are_counted(tmp_path, options, steps, epochs):
    results = train(tmp_path / "run", schedule="linear", learning_rate=0.1, **options)
    assert results["steps"] == steps
    assert results["epochs"] == pytest.approx(epochs)
    rates = helpers.curves(tmp_path / "run" / "tensorboard" / "train")["learning_rate"]
    assert [step for step, _ in rates] == points(11, steps)
    # The rate of the step itself: near 0 at the last, and there alone.
    assert [rate for _, rate in rates] == pytest.approx(
        [0.1 * (1 - (step - 1) / steps) for step in points(11, steps)], rel=1e-5
    )


def test_the_same_run_ends_with_the_same_weights(tmp_path):
    hashes = [train(tmp_path / str(i), epochs=1, dropout=0.3)["weights_sha256"] for i in range(2)]
    assert hashes[0] == hashes[1]
    assert train(tmp_path / "other", epochs=1, dropout=0.3, seed=5)["weights_sha256"] != hashes[0]


def test_a_run_of_one_step_has_no_steady_speed(tmp_path):
    results = train(tmp_path / "run", steps=1)
    assert math.isnan(results["examples_per_second"])
    assert helpers.read_json(tmp_path / "run" / "results.json")["examples_per_second"] is None


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(batch_size=3), "--batch_size=3: smaller than the number of replicas, 4"),
        (dict(eval_batch_size=3), "--eval_batch_size=3: smaller than the number of replicas, 4"),
        (dict(accumulate_steps=3), "--accumulate_steps=3: "),
    ],
)
def test_batches_that_cannot_be_divided_are_refused(tmp_path, options, message):
    with pytest.raises(UserError) as caught:
        train(tmp_path / "run", replicas=4, **options)
    assert str(caught.value).startswith(message)
