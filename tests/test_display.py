import types

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from tests import helpers
from tftrain.configuration import Showing
from tftrain.display import Display

NAMES = ["<b>first</b>", "$second", "third | last"]
CONFIG = {
    "flags": {"seed": 1, "run_dir": "x"},
    "recipe": {"epochs": 1},
    "command": "python -m a",
    "versions": {"b": "2"},
}


def shown(folder, replicas: int = 1, kind: str = "plain", **options):
    """Train and evaluate a tiny network for four steps and show it; the model and the display."""
    run = helpers.start(replicas)
    train, test = helpers.batches_for(kind, 60, 8, seed=1), helpers.batches_for(kind, 45, 8)
    model = helpers.make_model(run, lambda: helpers.build_network(kind))
    display = Display(folder, train, test, NAMES, model, run, 4, **options)
    display.begin("a-run", CONFIG, [("devices", "the CPU"), *display.notes], [0.5, 0.4, 0.3, 0.2])
    losses = helpers.fit(model, run, train, 4)
    display.point(4, {"loss": losses[-1]}, 3, 1.5)
    model.evaluate(test.distribute(run.strategy), steps=test.steps_per_epoch, verbose=0)
    display.evaluated(4, {"loss": 0.25})
    display.end(4, {"test_accuracy": 0.75})
    display.close()
    return model, display


def read(folder, run: str) -> EventAccumulator:
    found = EventAccumulator(str(folder / run), size_guidance={"tensors": 0})
    found.Reload()
    return found


def value(reader, tag: str) -> np.ndarray:
    (event,) = reader.Tensors(tag)
    return tensor_util.make_ndarray(event.tensor_proto)


@pytest.fixture(scope="module", params=[1, 2])
def finished(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("display")
    return folder, *shown(folder, request.param)


def test_every_tag_is_there_on_any_number_of_replicas(finished):
    folder, _, _ = finished
    scalars = {"loss", "weight_norm", "step_seconds", "flops_utilisation", "memory/resident_mib"}
    scalars |= {f"{activity}_share" for activity in ("waiting", "saving", "evaluation")}
    texts = {"configuration", "command", "versions", "label_names", "banner"}
    assert set(read(folder, "train").Tags()["tensors"]) == scalars | texts | {
        "custom_scalars__config__",
        "training_images",
    }
    curves = {f"precision_recall/{number:03}" for number in range(3)}
    assert set(read(folder, "test").Tags()["tensors"]) == curves | {"loss", "confusion_matrix", "worst_mistakes"}
    assert helpers.curves(folder / "preview")["learning_rate"] == [
        (step, pytest.approx(rate)) for step, rate in enumerate([0.5, 0.4, 0.3, 0.2])
    ]
    assert helpers.curves(folder / "trial") == {"results/test_accuracy": [(4, 0.75)]}


def test_values_are_those_of_the_run(finished):
    folder, model, display = finished
    curves = helpers.curves(folder / "train")
    assert curves["step_seconds"] == [(4, 0.5)]
    norm = np.linalg.norm(helpers.flat(weight.numpy() for weight in model.network.trainable_variables))
    assert curves["weight_norm"] == [(4, pytest.approx(norm, rel=1e-5))]
    # 28 examples in the steps 2 to 4... of 8 each: two convolutions of 3x3 would be counted by hand in test_flops.
    compute = display._compute
    assert curves["flops_utilisation"][0][1] == pytest.approx(compute.of_steps(1, 3) / 1.5 / compute.peak, rel=1e-5)
    assert compute.of_steps(1, 3) == 3 * 24 * compute._forward[0]
    for number in range(3):
        curve = value(read(folder, "test"), f"precision_recall/{number:03}")
        assert curve[0, 0] + curve[1, 0] == 45  # with threshold 0, every example counts as positive


def test_mistakes_are_the_examples_that_are_wrong(finished):
    _, model, display = finished
    examples = helpers.images(45)
    logits = model(examples.source.images, training=False).numpy()
    probabilities = tf.nn.softmax(logits).numpy()
    wrong = np.flatnonzero(logits.argmax(axis=1) != examples.labels)
    assert 0 < len(wrong)
    expected = sorted(wrong, key=lambda row: -probabilities[row].max())[:25]
    assert [mistake["confidence"] for mistake in display.mistakes] == pytest.approx(
        [probabilities[row].max() for row in expected], rel=1e-4
    )
    for mistake in display.mistakes:
        assert mistake["label"] == NAMES[examples.labels[mistake["row"]]]
        assert mistake["predicted"] == NAMES[logits[mistake["row"]].argmax()]


def test_texts_are_shown_as_they_are(tmp_path):
    _, display = shown(tmp_path, kind="bert", describe=lambda rows: [f"text <{row}> |" + "x" * 5000 for row in rows])
    assert all(mistake["text"].startswith(f"text <{mistake['row']}> |x") for mistake in display.mistakes)
    text = value(read(tmp_path, "test"), "worst_mistakes").item().decode()
    assert len(text.splitlines()) == 2 + len(display.mistakes) and "<" not in text
    assert "worst_mistakes" in read(tmp_path, "test").Tags()["tensors"]
    assert "training_images" not in read(tmp_path, "train").Tags()["tensors"]


def test_histograms_are_written_when_asked_for(tmp_path):
    model, _ = shown(tmp_path, kind="plain", showing=Showing(histograms=True))
    tags = [tag for tag in read(tmp_path, "train").Tags()["tensors"] if tag.startswith("weights/")]
    assert len(tags) == len(model.network.trainable_variables)


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown(None, showing=Showing(profile_steps=(1, 2)))
    assert not list(tmp_path.iterdir())


def test_a_fault_in_a_picture_is_told_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("tftrain.pictures.confusion_matrix", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        shown(tmp_path)


def test_compute_is_said_where_it_is_not_known(monkeypatch):
    run = helpers.start()
    model = types.SimpleNamespace(network=None)
    monkeypatch.setattr("tftrain.flops.forward", lambda *_: None)
    display = Display(None, helpers.batches_for("bert", 20, 8, seed=1), None, NAMES, model, run, 4)
    assert display.notes[0][1].startswith("not counted: ")
