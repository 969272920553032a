"""What the benchmarks share: the task of `tftrain.cnn`, timing in turns, and a table."""

import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time

import tftrain
from tftrain import cnn, quiet
from tftrain.configuration import Augmentation, DataSource, Hardware
from tftrain.data import sets

with quiet.notices():
    import tensorflow as tf
    import tf_keras as keras

    from tftrain import dashboards, monitor, plan, runtime, trainer
    from tftrain.data import images
    from tftrain.data.batching import Batches
    from tftrain.networks import convolutional

BATCH_SIZE = cnn.RECIPE.batch_size
STEPS = 40  # in a contender's turn
CLASSES = 10


def read_images() -> images.Arrays:
    """As many of the embedded training images as a turn takes."""
    source = DataSource(dataset="fashion_mnist_subset")
    examples = images.read(sets.TfdsSet(sets.find(source, sets.IMAGES), source), "train")
    return images.Arrays(examples.images[: STEPS * BATCH_SIZE], examples.labels[: STEPS * BATCH_SIZE])


def plain_network() -> keras.Model:
    """The network of `python -m tftrain.cnn`."""
    return convolutional.build("plain", (28, 28, 1), CLASSES, filters=(64, 128), dense_units=128, dropout=0)


def start(hardware: Hardware) -> runtime.Runtime:
    """Start TensorFlow without its notices."""
    with quiet.notices():
        return runtime.start(hardware)


class TftrainTurns:
    """The training of `python -m tftrain.cnn`, a turn of STEPS steps at each call; returns its seconds.

    All of it is there: shuffling, flips, metrics, curves. Evaluation is left out of the time.
    """

    def __init__(self, examples: images.Arrays, chosen: runtime.Runtime):
        flipped = images.ImageExamples(examples, augmentation=Augmentation(flip=True))
        batches = Batches(flipped, BATCH_SIZE, seed=0)
        self._total_steps = 1000 * STEPS
        task = trainer.Task(
            name="cnn",
            train=batches,
            test=Batches(images.ImageExamples(images.Arrays(examples.images[:64], examples.labels[:64])), 64),
            label_names=[str(i) for i in range(CLASSES)],
            build_network=plain_network,
        )
        self._model = trainer.build_model(task, cnn.RECIPE, chosen, self._total_steps)
        self._watch = _Stopwatch()
        self._monitor = monitor.Monitor(
            task.train,
            task.test,
            chosen.strategy,
            dashboards.Dashboards(pathlib.Path(tempfile.mkdtemp(prefix="benchmark-"))),
            plan.Plan(batches.steps_per_epoch, self._total_steps),
        )
        self._batches = batches.distribute(chosen.strategy)
        self._turn = 0

    def __call__(self) -> float:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            terminal, sys.stderr = sys.stderr, nowhere  # the line after each epoch
            try:
                self._model.fit(
                    self._batches,
                    initial_epoch=self._turn,
                    epochs=self._turn + 1,
                    steps_per_epoch=STEPS,
                    callbacks=[self._watch, self._monitor],
                    verbose=0,
                )
            finally:
                sys.stderr = terminal
        self._turn += 1
        return self._watch.seconds


class _Stopwatch(keras.callbacks.Callback):
    """Times an epoch; it stands before the monitor, which evaluates at the epoch's end."""

    def on_epoch_begin(self, epoch, logs=None):
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds = time.perf_counter() - self._began


def take_turns(contenders: dict, rounds: int) -> dict[str, list[float]]:
    """Call each contender in turn, `rounds` times after one turn to warm up; the seconds that each call returns."""
    seconds = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            elapsed = contender()
            if turn:
                seconds[name].append(elapsed)
    return seconds


def print_table(title: str, seconds: dict[str, list[float]], subject: str) -> None:
    """Print examples/s of each contender, and how many times as fast the subject is; medians over the rounds."""
    print(f"\n{title}")
    print(
        f"{_machine()}; Python {platform.python_version()}, TensorFlow {tf.__version__}, tftrain {tftrain.__version__}"
    )
    print(f"{'':<40}{'examples/s':>12}   {subject} is so many times as fast (lowest to highest of the rounds)")
    for name, times in seconds.items():
        ratios = [theirs / own for theirs, own in zip(times, seconds[subject])]
        rate = STEPS * BATCH_SIZE / statistics.median(times)
        spread = f"{statistics.median(ratios):>6.2f}   ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:<40}{rate:>12,.0f}{'' if name == subject else spread}")


def _machine() -> str:
    """The processor and the number of cores that this process may use."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores"
