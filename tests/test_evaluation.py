"""A trained run, evaluated from its folder alone."""

import itertools
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from tests import helpers
from tftrain import evaluation, prediction, saved_run
from tftrain.checkpoints import Checkpoints
from tftrain.data.batching import Batches
from tftrain.errors import UserError

NAMES = ["ant", "bee", "cat"]
NETWORK = {
    "kind": "normalised",
    "input_shape": [8, 8, 1],
    "classes": 3,
    "filters": [4],
    "dense_units": 8,
    "dropout": 0.3,
}


@pytest.fixture
def run(tmp_path):
    """A run's folder as training leaves it, and its network."""
    from tftrain import training_state

    network = helpers.build_network("normalised", 0.3)
    generator = np.random.default_rng(0)
    for weight in network.weights:
        weight.assign(generator.uniform(0.1, 1, weight.shape) * (1 if "variance" in weight.name else 0.5))
    config = {"experiment": "cnn", "flags": {}, "recipe": {}, "network": NETWORK, "inputs": {}, "label_names": NAMES}
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_best(7, training_state.weights(network), {})
    checkpoints.wait()
    return tmp_path, network


@pytest.mark.parametrize("replicas", (1, 2))
def test_equals_numpy(run, replicas):
    folder, network = run
    examples = helpers.images(37)
    logits = network(examples.source.images).numpy().astype(np.float64)
    runtime = helpers.start(replicas)
    loaded = saved_run.load(folder, "cnn", runtime)
    found = evaluation.evaluate(loaded, Batches(examples, 8), runtime, "noise")
    assert found == helpers.read_json(folder / "evaluation.json")
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert found["loss"] == pytest.approx(-np.log(probabilities[np.arange(37), examples.labels]).mean(), rel=1e-5)
    assert found["accuracy"] == np.mean(logits.argmax(1) == examples.labels)
    assert (found["step"], found["examples"], np.sum(found["confusion"])) == (7, 37, 37)


def test_figures_worked_by_hand():
    labels, predicted = np.array([0, 0, 0, 1]), [0, 0, 1, 1]
    found = evaluation.measure(labels, np.log(np.eye(3)[predicted] * 0.7 + 0.1), NAMES)
    assert found["confusion"] == [[2, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert found["classes"][0] == {
        "label": "ant",
        "precision": 1,
        "recall": pytest.approx(2 / 3),
        "f1": 0.8,
        "examples": 3,
    }
    assert found["classes"][1]["f1"] == pytest.approx(2 / 3)
    assert found["classes"][2] == {"label": "cat", "precision": 0, "recall": 0, "f1": 0, "examples": 0}
    assert found["macro"]["precision"] == 0.75
    assert found["weighted"]["f1"] == pytest.approx((3 * 0.8 + 2 / 3) / 4)
    assert found["loss"] == pytest.approx(-(3 * np.log(0.8) + np.log(0.1)) / 4)
    assert any("cat" in line for line in evaluation.table(found))


@pytest.mark.parametrize(
    ("change", "line"),
    (
        ({"kind": "os.system"}, "network.kind"),
        ({"filters": [1 << 40]}, "network.filters"),
        ({"code": "x"}, "'code' is not known"),
        ({"classes": 4}, "network.classes"),
        ({"dense_units": True}, "network.dense_units"),
        ({"input_shape": [1, 1, 1]}, "to nothing"),
        ({"input_shape": [16, 16, 1], "filters": [65536], "dense_units": 65536}, "weights; at most"),
        ({"dense_units": 9}, "is not of shape"),
    ),
)
def test_a_strangers_network_is_checked(run, change, line):
    config = json.loads((run[0] / "config.json").read_text())
    config["network"] |= change
    (run[0] / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=line):
        saved_run.load(run[0], "cnn", helpers.start())


def test_other_runs_and_missing_checkpoints_are_refused(run):
    with pytest.raises(UserError, match="a run of 'cnn'"):
        saved_run.load(run[0], "bert", helpers.start())
    with pytest.raises(UserError, match=r"no last checkpoint .* --checkpoint=best"):
        saved_run.load(run[0], "cnn", helpers.start(), "last")
    shutil.rmtree(run[0] / "best")
    with pytest.raises(UserError, match="no best checkpoint"):
        saved_run.load(run[0], "cnn", helpers.start())


@pytest.mark.parametrize("replicas", (1, 2))
def test_predictions_come_in_input_order_and_say_what_cannot_be_read(run, tmp_path, replicas):
    folder, network = run
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    examples = helpers.images(7)
    for i, image in enumerate(examples.source.images):
        Image.fromarray(image[:, :, 0]).save(inputs / f"{i}.png")
    (inputs / "3b.png").write_bytes(b"no image")
    runtime = helpers.start(replicas)
    loaded = saved_run.load(folder, "cnn", runtime)
    rows = list(prediction.predict(loaded, prediction.image_files(str(inputs)), runtime, 4))
    names = [row["input"].rpartition("/")[2] for row in rows]
    assert names == ["0.png", "1.png", "2.png", "3.png", "3b.png", "4.png", "5.png", "6.png"]
    bad = rows.pop(4)
    assert bad["label"] is None and bad["error"]
    logits = network(examples.source.images).numpy().astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose([list(row["probabilities"].values()) for row in rows], expected, atol=1e-6)
    assert [row["label"] for row in rows] == [NAMES[i] for i in expected.argmax(1)]
    for format, lines in (("jsonl", 8), ("csv", 9)):
        output = tmp_path / f"rows.{format}"
        assert prediction.write([*rows, bad], NAMES, str(output), format) == (8, 1)
        assert len(output.read_text().splitlines()) == lines


def test_prediction_reads_no_further_than_a_batch(run):
    taken = []
    endless = (taken.append(i) or "/nowhere.png" for i in itertools.count())
    runtime = helpers.start()
    rows = prediction.predict(saved_run.load(run[0], "cnn", runtime), endless, runtime, 4)
    assert next(rows)["error"] == "No such file or directory"
    assert len(taken) == 4
