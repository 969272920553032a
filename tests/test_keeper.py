import pytest

from tests import helpers
from tests.test_resume import RUN, Killed, stop_at
from tests.test_trainer import train
from tftrain.checkpoints import Checkpoints
from tftrain.monitor import Monitor


@pytest.fixture
def scores(monkeypatch):
    """Takes what evaluations are to find, by epoch: accuracies or losses."""

    def give(*values, metric="accuracy"):
        def evaluate(monitor):
            value = values[monitor._plan.epoch(monitor.step - 1)]
            return {"loss": 1.0, "accuracy": 0.5, "examples": 57} | {metric: value}

        monkeypatch.setattr(Monitor, "_evaluate", evaluate)

    return give


def best(folder):
    checkpoint = Checkpoints(folder).load_best()
    return checkpoint.step, checkpoint.state["score"]


def test_the_best_is_kept(tmp_path, scores):
    scores(0.7, 0.9, 0.8)
    results = train(tmp_path / "run", **RUN)
    assert best(tmp_path / "run") == (22, 0.9)
    assert (results["best_metric"], results["best_score"], results["best_step"]) == ("accuracy", 0.9, 22)
    assert not results["stopped_early"]
    # The weights alone, as they were then.
    tensors = Checkpoints(tmp_path / "run").load_best().tensors()
    other = train(tmp_path / "two", **RUN | dict(epochs=2, schedule="constant"))
    assert all(name.startswith("network/") for name in tensors) and len(tensors) == 4
    assert other["steps"] == 22


def test_the_best_by_loss_is_the_least(tmp_path, scores):
    scores(0.5, float("nan"), 0.4, metric="loss")
    results = train(tmp_path / "run", saving=dict(best_metric="loss"), **RUN)
    assert best(tmp_path / "run") == (33, 0.4) == (results["best_step"], results["best_score"])


def test_a_worse_epoch_after_a_resume_leaves_the_best(tmp_path, scores):
    scores(0.9)
    train(tmp_path / "run", **RUN | dict(epochs=1))
    scores(0.9, 0.8)
    results = train(tmp_path / "run", **RUN | dict(epochs=2))
    assert best(tmp_path / "run") == (11, 0.9)
    assert (results["best_step"], results["best_score"], results["best_test_accuracy"]) == (11, 0.9, 0.9)


def test_a_best_that_is_newer_than_the_checkpoint_is_not_replaced_by_a_worse_one(tmp_path, scores, monkeypatch):
    scores(0.5, 0.9, 0.6)
    with monkeypatch.context() as patch:
        stop_at(patch, 23)
        with pytest.raises(Killed):
            train(tmp_path / "run", **RUN)
    for path in (tmp_path / "run" / "checkpoints").glob("step-00000022"):  # as if it had not been written
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    assert best(tmp_path / "run") == (22, 0.9)
    scores(0.5, 0.7, 0.6)
    results = train(tmp_path / "run", **RUN)
    assert best(tmp_path / "run") == (22, 0.9)
    assert (results["best_step"], results["best_score"]) == (22, 0.7)


def test_training_stops_when_nothing_gets_better_for_too_long(tmp_path, scores, monkeypatch, capfd):
    values = (0.5, 0.6, 0.55, 0.6, 0.9, 0.9)
    options = RUN | dict(epochs=6, saving=dict(patience=2))
    scores(*values)
    results = train(tmp_path / "run", **options)
    assert results["stopped_early"] and results["steps"] == 44 and results["epochs"] == 4
    assert "stopped      2 epochs without a better test accuracy than 0.6000 of step 22" in capfd.readouterr().err
    # Stopped within the last of these epochs, it ends in the same way.
    with monkeypatch.context() as patch:
        stop_at(patch, 40, save=True)
        with pytest.raises(Killed):
            train(tmp_path / "other", **options)
    again = train(tmp_path / "other", **options)
    assert (again["steps"], again["weights_sha256"]) == (44, results["weights_sha256"])
    capfd.readouterr()
    assert train(tmp_path / "run", **options) == helpers.read_json(tmp_path / "run" / "results.json")
    assert "has been trained" in capfd.readouterr().err


def test_checkpoints_come_every_so_many_steps_and_at_each_epoch_s_end(tmp_path, monkeypatch):
    saved = []
    original = Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda self, step, *rest: (saved.append(step), original(self, step, *rest))
    )
    train(tmp_path / "run", saving=dict(checkpoint_every="5", keep_checkpoints=3), **RUN)
    assert saved == [5, 10, 11, 15, 20, 22, 25, 30, 33]
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 3
    saved.clear()
    train(tmp_path / "other", saving=dict(checkpoint_every="1h"), **RUN)
    assert saved == [11, 22, 33]
