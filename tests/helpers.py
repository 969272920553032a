"""Tiny data sets, networks and runs that several tests share."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tftrain import optimizers, runtime
from tftrain.configuration import Hardware, Recipe
from tftrain.data.batching import Batches
from tftrain.data.images import Arrays, ImageExamples
from tftrain.data.text import TextExamples
from tftrain.networks import bert, convolutional
from tftrain.training_step import TrainingModel

ROOT = pathlib.Path(__file__).parent.parent
CLASSES = 3
VOCABULARY = 50
PADDING = 0


@dataclasses.dataclass(frozen=True)
class VectorExamples:
    """Float vectors as examples: values float32 [count, n], labels int32 [count]."""

    values: np.ndarray
    labels: np.ndarray
    lengths = None

    def inputs(self, rows, length=None, draw=None):
        del length, draw
        return tf.gather(tf.constant(self.values), rows)


def vectors(count: int, classes: int = CLASSES, width: int = 6, seed: int = 0) -> VectorExamples:
    """Random vectors with labels that a network can learn from them."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(count, width)).astype(np.float32)
    return VectorExamples(values, np.argmax(values[:, :classes], axis=1).astype(np.int32))


def images(count: int, seed: int = 0, augmentation=None) -> ImageExamples:
    """8x8 noise in which a bright row says the class."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, count).astype(np.int32)
    values = generator.integers(0, 128, (count, 8, 8, 1), dtype=np.uint8)
    for image, label in zip(values, labels):
        image[2 * label + 1] = 255
    return ImageExamples(Arrays(values, labels), augmentation=augmentation)


def text_examples(lengths, seed: int = 0) -> TextExamples:
    """Random token numbers of these lengths, in which a text's tokens come from its class's share of the vocabulary."""
    generator = np.random.default_rng(seed)
    lengths = np.asarray(lengths, np.int64)
    labels = generator.integers(0, CLASSES, len(lengths)).astype(np.int32)
    share = (VOCABULARY - 5) // CLASSES
    tokens = [5 + label * share + generator.integers(0, share, n) for label, n in zip(labels, lengths)]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return TextExamples(np.concatenate(tokens).astype(np.int32), starts, lengths, labels, PADDING)


def texts(count: int, longest: int = 8, seed: int = 0) -> TextExamples:
    """Texts of 3 to `longest` tokens; see `text_examples`."""
    return text_examples(np.random.default_rng(seed).integers(3, longest + 1, count), seed)


def dense_network(width: int = 6, classes: int = CLASSES, dropout: float = 0.0, hidden: int = 8) -> keras.Model:
    """Vectors to logits by one hidden layer."""
    inputs = keras.Input([width])
    x = keras.layers.Dense(hidden, activation="relu")(inputs)
    if dropout:
        x = keras.layers.Dropout(dropout)(x)
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


def tiny_bert_config(dropout: float = 0.0, **sizes):
    """One layer, wide enough to learn: the initial weights are larger than BERT's own, which suit its width."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
        "initializer_range": 0.2,
    } | sizes
    return bert.small_config(
        ["a", "b", "c"], **sizes, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )


def build_network(kind: str, dropout: float = 0.0) -> keras.Model:
    """A tiny network: "plain", "normalised" or "bert"."""
    if kind == "bert":
        return bert.build(tiny_bert_config(dropout))
    return convolutional.build(kind, (8, 8, 1), CLASSES, filters=[4], dense_units=8, dropout=dropout)


def batches_for(kind: str, count: int, batch_size: int, **options) -> Batches:
    """Batches of the data that `build_network(kind)` takes; all of one shape."""
    if kind == "bert":
        return Batches(texts(count), batch_size, batch_lengths=(8,), **options)
    return Batches(images(count), batch_size, **options)


def start(replicas: int = 1, precision: str = "float32", xla: bool = False) -> runtime.Runtime:
    """The runtime with so many of the session's logical CPU devices; the default strategy for one."""
    return runtime.start(
        Hardware(
            gpus=0,
            virtual_devices=replicas if replicas > 1 else None,
            precision=precision,
            xla="on" if xla else "off",
        )
    )


