import json
import re

import numpy as np
import pytest

from tftrain import pictures, report
from tftrain.dashboards import Dashboards
from tftrain.errors import UserError

HOSTILE = '<script>alert("1")</script>{{ 7 * 7 }}\ud800'


@pytest.fixture
def run(tmp_path):
    """A run directory with all that a report shows, resumed at step 20, with hostile names and texts."""
    for first_step, steps in ((0, (10, 20, 30)), (20, (30, 40))):
        dashboards = Dashboards(tmp_path / "tensorboard", first_step)
        for step in steps:
            dashboards.scalars("train", step, {"loss": 1 / step, "waiting_share": 0.0, "memory/resident_mib": 9.0})
        dashboards.scalars("test", steps[-1], {"loss": 0.5, "accuracy": 0.1})
        dashboards.image("test", steps[-1], "confusion_matrix", pictures.confusion_matrix(np.eye(2, dtype=int), "ab"))
        dashboards.close()
    config = {
        "experiment": "bert",
        "command": HOSTILE,
        "flags": {"seed": 1, "dataset": HOSTILE},
        "label_names": [HOSTILE],
    }
    mistakes = [{"row": 3, "label": HOSTILE, "predicted": "b", "confidence": 0.75, "text": HOSTILE}]
    results = {"test_accuracy": 0.1, "steps": 3140, "precision": "float32", "train_loss": None}
    for name, values in {"config": config, "mistakes": mistakes, "results": results}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    return tmp_path


def test_a_report_holds_everything_and_loads_nothing(run):
    page = report.write(run).read_text()
    for heading in ("Results", "Curves", "Confusion matrix", "Worst mistakes", "Configuration"):
        assert f">{heading}</h2>" in page
    assert "3,140" in page and "0.7500" in page
    assert page.count("data:image/svg+xml") == 4  # loss, accuracy, shares, memory
    assert page.count("data:image/png") == 1
    assert not re.search(r'(src|href)="(?!data:)', page) and "url(" not in page
    assert len(page) < 1_000_000


def test_hostile_names_and_texts_are_shown_as_they_are(run):
    page = report.write(run).read_text()
    assert "<script" not in page and "49" not in re.sub('base64,[^"]*', "", page)
    assert page.count("&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;{{ 7 * 7 }}?") == 5


def test_a_resumed_run_is_drawn_as_one_curve(run, monkeypatch):
    drawn = {}
    monkeypatch.setattr(pictures, "curves", lambda lines, title: drawn.setdefault(title, lines) and "<svg/>")
    report.write(run)
    assert drawn["loss"] == {
        "train": [(step, pytest.approx(1 / step)) for step in (10, 20, 30, 40)],
        "test": [(40, 0.5)],
    }
    assert list(drawn["share of the time"]) == ["waiting_share"]


def test_a_run_that_has_not_ended_is_refused(run):
    (run / "results.json").unlink()
    with pytest.raises(UserError, match="a report is of a run that has ended"):
        report.write(run)


def test_long_curves_are_thinned_out_but_for_the_last_point(run):
    dashboards = Dashboards(run / "tensorboard", 40)
    for step in range(41, 41 + 2 * report.POINTS):
        dashboards.scalars("train", step, {"loss": float(step)})
    dashboards.close()
    (points,) = report._Events(run / "tensorboard" / "train").scalars("^loss$").values()
    assert report.POINTS / 2 < len(points) <= report.POINTS + 1
    assert points[-1][0] == 40 + 2 * report.POINTS
