import time

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata as trial_metadata
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util

from tests import helpers
from tftrain import dashboards
from tftrain.dashboards import Dashboards

HOSTILE = "<script>alert(1)</script> | `a` *b* [c](http://d) \n# e"


def read(folder) -> EventAccumulator:
    """One of TensorBoard's runs, by its own reader."""
    found = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    return found


def test_scalars_are_read_back_by_tensorboard(tmp_path):
    written = Dashboards(tmp_path)
    for step in (1, 5, 11):
        written.scalars("train", step, {"loss": 1 / step, "accuracy": 0.5})
    written.scalars("test", 11, {"loss": 2.0})
    written.flush()
    found = helpers.curves(tmp_path / "train")
    assert set(found) == {"loss", "accuracy"}
    assert [step for step, _ in found["loss"]] == [1, 5, 11]
    assert [value for _, value in found["loss"]] == pytest.approx([1, 1 / 5, 1 / 11])
    assert helpers.curves(tmp_path / "test") == {"loss": [(11, 2.0)]}
    written.close()


def test_a_continued_run_has_one_curve(tmp_path):
    killed = Dashboards(tmp_path)
    for step in (2, 4, 6, 8):
        killed.scalars("train", step, {"loss": float(step), "only_then": 1.0})
    killed.flush()
    continued = Dashboards(tmp_path, first_step=5)
    for step in (6, 10):
        continued.scalars("train", step, {"loss": -float(step)})
    continued.close()
    found = helpers.curves(tmp_path / "train")
    assert found == {"loss": [(2, 2.0), (4, 4.0), (6, -6.0), (10, -10.0)], "only_then": [(2, 1.0), (4, 1.0)]}


def test_a_file_that_a_killed_process_left_unfinished_is_continued(tmp_path):
    killed = Dashboards(tmp_path)
    for step in (2, 4):
        killed.scalars("train", step, {"loss": float(step)})
    killed.flush()
    (file,) = (tmp_path / "train").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    continued = Dashboards(tmp_path, first_step=3)
    continued.scalars("train", 4, {"loss": -4.0})
    continued.close()
    assert helpers.curves(tmp_path / "train") == {"loss": [(2, 2.0), (4, -4.0)]}


def test_a_run_that_starts_anew_has_nothing_of_the_one_before(tmp_path):
    for value in (1.0, 2.0):
        written = Dashboards(tmp_path)
        written.layout()
        written.scalars("train", 5, {"loss": value})
        written.close()
    assert helpers.curves(tmp_path / "train") == {"loss": [(5, 2.0)]}
    assert len(read(tmp_path / "train").Tensors("custom_scalars__config__")) == 1


