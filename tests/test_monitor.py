import math

import numpy as np
import pytest

from tests import helpers
from tests.test_trainer import train
from tftrain import monitor


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two epochs of 53 steps, the last of one row, on two replicas: its curves and results."""
    folder = tmp_path_factory.mktemp("monitor") / "run"
    results = train(folder, replicas=2, rows=105, batch_size=2, epochs=2)
    return helpers.curves(folder / "tensorboard" / "train"), results


def points() -> list[int]:
    """Every third step, since 20 points an epoch are the most, and each epoch's last."""
    every = math.ceil(53 / monitor.POINTS_PER_EPOCH)
    assert every == 3
    return sorted({*range(every, 107, every), 53, 106})


def test_curves_have_their_points_at_the_same_steps_on_any_hardware(finished):
    curves, _ = finished
    for tag in ("loss", "accuracy", "learning_rate"):
        assert [step for step, _ in curves[tag]] == points()


def test_a_point_is_the_mean_over_the_examples_since_the_last(finished):
    curves, results = finished
    steps = [0, *points()]
    last_epoch = [i for i, step in enumerate(points()) if step > 53]
    # Two examples a step, but for the last of an epoch, which holds one.
    counts = [2 * (steps[i + 1] - steps[i]) - (steps[i + 1] == 106) for i in last_epoch]
    assert sum(counts) == 105
    losses = [curves["loss"][i][1] for i in last_epoch]
    assert results["train_loss"] == pytest.approx(np.average(losses, weights=counts), rel=1e-5)


def test_the_pace_leaves_compilation_out(finished):
    curves, results = finished
    # What follows the first step holds evaluation and saving too.
    assert results["examples_per_second"] > 2 * 105 / (results["seconds"] - results["seconds_to_first_step"])
    assert [value for _, value in curves["examples_per_second"]][-1] == pytest.approx(
        results["examples_per_second"], rel=1e-3
    )
