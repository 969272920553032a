"""The variables of a training as named arrays, and back.

Names are KIND/NUMBER/NAME: the kind is network, optimizer or metrics, the number a variable's place in its list. NAME
is for people alone. A variable that each replica keeps for itself (batch normalisation's moving averages, metrics) has
an array for each, NAME@REPLICA.
"""

import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tftrain.errors import UserError
from tftrain.training_step import TrainingModel

_NAME = re.compile(r"(network|optimizer|metrics)/[0-9]{3,6}/[^@]*(@[0-9]{1,6})?", re.DOTALL)


def read(model: TrainingModel) -> dict[str, np.ndarray]:
    """All arrays of a training whose optimizer is built; copies."""
    return {
        f"{kind}/{number:03}/{name}": array
        for kind, variables in _variables(model).items()
        for number, variable in enumerate(variables)
        for name, array in _named(variable)
    }


def weights(network: keras.Model) -> dict[str, np.ndarray]:
    """The weights alone, one array each: what evaluation and prediction take."""
    return {f"network/{i:03}/{_name(weight)}": weight.numpy() for i, weight in enumerate(network.weights)}


def assign(model: TrainingModel, arrays: dict[str, np.ndarray]) -> None:
    """Give a training's variables what `read` returned, in another process and on another number of replicas too.

    Raises:
      UserError: the arrays are not those of this network and optimizer.
    """
    found = {}
    for name in arrays:
        if not _NAME.fullmatch(name):
            raise UserError(f"the checkpoint holds {name[:80]!r}, which is no name that a training gives")
    for name in sorted(arrays, key=lambda name: (name.partition("@")[0], int(name.partition("@")[2] or 0))):
        kind, number, _ = name.split("/", 2)
        found.setdefault((kind, int(number)), []).append(arrays[name])
    for kind, variables in _variables(model).items():
        present = [number for found_kind, number in found if found_kind == kind]
        if sorted(present) != list(range(len(variables))):
            raise UserError(f"the checkpoint holds {len(present)} {kind} variables; this run has {len(variables)}")
        for number, variable in enumerate(variables):
            values = found[kind, number]
            if any(value.shape != tuple(variable.shape) for value in values):
                raise UserError(
                    f"the checkpoint's {kind} variable {number} is of shape {values[0].shape}; "
                    f"{_name(variable)!r} of this run is of shape {tuple(variable.shape)}"
                )
            assign_values(variable, values)


def replica_values(variable: tf.Variable) -> list[np.ndarray]:
    """A variable's value on each replica; one, where it is the same on all."""
    parts = variable.values if _is_per_replica(variable) else [variable]
    return [part.numpy() for part in parts]


def assign_values(variable: tf.Variable, values: Sequence[np.ndarray]) -> None:
    """Give a variable what `replica_values` returned.

    On another number of replicas, what adds up over them (counts) is divided anew, and what is averaged is averaged.
    """
    parts = variable.values if _is_per_replica(variable) else [variable]
    if len(values) != len(parts):
        if variable.aggregation == tf.VariableAggregation.SUM:
            values = [np.sum(values, axis=0), *(np.zeros_like(values[0]) for _ in parts[1:])]
        else:
            values = [np.mean(np.asarray(values, np.float64), axis=0)] * len(parts)
    for part, value in zip(parts, values):
        part.assign(tf.cast(value, part.dtype))


def read_loss_scale(model: TrainingModel) -> dict | None:
    """The loss scale, the steps since it changed, and overflows at its floor, as JSON; None without one."""
    if not isinstance(model.optimizer, keras.mixed_precision.LossScaleOptimizer):
        return None
    return {
        "scale": float(model.optimizer.loss_scale),
        "good_steps": int(model.optimizer.dynamic_counter),
        "overflows": int(model.watch.overflows.numpy()),
    }


def assign_loss_scale(model: TrainingModel, saved: dict | None) -> str | None:
    """Give a training what `read_loss_scale` returned.

    Returns:
      a line for where the precision has changed, so that one side has no loss scale; else None.
    """
    scaled = isinstance(model.optimizer, keras.mixed_precision.LossScaleOptimizer)
    if not scaled:
        return (
            saved and f"the loss scale of the run so far, {saved['scale']:g}, is ignored: there is none without float16"
        )
    if saved is None:
        return f"the run so far had no loss scale; float16 begins with {float(model.optimizer.loss_scale):g}"
    model.optimizer._loss_scale.current_loss_scale.assign(saved["scale"])
    model.optimizer.dynamic_counter.assign(saved["good_steps"])
    model.watch.overflows.assign(saved["overflows"])
    return None


def _variables(model: TrainingModel) -> dict[str, list[tf.Variable]]:
    return {
        "network": model.network.weights,
        "optimizer": list(model.optimizer.variables),
        "metrics": [variable for metric in model.training_metrics for variable in metric.variables],
    }


def _named(variable: tf.Variable) -> list[tuple[str, np.ndarray]]:
    values = replica_values(variable)
    if len(values) == 1:
        return [(_name(variable), values[0])]
    return [(f"{_name(variable)}@{replica}", value) for replica, value in enumerate(values)]


def _name(variable: tf.Variable) -> str:
    return variable.name.partition(":")[0].replace("@", "_")


def _is_per_replica(variable: tf.Variable) -> bool:
    return variable.synchronization == tf.VariableSynchronization.ON_READ and hasattr(variable, "values")