def test_a_longer_schedule_has_one_preview(tmp_path):
    for steps in (10, 20):
        written = Dashboards(tmp_path, first_step=steps // 3)
        written.preview([1.0] * steps)
        written.close()
    assert helpers.curves(tmp_path / "preview") == {"learning_rate": [(step, 1.0) for step in range(20)]}


def test_what_is_written_is_on_disk_soon_without_a_call(tmp_path, monkeypatch):
    monkeypatch.setattr(dashboards, "FLUSH_SECONDS", 0.1)
    written = Dashboards(tmp_path)
    written.scalars("train", 1, {"loss": 1.0})
    written.scalars("train", 2, {"loss": 1.0})
    deadline = time.monotonic() + 20
    while len(helpers.curves(tmp_path / "train").get("loss", [])) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert 0 < dashboards.FLUSH_SECONDS < 30


def test_workers_but_the_chief_write_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    silent = Dashboards(None)
    silent.layout()
    silent.scalars("train", 1, {"loss": 1.0})
    silent.flush()
    silent.close()
    assert not list(tmp_path.iterdir())


def test_the_layout_names_every_chart_once(tmp_path):
    written = Dashboards(tmp_path)
    written.layout()
    written.close()
    (event,) = read(tmp_path / "train").Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(tensor_util.make_ndarray(event.tensor_proto).item())
    assert [category.title for category in layout.category] == ["Learning", "Speed", "Health"]
    tags = [tag for category in layout.category for chart in category.chart for tag in chart.multiline.tag]
    assert len(tags) == len(set(tags))
    assert {"^loss$", "^waiting_share$", "^gradient_norm$", "^memory/"} <= set(tags)


def test_the_preview_spans_the_whole_schedule(tmp_path):
    rates = np.linspace(0, 1, 1001)
    written = Dashboards(tmp_path)
    written.preview(rates)
    written.close()
    found = helpers.curves(tmp_path / "preview")["learning_rate"]
    assert len(found) == dashboards.PREVIEW_POINTS
    assert found[0] == (0, 0.0) and found[-1] == (1000, 1.0)
    assert all(value == pytest.approx(rates[step]) for step, value in found)


def test_images_and_texts_are_read_back_as_written(tmp_path):
    png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (300).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"rest"
    written = Dashboards(tmp_path)
    written.image("test", 4, "confusion_matrix", png)
    written.text("train", 0, "configuration", dashboards.table([("a", HOSTILE)], ("flag", "value")))
    written.close()
    (event,) = read(tmp_path / "test").Tensors("confusion_matrix")
    assert event.step == 4
    assert tensor_util.make_ndarray(event.tensor_proto).tolist() == [b"300", b"7", png]
    (event,) = read(tmp_path / "train").Tensors("configuration")
    text = tensor_util.make_ndarray(event.tensor_proto).item().decode()
    assert len(text.splitlines()) == 3
    assert "<" not in text and text.splitlines()[2].count("|") == 3


def test_verbatim_keeps_every_line_a_line_of_code():
    assert dashboards.verbatim(["a", "b\n# c"]) == "    a\n    b # c"


def test_precision_and_recall_by_threshold(tmp_path):
    probabilities = np.array([0.05, 0.32, 0.35, 0.64, 0.85, 0.95])
    own = np.array([0, 0, 1, 0, 1, 1], bool)
    counts = np.stack([np.histogram(probabilities[own == side], 10, (0, 1))[0] for side in (False, True)])
    written = Dashboards(tmp_path)
    written.precision_recall(3, {0: "cats"}, counts[np.newaxis])
    written.close()
    (event,) = read(tmp_path / "test").Tensors("precision_recall/000")
    found = tensor_util.make_ndarray(event.tensor_proto)
    for bin, threshold in enumerate(np.arange(10) / 10):
        positive = probabilities >= threshold
        right = np.sum(positive & own)
        assert found[:4, bin].tolist() == [
            right,
            np.sum(positive & ~own),
            np.sum(~positive & ~own),
            np.sum(~positive & own),
        ]
        assert found[4:, bin] == pytest.approx([right / max(1, positive.sum()), right / 3])


def test_a_histogram_is_bounded_in_size(tmp_path):
    written = Dashboards(tmp_path)
    written.histograms(5, {"weights/a": np.ones([1000, 1000]), "weights/b": np.arange(8.0), "weights/c": np.zeros(0)})
    written.close()
    found = read(tmp_path / "train")
    counts = {
        tag: tensor_util.make_ndarray(found.Tensors(tag)[0].tensor_proto)[:, 2].sum()
        for tag in "abc"
        for tag in ["weights/" + tag]
    }
    assert counts["weights/b"] == 8 and counts["weights/c"] == 0
    assert 10_000 < counts["weights/a"] <= dashboards.HISTOGRAM_ELEMENTS


def test_a_trial_has_the_flags_that_matter_and_the_results(tmp_path):
    flags = {"learning_rate": 0.1, "filters": [64, 128], "flip": True, "dataset": "x", "run_dir": "/a", "steps": None}
    written = Dashboards(tmp_path)
    written.begin_trial("run-1", flags)
    written.end_trial(9, {"test_accuracy": 0.5, "precision": "float32", "xla": False})
    written.close()
    found = read(tmp_path / "trial")
    content = found.SummaryMetadata(trial_metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert start.group_name == "run-1"
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert values == {"learning_rate": 0.1, "filters": "64,128", "flip": True, "dataset": "x"}
    assert helpers.curves(tmp_path / "trial")["results/test_accuracy"] == [(9, 0.5)]
    assert "results/precision" not in found.Tags()["tensors"] and "results/xla" not in found.Tags()["tensors"]
