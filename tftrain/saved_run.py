"""A run that was trained, to use: its network with the weights that were kept, made from the run's folder alone.

Read are config.json and a checkpoint's state.json and tensors.safetensors, whose checksums are verified. Nothing is
unpickled, and config.json can name no code: the network is of a known kind, with known keys and bounded sizes.
"""

import dataclasses
import itertools
import os
import pathlib

import numpy as np
import tf_keras as keras

from tftrain import training_state
from tftrain.checkpoints import Checkpoints
from tftrain.errors import UserError
from tftrain.networks import convolutional
from tftrain.run_directory import RunDirectory
from tftrain.runtime import Runtime

CHECKPOINTS = ("best", "last")
_MAX_STAGES = 16
_MAX_SIZE = 1 << 16
_MAX_WEIGHTS = 1 << 32


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """A run's network, ready to compute.

    Attributes:
      path: the run's folder.
      config: what its config.json holds.
      network: takes a batch's inputs, returns logits [batch, classes]; made under the runtime's strategy.
      step: the training step that the weights are of.
      checkpoint: the folder that they were read from.
    """

    path: pathlib.Path
    config: dict
    network: keras.Model
    step: int
    checkpoint: pathlib.Path

    @property
    def label_names(self) -> list[str]:
        return self.config["label_names"]


def load(path: str | os.PathLike, experiment: str, runtime: Runtime, checkpoint: str = "best") -> SavedRun:
    """Make the network of a run with its weights.

    Args:
      path: the run's folder; it is only read.
      experiment: the experiment that it should be of; "cnn" is known.
      runtime: from `runtime.start`.
      checkpoint: "best": what best/ holds; "last": the newest checkpoint.

    Raises:
      UserError: no run of this experiment stands there, it has no such checkpoint, or its files do not fit together.
    """
    run = RunDirectory.open(path)
    config = run.config
    if config["experiment"] != experiment:
        raise UserError(
            f"--run_dir={path}: a run of {config['experiment'][:40]!r}, not of {experiment!r}; "
            "use the command that trained it"
        )
    check_network(config, path)
    saved = Checkpoints(run.path)
    found = saved.load_best() if checkpoint == "best" else saved.latest()
    if found is None:
        other = "last" if checkpoint == "best" else "best"
        raise UserError(
            f"--run_dir={path}: no {checkpoint} checkpoint is there (yet); let the training go on, or try "
            f"--checkpoint={other}"
        )
    with runtime.strategy.scope():
        network = convolutional.build(**config["network"])
    _assign(network, found.tensors(), found.path)
    return SavedRun(run.path, config, network, found.step, found.path)


def check_network(config: dict, path: str | os.PathLike) -> None:
    """Refuse a network that `convolutional.build` would not have been given by a training.

    Raises:
      UserError: a key is missing or unknown, or a value of another kind or out of bounds.
    """
    network = config["network"]
    rules = {
        "kind": lambda value: value in convolutional.KINDS,
        "input_shape": lambda value: _is_sizes(value) and len(value) == 3,
        "classes": lambda value: _is_size(value) and value == len(config["label_names"]),
        "filters": lambda value: _is_sizes(value) and len(value) <= _MAX_STAGES,
        "dense_units": _is_size,
        "dropout": lambda value: type(value) in (int, float) and 0 <= value < 1,
    }
    unknown = sorted(set(network) - set(rules))
    if unknown:
        raise UserError(f"--run_dir={path}: config.json: network.{unknown[0][:40]!r} is not known")
    for name, rule in rules.items():
        if name not in network or not rule(network[name]):
            raise UserError(
                f"--run_dir={path}: config.json: network.{name} is missing, of a wrong kind or out of bounds"
            )
    height, width, channels = network["input_shape"]
    sizes, places = [channels, *network["filters"]], 1
    for side in (height, width):
        places *= side >> len(network["filters"])
    if places == 0:
        raise UserError(f"--run_dir={path}: config.json: network.filters halves the images to nothing")
    count = sum(9 * a * b for a, b in itertools.pairwise(sizes))
    if max(height, width) >> len(network["filters"]) > convolutional.LARGEST_FLAT:
        places = 1
    count += network["dense_units"] * (places * sizes[-1] + network["classes"])
    if count > _MAX_WEIGHTS:
        raise UserError(
            f"--run_dir={path}: config.json: a network of {count:,} weights; at most {_MAX_WEIGHTS:,} are read"
        )


def _is_size(value) -> bool:
    return type(value) is int and 1 <= value <= _MAX_SIZE


def _is_sizes(value) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_size, value))


def _assign(network: keras.Model, arrays: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Give the network a checkpoint's weights; those that each replica had its own of are averaged."""
    found = {}
    for name, array in arrays.items():
        kind, _, rest = name.partition("/")
        number = rest.partition("/")[0]
        if kind == "network" and number.isdecimal():
            found.setdefault(int(number), []).append(array)
    if sorted(found) != list(range(len(network.weights))):
        raise UserError(f"checkpoint {path}: it holds {len(found)} weights; the network has {len(network.weights)}")
    for number, weight in enumerate(network.weights):
        if any(array.shape != tuple(weight.shape) for array in found[number]):
            raise UserError(
                f"checkpoint {path}: weight {number} is not of shape {tuple(weight.shape)}, as {weight.name} is"
            )
        mean = found[number][0] if len(found[number]) == 1 else np.mean(np.asarray(found[number], np.float64), axis=0)
        training_state.assign_values(weight, [mean] * len(training_state.replica_values(weight)))
