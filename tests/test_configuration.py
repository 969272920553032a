import dataclasses
import math
import re

import pytest

from tftrain.configuration import Hardware, Recipe, Saving, Showing
from tftrain.errors import UserError

GOOD = dict(batch_size=8, epochs=1, learning_rate=0.1)


@pytest.mark.parametrize(
    "values, flag",
    [
        (dict(batch_size=0), "--batch_size=0"),
        (dict(batch_size=-1), "--batch_size=-1"),
        (dict(batch_size=2.5), "--batch_size=2.5"),
        (dict(batch_size=True), "--batch_size=True"),
        (dict(eval_batch_size=0), "--eval_batch_size=0"),
        (dict(accumulate_steps=0), "--accumulate_steps=0"),
        (dict(epochs=0), "--epochs=0"),
        (dict(epochs=None, steps=0), "--steps=0"),
        (dict(epochs=None), "exactly one of the two"),
        (dict(steps=3), "exactly one of the two"),
        (dict(learning_rate=0), "--learning_rate=0"),
        (dict(learning_rate=-0.1), "--learning_rate=-0.1"),
        (dict(learning_rate=math.nan), "--learning_rate=nan"),
        (dict(learning_rate=math.inf), "--learning_rate=inf"),
        (dict(schedule="step"), "--schedule=step"),
        (dict(warmup=-1), "--warmup=-1"),
        (dict(warmup=1.5), "--warmup=1.5"),
        (dict(optimizer="lion"), "--optimizer=lion"),
        (dict(weight_decay=-0.1, optimizer="adamw"), "--weight_decay=-0.1"),
        (dict(weight_decay=0.1, optimizer="adam"), "use --optimizer=adamw"),
        (dict(label_smoothing=1.0), "--label_smoothing=1.0"),
        (dict(label_smoothing=-0.1), "--label_smoothing=-0.1"),
        (dict(clip_norm=0), "--clip_norm=0"),
        (dict(clip_norm=math.inf), "--clip_norm=inf"),
        (dict(seed=-1), "--seed=-1"),
        (dict(seed=2**31), "--seed=2147483648"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_with_flag_and_value(values, flag):
    with pytest.raises(UserError) as caught:
        Recipe(**(GOOD | values))
    assert flag in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        dict(),
        dict(epochs=None, steps=1),
        dict(warmup=0.5),
        dict(warmup=3),
        dict(warmup=3.0),
        dict(optimizer="sgd", weight_decay=1e-4),
        dict(optimizer="adam", weight_decay=0.0),
        dict(label_smoothing=0),
        dict(seed=2**31 - 1),
        dict(learning_rate=1),
    ],
)
def test_what_can_be_is_taken(values):
    recipe = Recipe(**(GOOD | values))
    assert dataclasses.asdict(recipe).items() >= values.items()


def test_evaluation_takes_the_batch_of_training_unless_told():
    assert Recipe(**GOOD).evaluation_batch_size == 8
    assert Recipe(**GOOD, eval_batch_size=5).evaluation_batch_size == 5


@pytest.mark.parametrize(
    "values, flag",
    [
        (dict(gpus=-1), "--gpus=-1"),
        (dict(gpus=1.5), "--gpus=1.5"),
        (dict(virtual_devices=0), "--virtual_devices=0"),
        (dict(gpus=2, virtual_devices=2), "--gpus=2 with --virtual_devices=2"),
        (dict(precision="float64"), "--precision=float64"),
        (dict(xla="yes"), "--xla=yes"),
    ],
)
def test_hardware_that_cannot_be_is_refused(values, flag):
    with pytest.raises(UserError, match=flag):
        Hardware(**values)


@pytest.mark.parametrize(
    "every, steps, seconds",
    [("500", 500, None), (500, 500, None), ("90s", None, 90), ("10min", None, 600), ("2h", None, 7200)],
)
def test_checkpoints_come_by_steps_or_by_time(every, steps, seconds):
    saving = Saving(checkpoint_every=every)
    assert (saving.every_steps, saving.every_seconds) == (steps, seconds)


@pytest.mark.parametrize(
    "values, flag",
    [
        *((dict(checkpoint_every=every), f"--checkpoint_every={every}: ") for every in ("0", "-1", "1.5h", "min", "")),
        (dict(resume="always"), "--resume=always"),
        (dict(keep_checkpoints=0), "--keep_checkpoints=0"),
        (dict(best_metric="f1"), "--best_metric=f1"),
        (dict(patience=0), "--patience=0"),
        (dict(on_nan="ignore"), "--on_nan=ignore"),
        (dict(max_rollbacks=0), "--max_rollbacks=0"),
    ],
)
def test_saving_that_cannot_be_is_refused(values, flag):
    with pytest.raises(UserError, match=re.escape(flag)):
        Saving(**values)


@pytest.mark.parametrize("steps", [(5,), (0, 3), (5, 4), (1, 2, 3)])
def test_profile_steps_are_two_in_order(steps):
    with pytest.raises(UserError, match="--profile_steps="):
        Showing(profile_steps=steps)
    assert Showing(profile_steps=(4, 4)).profile_steps == (4, 4)
    with pytest.raises(UserError, match="--log_every=0"):
        Showing(log_every=0)
