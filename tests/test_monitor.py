import numpy as np
import pytest

from tests import helpers
from tests.test_trainer import points, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two epochs of 53 steps, the last of one row, on two replicas: its curves and results."""
    folder = tmp_path_factory.mktemp("monitor") / "run"
    results = train(folder, replicas=2, rows=105, batch_size=2, epochs=2)
    return helpers.curves(folder / "tensorboard" / "train"), results


def test_curves_have_their_points_at_the_same_steps_on_any_hardware(finished):
    curves, _ = finished
    for tag in ("loss", "accuracy", "learning_rate"):
        assert [step for step, _ in curves[tag]] == points(53, 106)


def test_a_point_is_the_mean_over_the_examples_since_the_last(finished):
    curves, results = finished
    losses = dict(curves["loss"])
    assert [step for step in losses if step > 53] == [60, 80, 100, 106]
    # Steps 54 to 60, 61 to 80, 81 to 100 and 101 to 106, of two examples each, but for the last, which has one.
    counts = [14, 40, 40, 11]
    losses = [losses[step] for step in (60, 80, 100, 106)]
    assert results["train_loss"] == pytest.approx(np.average(losses, weights=counts), rel=1e-5)


def test_the_pace_leaves_compilation_out(finished):
    curves, results = finished
    # What follows the first step holds evaluation and saving too.
    assert results["examples_per_second"] > 2 * 105 / (results["seconds"] - results["seconds_to_first_step"])
    assert [value for _, value in curves["examples_per_second"]][-1] == pytest.approx(
        results["examples_per_second"], rel=1e-3
    )
