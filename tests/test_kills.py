"""Trainings that are killed at random moments, in saving too, end as those that were not.

`--kills=20` has each of them killed so often; without it there are a few.
"""

import concurrent.futures
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests import helpers

pytestmark = pytest.mark.slow

STEPS_FOR_A_KILL = 60
EVERY = 7  # steps; no divisor of an epoch's or a run's
SHARED = ["--batch_size=16", "--eval_batch_size=500", "--gpus=0", "--seed=3", "--precision=float32"]
SHARED += [f"--checkpoint_every={EVERY}", "--dropout=0.2"]
CNN = ["tftrain.cnn", *SHARED, "--network=normalised", "--filters=4", "--dense_units=8", "--flip"]
BERT = ["tftrain.bert", *SHARED, "--layers=1", "--hidden_size=16", "--heads=2", "--intermediate_size=32"]
BERT += ["--vocabulary_size=400", "--max_length=16", "--word_dropout=0.1"]
RUNS = {
    "cnn": CNN,
    "cnn on 2": [*CNN, "--virtual_devices=2"],
    "bert": BERT,
    "bert on 2": [*BERT, "--virtual_devices=2"],
}
MOMENTS = ("training", "saving", "training", "saving", "start-up")


def run_killed(command: list[str], folder, kills: int, chance: random.Random) -> list[str]:
    """Start a command again and again, each time killed at another moment, and at last let it end.

    Returns:
      the moments of the kills that came before its end.
    """
    moments = []
    for number in range(kills):
        moment = MOMENTS[number % len(MOMENTS)]
        process = start(command, folder)
        try:
            if moment == "start-up":
                time.sleep(chance.uniform(0, 6))
            else:
                progress(process, folder, chance.randint(1, 4))
                if moment == "saving":
                    until(process, lambda: any((folder / "checkpoints").glob(".*.partial")))
                time.sleep(chance.uniform(0, 0.004 if moment == "saving" else 0.05))
        finally:
            process.send_signal(signal.SIGKILL)
            error = process.communicate(timeout=60)[1]
        assert process.returncode in (0, -signal.SIGKILL), error
        if process.returncode:
            moments.append(moment)
    process = start(command, folder)
    error = process.communicate(timeout=600)[1]
    assert process.returncode == 0, error
    return moments


def start(command: list[str], folder) -> subprocess.Popen:
    env = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    env |= {"PYTHONPATH": str(helpers.ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", *command, f"--run_dir={folder}"]
    return subprocess.Popen(command, cwd=helpers.ROOT, env=env, stderr=subprocess.PIPE, text=True)


def progress(process: subprocess.Popen, folder, checkpoints: int) -> None:
    """Return once so many checkpoints have come, or the process has ended."""
    for _ in range(checkpoints):
        before = newest(folder)
        until(process, lambda before=before: newest(folder) != before)


def newest(folder) -> str:
    """The name of the newest checkpoint, or nothing."""
    return max((path.name for path in (folder / "checkpoints").glob("step-*")), default="")


def until(process: subprocess.Popen, condition, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while process.poll() is None and not condition():
        assert time.monotonic() < end
        time.sleep(0.0005)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    """By name: the folder of an undisturbed run, that of a killed one, and the moments of its kills."""
    kills = request.config.getoption("--kills")
    parent = tmp_path_factory.mktemp("kills")

    def both(name):
        command = [*RUNS[name], f"--steps={STEPS_FOR_A_KILL * (kills + 1)}"]
        whole, killed = parent / f"{name} whole", parent / f"{name} killed"
        output = helpers.run_command(*command, f"--run_dir={whole}")
        assert output.returncode == 0, output.stderr
        return whole, killed, run_killed(command, killed, kills, random.Random(f"{name} {kills}"))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(RUNS, pool.map(both, RUNS)))


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_ends_as_one_that_was_not(runs, name, request):
    whole, killed, moments = runs[name]
    expected, found = (helpers.read_json(folder / "results.json") for folder in (whole, killed))
    assert len(moments) == request.config.getoption("--kills")
    for key in ("weights_sha256", "steps", "train_loss", "test_loss", "test_accuracy", "best_step", "best_score"):
        assert found[key] == expected[key], key
    assert not list(killed.glob("*/.*.partial"))
    # No step is there twice, though what was written after the last checkpoint was done again.
    for run in ("train", "test"):
        curves = [helpers.curves(folder / "tensorboard" / run) for folder in (whole, killed)]
        for tag in ("loss", "accuracy"):
            steps = [step for step, _ in curves[1][tag]]
            assert steps == sorted(set(steps))
            assert dict(curves[1][tag]).items() >= dict(curves[0][tag][-1:]).items()
