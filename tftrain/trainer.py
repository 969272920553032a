"""One run: train a network over some data on some devices, evaluate it, and leave a run directory."""

import contextlib
import dataclasses
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tftrain import console, optimizers, quiet, run_directory
from tftrain.configuration import Recipe, Saving
from tftrain.dashboards import Dashboards
from tftrain.data.batching import Batches
from tftrain.errors import UserError
from tftrain.monitor import Monitor
from tftrain.run_directory import RunDirectory
from tftrain.runtime import Runtime
from tftrain.training_step import TrainingModel


@dataclasses.dataclass(frozen=True)
class Task:
    """What is to be learnt.

    Attributes:
      name: the experiment's name.
      train, test: the batches to train on and to evaluate.
      label_names: the classes in the order of their numbers.
      build_network: makes the network; it is called under the strategy's scope, after the seed is set.
      network: what the network can be built from again, as JSON; for config.json.
      inputs: how a person's data become the network's inputs, as JSON; for config.json.
      notes: lines about the data or the network for the banner, as (name, text).
    """

    name: str
    train: Batches
    test: Batches
    label_names: list[str]
    build_network: Callable[[], keras.Model]
    network: dict = dataclasses.field(default_factory=dict)
    inputs: dict = dataclasses.field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()


def check_batches(recipe: Recipe, runtime: Runtime) -> None:
    """Refuse batches that cannot be divided over the replicas.

    Raises:
      UserError: which names the flag.
    """
    for name in ("batch_size", "eval_batch_size"):
        size = getattr(recipe, name)
        if size is not None and size < runtime.replicas:
            raise UserError(f"--{name}={size}: smaller than the number of replicas, {runtime.replicas}")
    if recipe.accumulate_steps * runtime.replicas > recipe.batch_size:
        raise UserError(
            f"--accumulate_steps={recipe.accumulate_steps}: on {runtime.replicas} replicas --batch_size should be "
            f"at least {recipe.accumulate_steps * runtime.replicas}; it is {recipe.batch_size}"
        )


def build_model(task: Task, recipe: Recipe, runtime: Runtime, total_steps: int) -> TrainingModel:
    """The task's network, ready to train for `total_steps` steps under the runtime's strategy."""
    keras.utils.set_random_seed(recipe.seed)
    with runtime.strategy.scope():
        network = task.build_network()
        model = TrainingModel(
            network,
            classes=len(task.label_names),
            xla=runtime.xla,
            accumulate_steps=recipe.accumulate_steps,
            label_smoothing=recipe.label_smoothing,
            seed=recipe.seed,
        )
        optimizer = optimizers.make_optimizer(recipe, total_steps, network.trainable_variables)
        # Any number above 1 makes Keras loop inside its train function; the monitor sets how often.
        model.compile(optimizer=optimizer, steps_per_execution=2)
    return model