def make_model(run: runtime.Runtime, build, optimizer=None, classes: int = CLASSES, seed: int = 1, **options):
    """A compiled TrainingModel around `build()`, made under the strategy's scope.

    Args:
      optimizer: takes the trainable variables and returns an optimizer; left out: plain SGD.
    """
    keras.utils.set_random_seed(seed)
    with run.strategy.scope():
        model = TrainingModel(build(), classes=classes, xla=run.xla, seed=seed, **options)
        variables = model.network.trainable_variables
        made = optimizer(variables) if optimizer else keras.optimizers.SGD(0.1)
        # Above 1, as in the trainer: Keras then loops inside its train function.
        model.compile(optimizer=made, steps_per_execution=2)
    return model


def recipe_optimizer(name: str, learning_rate: float, steps: int):
    """For `make_model`: the optimizer of a recipe."""
    recipe = Recipe(batch_size=8, steps=steps, learning_rate=learning_rate, optimizer=name)
    return lambda variables: optimizers.make_optimizer(recipe, steps, variables)


class StepLosses(keras.callbacks.Callback):
    """Reads each step's loss, of all replicas together, by resetting the model's interval metrics after it."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_begin(self, logs=None):
        self.model._steps_per_execution.assign(1)

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(self.model.interval_metrics[0].result()))
        for metric in self.model.interval_metrics:
            metric.reset_state()


def fit(model, run: runtime.Runtime, batches: Batches, steps: int, first_step: int = 0) -> list[float]:
    """Train for some steps; the loss of each."""
    losses = StepLosses()
    distributed = batches.distribute(run.strategy, first_step)
    model.fit(distributed, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[losses])
    return losses.losses


def weights(model) -> list[np.ndarray]:
    """All weights of the network as float arrays."""
    return [weight.numpy() for weight in model.network.weights]


def flat(arrays) -> np.ndarray:
    """Arrays as one float64 vector."""
    return np.concatenate([np.asarray(array, np.float64).ravel() for array in arrays])


def components(variable) -> list[np.ndarray]:
    """A variable's value on each replica."""
    return [part.numpy() for part in getattr(variable, "values", (variable,))]


def elements(batches: Batches, replicas: int, steps: int, first_step: int = 0) -> list[list[dict]]:
    """What each replica gets in each step: steps x replicas dictionaries of arrays."""
    run = start(replicas)
    iterator = iter(batches.distribute(run.strategy, first_step))
    found = []
    for _ in range(steps):
        element = next(iterator)
        parts = [run.strategy.experimental_local_results(value) for value in tf.nest.flatten(element)]
        found.append(
            [
                tf.nest.pack_sequence_as(element, [np.asarray(part[replica]) for part in parts])
                for replica in range(replicas)
            ]
        )
    return found


def real_rows(step: list[dict]) -> list[int]:
    """The rows of a step that count, in the order of the replicas."""
    return [int(row) for part in step for row in part["rows"][part["weights"] == 1]]


def run_command(*arguments: str, cwd=None, **environment: str) -> subprocess.CompletedProcess:
    """Run `python -m ...` from the repository's code, with its output as text."""
    env = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    env |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"} | environment
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=cwd or ROOT, env=env, capture_output=True, text=True, timeout=600
    )


def wait_for(condition, explain, seconds: float = 60):
    """What `condition()` returns once that is true; fails with what `explain()` returns if that takes too long."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)
    return found


def read_json(path: pathlib.Path) -> dict:
    """A file that holds strict JSON: NaN and Infinity are refused."""

    def refuse(constant):
        raise ValueError(f"{path}: {constant} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def curves(folder: pathlib.Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars of one TensorBoard run by tag, as (step, value), read by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    accumulator.Reload()
    found = {}
    for tag in accumulator.Tags()["tensors"]:
        if accumulator.SummaryMetadata(tag).plugin_data.plugin_name != "scalars":
            continue
        found[tag] = [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in accumulator.Tensors(tag)]
    return found
