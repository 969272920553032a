"""Run directories whose checksums are right, and which no training has written."""

import copy
import dataclasses
import math

import numpy as np
import pytest

from tests.test_trainer import train
from tftrain import saved_state
from tftrain.checkpoints import Checkpoints
from tftrain.errors import UserError

RUN = dict(rows=41, optimizer="adam", learning_rate=0.01, schedule="constant")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "run"
    train(folder, epochs=1, **RUN)
    return Checkpoints(folder).latest()


def test_what_a_training_writes_is_taken(checkpoint):
    saved_state.check(checkpoint)
    saved_state.check_best(Checkpoints(checkpoint.path.parents[1]).load_best())


CHANGES = {
    "steps_per_epoch": [0, -1, 2.0, True, 1 << 60, None],
    "batch_size": [0, "10", [10]],
    "offset": [0.5, 10**30, 1 << 40],
    "seconds": [-1, math.nan, math.inf, "1"],
    "skipped": [None, [-1], ["3"], {}],
    "best": [{}, {"score": "1", "step": 1, "epochs_since": 0}, {"score": 1.0, "step": -1, "epochs_since": 0}],
    "loss_scale": [{"scale": math.nan, "good_steps": 0, "overflows": 0}, {"scale": 0, "good_steps": 0, "overflows": 0}],
    "monitor": [{}, [], {"steady": [1], "epoch": {}, "best_accuracy": 1, "seconds_to_first_step": None}],
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_no_training_writes_is_refused_in_one_line(checkpoint, name):
    for value in CHANGES[name]:
        state = copy.deepcopy(checkpoint.state) | {name: value}
        with pytest.raises(UserError, match=r"state\.json: .*not what a training writes") as caught:
            saved_state.check(dataclasses.replace(checkpoint, state=state))
        assert "\n" not in str(caught.value)
    state = {key: value for key, value in checkpoint.state.items() if key != name}
    with pytest.raises(UserError, match=name):
        saved_state.check(dataclasses.replace(checkpoint, state=state))


def test_a_negative_step_is_refused(checkpoint):
    with pytest.raises(UserError, match="step"):
        saved_state.check(dataclasses.replace(checkpoint, step=-5))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t | {"network": np.zeros(3)}, "no name that a training gives"),
        (lambda t: t | {"network/000/a@b": np.zeros(3)}, "no name that a training gives"),
        (lambda t: t | {"network/077/a": np.zeros(3)}, "network variables"),
        (lambda t: {n: np.zeros([7, 7], a.dtype) if n.startswith("network/000") else a for n, a in t.items()}, "shape"),
        (lambda t: {n: a * np.nan if n.startswith("network/") else a for n, a in t.items()}, "not finite"),
    ],
)
def test_tensors_of_a_stranger_give_one_line(tmp_path, checkpoint, change, message):
    folder = tmp_path / "run"
    train(folder, epochs=1, **RUN)
    checkpoints = Checkpoints(folder)
    checkpoints.save(6, change(checkpoint.tensors()), checkpoint.state)
    checkpoints.wait()
    with pytest.raises(UserError, match=message) as caught:
        train(folder, epochs=3, **RUN)
    assert "\n" not in str(caught.value)