def train(
    task: Task,
    recipe: Recipe,
    runtime: Runtime,
    run: RunDirectory,
    *,
    saving: Saving | None = None,
    flags: dict | None = None,
    started: float | None = None,
) -> dict:
    """Train, evaluate after each epoch, and write config.json, results.json, a checkpoint and TensorBoard's files.

    Args:
      task: the data and the network.
      recipe: how to train.
      runtime: from `runtime.start`, called before the network and the batches were made.
      run: where results go.
      saving: how the run is kept; None: `Saving()`.
      flags: every flag as resolved, for config.json.
      started: time.monotonic() at the start of the command, for `seconds` and `seconds_to_first_step`.

    Returns:
      what is in results.json.
    """
    started = time.monotonic() if started is None else started
    check_batches(recipe, runtime)
    steps_per_epoch = task.train.steps_per_epoch
    total_steps = recipe.steps or recipe.epochs * steps_per_epoch

    model = build_model(task, recipe, runtime, total_steps)
    network, optimizer = model.network, model.optimizer
    parameters = sum(int(np.prod(weight.shape)) for weight in network.weights)
    _say_banner(task, recipe, runtime, run, network, parameters, total_steps)
    run.write_json(
        "config.json",
        {
            "experiment": task.name,
            "flags": flags or {},
            "recipe": dataclasses.asdict(recipe),
            "saving": dataclasses.asdict(saving or Saving()),
            "chosen": {
                "devices": runtime.devices,
                "replicas": runtime.replicas,
                "strategy": type(runtime.strategy).__name__,
                "reduction": runtime.reduction,
                "precision": runtime.precision,
                "xla": runtime.xla,
                "batch_lengths": list(task.train.batch_lengths),
                "total_steps": total_steps,
            },
            "versions": run_directory.versions(),
            "network": task.network,
            "inputs": task.inputs,
            "label_names": task.label_names,
        },
    )

    monitor = Monitor(task.train, task.test, runtime.strategy, Dashboards(run.tensorboard), total_steps)
    whole_epochs, rest = divmod(total_steps, steps_per_epoch)
    if whole_epochs:
        _fit(model, task, runtime, monitor, first_epoch=0, epochs=whole_epochs, steps=steps_per_epoch)
    if rest:
        _fit(model, task, runtime, monitor, first_epoch=whole_epochs, epochs=1, steps=rest)
    monitor.close()

    checkpoint = run.save_checkpoint(tf.train.Checkpoint(network=network, optimizer=optimizer), total_steps)
    results = {
        "steps": total_steps,
        "epochs": total_steps / steps_per_epoch if rest else whole_epochs,
        **monitor.results(),
        "seconds_to_first_step": monitor.first_step_ended - started,
        "seconds": time.monotonic() - started,
        "replicas": runtime.replicas,
        "global_batch_size": recipe.batch_size,
        "precision": runtime.precision,
        "xla": runtime.xla,
        "parameters": parameters,
        "weights_sha256": run_directory.weights_sha256(network.weights),
    }
    run.write_json("results.json", results)
    console.say(
        f"test accuracy {results['test_accuracy']:.4f} on {results['test_examples']:,} examples, after "
        f"{console.duration(results['seconds'])}{monitor.pace + ' in training' if monitor.pace else ''}"
    )
    console.say(f"results      {run.path / 'results.json'}")
    console.say(f"checkpoint   {checkpoint}")
    console.say(f"curves       tensorboard --logdir={run.path.parent}")
    return results


def _fit(model, task, runtime, monitor, first_epoch: int, epochs: int, steps: int) -> None:
    """Train some epochs of `steps` steps each."""
    batches = task.train.distribute(runtime.strategy, first_step=first_epoch * task.train.steps_per_epoch)
    with contextlib.ExitStack() as held:
        held.enter_context(quiet.notices())  # while Keras makes the iterator
        model.fit(
            batches,
            initial_epoch=first_epoch,
            epochs=first_epoch + epochs,
            steps_per_epoch=steps,
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: held.close()), monitor],
            verbose=0,
        )


def _say_banner(task, recipe, runtime, run, network, parameters, total_steps) -> None:
    share = task.train.rows_per_replica(runtime.replicas)
    examples = min(recipe.batch_size, task.train.count)
    gradients = "" if runtime.replicas == 1 else f"; gradients: {runtime.reduction}"
    micro = f" in {recipe.accumulate_steps} micro-batches" if recipe.accumulate_steps > 1 else ""
    lines = [
        ("devices", f"{runtime.devices}; {runtime.replicas} replica{'s' * (runtime.replicas > 1)}{gradients}"),
        ("precision", f"{runtime.precision}; XLA {'on' if runtime.xla else 'off'}"),
        ("batch", f"{examples} examples in a step, {share} on each replica{micro}"),
        (
            "data",
            f"{task.train.count:,} training and {task.test.count:,} test examples, {len(task.label_names)} classes",
        ),
        *task.notes,
        ("network", f"{network.name}, {parameters:,} parameters"),
        ("steps", f"{total_steps:,}, {task.train.steps_per_epoch:,} an epoch"),
        ("run", str(run.path)),
    ]
    lines += [("note", note) for note in runtime.notes]
    examples = min(recipe.batch_size, task.train.count)
    if examples < recipe.batch_size:
        lines.append(
            ("note", f"--batch_size={recipe.batch_size} is more than the training data: a step has {examples}")
        )
    if share * runtime.replicas != examples:
        lines.append(
            ("note", f"{examples} examples do not divide evenly: {share * runtime.replicas} rows are computed")
        )
    for name, text in lines:
        console.say(f"{name:<12} {text}")
