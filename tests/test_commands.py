"""The commands from end to end, over the data that ships, each in a process of its own."""

import concurrent.futures
import json
import os

import numpy as np
import pytest

from tests import helpers
from tests.data.sets_on_disk import write_set
from tests.networks.test_bert import checkpoint, save
from tests.test_trainer import RESULTS

pytestmark = pytest.mark.slow

STEPS = 4
SHARED = [f"--steps={STEPS}", "--batch_size=16", "--eval_batch_size=250", "--gpus=0", "--seed=3"]
CNN = ["tftrain.cnn", *SHARED, "--network=plain", "--filters=4", "--dense_units=8", "--dropout=0.2"]
BERT = ["tftrain.bert", *SHARED, "--layers=1", "--hidden_size=16", "--heads=2", "--intermediate_size=32"]
BERT += ["--vocabulary_size=400", "--max_length=16"]
RUNS = {
    "cnn": [*CNN, "--precision=float32"],
    "cnn again": [*CNN, "--precision=float32"],
    "cnn on 2": [*CNN, "--precision=float32", "--virtual_devices=2"],
    "bert": [*BERT, "--precision=float32"],
    "bert again": [*BERT, "--precision=float32"],
    "bert on 2": [*BERT, "--precision=float32", "--virtual_devices=2", "--xla=on"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The finished commands by name: (folder, output)."""
    parent = tmp_path_factory.mktemp("runs")
    folders = {name: parent / name.replace(" ", "-") for name in RUNS}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outputs = pool.map(lambda name: helpers.run_command(*RUNS[name], f"--run_dir={folders[name]}"), RUNS)
        return {name: (folders[name], output) for name, output in zip(RUNS, outputs)}


@pytest.mark.parametrize("name", RUNS)
def test_a_command_succeeds_and_leaves_its_results(runs, name):
    folder, output = runs[name]
    assert output.returncode == 0, output.stderr
    assert output.stdout == ""
    results = helpers.read_json(folder / "results.json")
    assert set(results) == RESULTS
    assert results["steps"] == STEPS
    assert results["test_examples"] == 2000
    assert results["global_batch_size"] == 16
    assert results["replicas"] == (2 if "2" in name else 1)
    assert results["precision"] == "float32"
    assert results["xla"] == (name == "bert on 2")
    assert np.isfinite([results["train_loss"], results["test_loss"]]).all()
    assert 0 <= results["test_accuracy"] <= results["best_test_accuracy"] <= 1


@pytest.mark.parametrize("name", RUNS)
def test_a_command_leaves_its_configuration(runs, name):
    config = helpers.read_json(runs[name][0] / "config.json")
    assert config["flags"]["seed"] == 3 and config["flags"]["steps"] == STEPS
    assert config["flags"]["learning_rate"] == config["recipe"]["learning_rate"] > 0
    assert config["chosen"]["precision"] == "float32"
    assert len(config["label_names"]) == len(set(config["label_names"])) > 1
    assert all(isinstance(label, str) for label in config["label_names"])


@pytest.mark.parametrize("name", RUNS)
def test_tensorboard_reads_the_curves(runs, name):
    folder, _ = runs[name]
    results = helpers.read_json(folder / "results.json")
    train = helpers.curves(folder / "tensorboard" / "train")
    assert set(train) >= {"loss", "accuracy", "learning_rate"}
    assert train["loss"][-1][0] == STEPS
    test = helpers.curves(folder / "tensorboard" / "test")
    assert test["loss"] == [(STEPS, pytest.approx(results["test_loss"]))]
    assert test["accuracy"] == [(STEPS, pytest.approx(results["test_accuracy"]))]


@pytest.mark.parametrize("name", ["cnn", "bert"])
def test_the_same_command_ends_with_the_same_weights(runs, name):
    first, second = (helpers.read_json(runs[run][0] / "results.json") for run in (name, f"{name} again"))
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["test_loss"] == second["test_loss"]


@pytest.mark.parametrize("name", ["cnn", "bert"])
def test_two_devices_compute_what_one_computes(runs, name):
    one, two = (helpers.read_json(runs[run][0] / "results.json") for run in (name, f"{name} on 2"))
    for key in ("train_loss", "test_loss"):
        assert two[key] == pytest.approx(one[key], rel=1e-4)
    assert two["test_accuracy"] == pytest.approx(one["test_accuracy"], abs=2 / 2000)  # a tie may fall either way
    assert two["parameters"] == one["parameters"]


def test_what_was_chosen_is_said_at_the_start(runs):
    for name in ("cnn on 2", "bert on 2"):
        folder, output = runs[name]
        assert "2 virtual devices on the CPU; 2 replicas" in output.stderr
        assert f"precision    float32; XLA {'on' if name == 'bert on 2' else 'off'}" in output.stderr
        assert "16 examples in a step, 8 on each replica" in output.stderr
        assert str(folder) in output.stderr
        assert "python -m tftrain.dashboard " in output.stderr


def test_the_number_of_compilations_is_said(runs):
    folder, output = runs["bert on 2"]
    lengths = helpers.read_json(folder / "config.json")["chosen"]["batch_lengths"]
    (line,) = [line for line in output.stderr.splitlines() if line.startswith("compiling ")]
    assert f"{len(lengths)} shapes for training and " in line
    assert not [line for line in runs["bert"][1].stderr.splitlines() if line.startswith("compiling ")]


def test_nothing_of_tensorflow_s_own_is_on_the_terminal(runs):
    for name, (_, output) in runs.items():
        for line in output.stderr.splitlines():
            assert "WARNING" not in line and "oneDNN" not in line, f"{name}: {line}"


def test_a_pretrained_folder_is_fine_tuned_and_new_layers_are_named(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    save(model, checkpoint("bert.", labels=2))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop"]
    (model / "vocab.txt").write_text("\n".join(words) + "\n")
    generator = np.random.default_rng(0)
    # Texts that are cut to a length that is no multiple of 8, and to all the positions that the model has.
    rows = [{"text": " ".join(generator.choice(words[5:], 4 + i % 9)), "label": i % 3} for i in range(20)]
    data = write_set(tmp_path, "text", {"train": rows, "test": rows[:7]}, ["x", "y", "z"], "tfrecord")
    output = helpers.run_command(
        "tftrain.bert", f"--model={model}", f"--dataset={data}", "--steps=2", "--batch_size=8", "--max_length=10",
        "--gpus=0", "--precision=float32", f"--run_dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert output.returncode == 0, output.stderr
    (line,) = [line for line in output.stderr.splitlines() if line.startswith("new ")]
    assert line.split(maxsplit=1)[1] == "classifier.bias, classifier.weight"
    assert helpers.read_json(tmp_path / "run" / "results.json")["test_examples"] == 7
    assert helpers.read_json(tmp_path / "run" / "config.json")["label_names"] == ["x", "y", "z"]


def test_more_positions_than_a_model_has_are_refused(tmp_path):
    save(tmp_path, checkpoint())
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    output = helpers.run_command(
        "tftrain.bert", f"--model={tmp_path}", "--max_length=600", "--gpus=0", f"--run_dir={tmp_path / 'run'}"
    )
    assert output.returncode == 2
    assert output.stderr.splitlines() == ["error: --max_length=600: the model has 10 positions; give no more"]
    assert not os.path.exists(tmp_path / "run" / "results.json")


@pytest.mark.parametrize("name, arguments", [("cnn", []), ("cnn on 2", ["--virtual_devices=2", "--checkpoint=last"])])
def test_a_run_is_evaluated_from_its_folder(runs, name, arguments):
    folder, _ = runs[name]
    results = helpers.read_json(folder / "results.json")
    options = ["--mode=evaluate", "--gpus=0", "--precision=float32", "--eval_batch_size=250", *arguments]
    output = helpers.run_command("tftrain.cnn", f"--run_dir={folder}", *options)
    assert output.returncode == 0, output.stderr
    assert output.stdout == ""
    found = helpers.read_json(folder / "evaluation.json")
    assert f"accuracy     {found['accuracy']:.4f} on 2,000 examples" in output.stderr
    assert found["accuracy"] == pytest.approx(results["test_accuracy"], abs=1e-6)
    assert found["loss"] == pytest.approx(results["test_loss"], abs=1e-5)
    assert len(found["classes"]) == 10


@pytest.mark.parametrize("run_dir, line", [([], "needs --run_dir=FOLDER"), (["--run_dir=/nowhere"], "no such folder")])
def test_evaluation_without_a_run_is_refused(run_dir, line):
    output = helpers.run_command("tftrain.cnn", "--mode=evaluate", *run_dir)
    assert output.returncode == 2
    (error,) = output.stderr.splitlines()
    assert line in error


def test_images_are_predicted_from_a_runs_folder(runs, tmp_path):
    for i in range(300):
        (tmp_path / f"{i:03}.png").write_bytes(b"no image")
    command = f"--run_dir={runs['cnn'][0]}", f"--input={tmp_path}", "--gpus=0"
    output = helpers.run_command("tftrain.cnn", "--mode=predict", *command)
    assert output.returncode == 0, output.stderr
    assert [json.loads(line)["input"][-7:] for line in output.stdout.splitlines()] == [
        f"{i:03}.png" for i in range(300)
    ]
    assert "300 inputs could not be read" in output.stderr
