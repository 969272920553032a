"""Processes that are told to end."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests import helpers
from tftrain import signals
from tftrain.checkpoints import Checkpoints

# A training that would take hours, of which saving takes a minute where it is told so.
TRAINING = """
import sys, time
from tests.test_trainer import train
from tftrain import keeper, flags
if sys.argv[1:2] == ["slow"]:
    keeper.Checkpoints.wait = lambda self: time.sleep(60)
def main():
    train(FOLDER, rows=4001, epochs=10000, dropout=0.2)
sys.argv[1:] = []
flags.run(main)
"""


class Process:
    """A process whose standard error is read as it comes."""

    def __init__(self, *arguments: str):
        env = os.environ | {"PYTHONPATH": str(helpers.ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, *arguments], cwd=helpers.ROOT, env=env, stderr=subprocess.PIPE, text=True
        )
        self.lines = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self._process.stderr), daemon=True)
        self._reader.start()

    def wait_for(self, text: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not any(text in line for line in list(self.lines)):
            assert self._process.poll() is None and time.monotonic() < end, self.lines
            time.sleep(0.05)

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self, seconds: float) -> int:
        """The exit status, which has to come within so many seconds."""
        try:
            return self._process.wait(seconds)
        finally:
            self._process.kill()
            self._reader.join(10)


def training(folder, *arguments) -> Process:
    return Process("-c", TRAINING.replace("FOLDER", repr(str(folder))), *arguments)


@pytest.mark.slow
def test_usr1_saves_and_goes_on_and_term_saves_and_ends(tmp_path):
    process = training(tmp_path / "run")
    process.wait_for("epoch 1/10000: ")
    process.send(signal.SIGUSR1)
    process.wait_for("as SIGUSR1 asked")
    (line,) = [line for line in process.lines if "as SIGUSR1 asked" in line]
    process.send(signal.SIGTERM)
    assert process.end(30) == 143
    saved = Checkpoints(tmp_path / "run").latest().step
    assert saved > int(line.split("step ")[1].split(", as")[0].replace(",", ""))
    assert process.lines[-1].startswith(f"interrupted  by SIGTERM; saved at step {saved:,} in {tmp_path / 'run'}; ")
    assert not any("Traceback" in line for line in process.lines)
    # The curves were flushed before.
    points = helpers.curves(tmp_path / "run" / "tensorboard" / "train")["loss"]
    assert saved - 25 < points[-1][0] <= saved


@pytest.mark.slow
def test_a_second_interruption_ends_at_once(tmp_path):
    process = training(tmp_path / "run", "slow")
    process.wait_for("epoch 1/10000: ")
    process.send(signal.SIGINT)
    time.sleep(3)  # it has begun to wait for its checkpoint
    process.send(signal.SIGINT)
    assert process.end(5) == 130
    assert process.lines[-1] == "ended at once by SIGINT\n"


@pytest.mark.slow
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_start_up_ends_at_the_first(tmp_path, number, status):
    process = Process("-m", "tftrain.cnn", "--gpus=0", f"--run_dir={tmp_path / 'run'}")
    time.sleep(1.5)
    process.send(number)
    assert process.end(10) == status
    assert not any("Traceback" in line for line in process.lines)


def test_in_a_notebook_the_handlers_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    signals.defer()
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.take_save_request() and not signals.take_save_request()
        signals.check()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(signals.Interrupted) as caught:
            signals.check()
        assert caught.value.status == 143 and isinstance(caught.value, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):  # the second
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    finally:
        signals.release()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before
    assert signals.requested() is None
