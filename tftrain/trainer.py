"""One run: train a network over some data on some devices, evaluate it, and leave a run directory."""

import dataclasses
import hashlib
import shlex
import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tftrain import (
    console,
    dashboard,
    optimizers,
    report,
    resuming,
    run_directory,
    saved_state,
    signals,
    training_state,
)
from tftrain.checkpoints import Checkpoints
from tftrain.configuration import Recipe, Saving, Showing
from tftrain.data.batching import Batches
from tftrain.display import Display
from tftrain.errors import UserError
from tftrain.keeper import Keeper
from tftrain.monitor import Monitor
from tftrain.run_directory import RunDirectory
from tftrain.runtime import Runtime
from tftrain.training_loop import TrainingLoop, evaluated_step
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
      describe: gives the texts of test examples by their row numbers, for those that were taken for another class; None
        where they are no texts.
      notes: lines about the data or the network for the banner, as (name, text).
    """

    name: str
    train: Batches
    test: Batches
    label_names: list[str]
    build_network: Callable[[], keras.Model]
    network: dict = dataclasses.field(default_factory=dict)
    inputs: dict = dataclasses.field(default_factory=dict)
    describe: Callable | None = None
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
            clip_norm=recipe.clip_norm,
            seed=recipe.seed,
        )
        optimizer = optimizers.make_optimizer(recipe, total_steps, network.trainable_variables)
        # Any number above 1 makes Keras loop inside its train function; the monitor sets how often.
        model.compile(optimizer=optimizer, steps_per_execution=2)
        optimizer.build(network.trainable_variables)  # now, so that its variables are the strategy's too
    return model


def train(
    task: Task,
    recipe: Recipe,
    runtime: Runtime,
    run: RunDirectory,
    *,
    saving: Saving | None = None,
    showing: Showing | None = None,
    flags: dict | None = None,
    started: float | None = None,
) -> dict:
    """Train, evaluate after each epoch, and write config.json, results.json, checkpoints and TensorBoard's files.

    A run that stands in the run directory goes on where its last complete checkpoint stands; a finished one is left as
    it is, unless there are more steps now.

    Args:
      task: the data and the network.
      recipe: how to train.
      runtime: from `runtime.start`, called before the network and the batches were made.
      run: where results go.
      saving: how the run is kept; None: `Saving()`.
      showing: what dashboards show beyond what they always do.
      flags: every flag as resolved, for config.json.
      started: time.monotonic() at the start of the command, for `seconds` and `seconds_to_first_step`.

    Returns:
      what is in results.json.

    Raises:
      UserError: the batches cannot be divided, the run that stands there is another one, or the training went wrong.
      signals.Interrupted: it was told to end by a signal, and is saved.
    """
    started = time.monotonic() if started is None else started
    saving = saving or Saving()
    check_batches(recipe, runtime)
    config = _config(task, recipe, runtime, saving, flags)
    checkpoints = Checkpoints(run.path, saving.keep_checkpoints)
    checkpoint = None if run.state == "new" else checkpoints.latest()
    if checkpoint is not None:
        saved_state.check(checkpoint)
    changes = [] if checkpoint is None else resuming.check_changes(run.config, config, run.path)
    plan = resuming.make_plan(recipe, task.train.steps_per_epoch, checkpoint)
    results = resuming.finished(run, plan, saving)
    if results is not None:
        console.say(f"finished     {run.path} has been trained for all of its {results['steps']:,} steps already")
        return results
    if checkpoint is not None:
        started -= checkpoint.state["seconds"]

    model = build_model(task, recipe, runtime, plan.total_steps)
    parameters = sum(int(np.prod(weight.shape)) for weight in model.network.weights)
    done = 0 if checkpoint is None else checkpoint.step
    showing = showing or Showing()
    display = Display(
        run.tensorboard,
        task.train,
        task.test,
        task.label_names,
        model,
        runtime,
        plan.total_steps,
        done,
        showing,
        task.describe,
        evaluated_step(plan, done),
    )
    monitor = Monitor(
        task.train,
        task.test,
        runtime.strategy,
        display,
        plan,
        log_every=showing.log_every,
        stop_every=saving.every_steps,
        started=started,
    )
    keeper = Keeper(checkpoints, saving, monitor, plan, resuming.position(recipe, plan), started)
    loop = TrainingLoop(model, task.train, runtime.strategy, plan, monitor, keeper, checkpoints, saving)
    note = loop.restore(checkpoint) if checkpoint is not None else None
    checkpoints.check_space(sum(array.nbytes for array in training_state.read(model).values()))
    banner = _banner(task, recipe, runtime, run, model.network, parameters, plan.total_steps, display.notes)
    for name, text in banner:
        console.say(f"{name:<12} {text}")
    if checkpoint is not None:
        console.say(f"resumed      from step {done:,}, in epoch {plan.epoch(done - 1) + 1}: {checkpoint.path}")
    for line in changes + [f"note         {note}"] * (note is not None):
        console.say(line)
    config["chosen"]["total_steps"] = plan.total_steps
    run.write_json("config.json", config)
    (run.path / "results.json").unlink(missing_ok=True)  # those of fewer epochs
    schedule = optimizers.make_schedule(recipe, plan.total_steps)
    display.begin(
        run.path.name, config, banner, np.broadcast_to(schedule(tf.range(plan.total_steps)), plan.total_steps)
    )

    try:
        loop.run()
        results = _results(recipe, runtime, saving, plan, monitor, keeper, model, parameters, started)
        run.write_json("results.json", results)
        display.end(monitor.step, results)
    except signals.Interrupted as interruption:
        console.say(
            f"interrupted  by {interruption.name}; saved at step {checkpoints.latest().step:,} in {run.path}; "
            "the same command goes on from there"
        )
        raise
    finally:
        monitor.close()
    run.write_json("mistakes.json", display.mistakes)
    console.say(
        f"test accuracy {results['test_accuracy']:.4f} on {results['test_examples']:,} examples, after "
        f"{console.duration(results['seconds'])}{monitor.pace + ' in training' if monitor.pace else ''}"
    )
    console.say(f"best         {saving.best_metric} {keeper.best['score']:.4f}, of step {keeper.best['step']:,}")
    console.say(f"results      {run.path / 'results.json'}")
    console.say(f"report       {report.write(run.path)}")
    console.say(f"curves       {dashboard.command(run.path.parent)}")
    return results


def _results(recipe, runtime, saving, plan, monitor, keeper, model, parameters, started) -> dict:
    """What results.json holds."""
    position = plan.position(monitor.step)
    return {
        "steps": monitor.step,
        "epochs": position / plan.steps_per_epoch if plan.done(monitor.step) else position // plan.steps_per_epoch,
        **monitor.results(),
        "best_metric": saving.best_metric,
        "best_score": keeper.best["score"],
        "best_step": keeper.best["step"],
        "stopped_early": keeper.stopped,
        "skipped_steps": keeper.skipped,
        "seconds": time.monotonic() - started,
        "replicas": runtime.replicas,
        "global_batch_size": recipe.batch_size,
        "precision": runtime.precision,
        "xla": runtime.xla,
        "parameters": parameters,
        "weights_sha256": run_directory.weights_sha256(model.network.weights),
    }


def _config(task: Task, recipe: Recipe, runtime: Runtime, saving: Saving, flags: dict | None) -> dict:
    """What config.json holds."""
    return {
        "experiment": task.name,
        "command": shlex.join(["python", "-m", _module(), *sys.argv[1:]]) if flags else "",
        "flags": flags or {},
        "recipe": dataclasses.asdict(recipe),
        "saving": dataclasses.asdict(saving),
        "chosen": {
            "devices": runtime.devices,
            "replicas": runtime.replicas,
            "strategy": type(runtime.strategy).__name__,
            "reduction": runtime.reduction,
            "precision": runtime.precision,
            "xla": runtime.xla,
            "batch_lengths": list(task.train.batch_lengths),
        },
        "versions": run_directory.versions(),
        "network": task.network,
        "inputs": task.inputs,
        "label_names": task.label_names,
        "data": {
            "train_examples": task.train.count,
            "train_labels_sha256": hashlib.sha256(np.ascontiguousarray(task.train.examples.labels)).hexdigest(),
            "test_examples": task.test.count,
        },
    }


def _module() -> str:
    """The module that `python -m` runs."""
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec else sys.argv[0]


def _banner(task, recipe, runtime, run, network, parameters, total_steps, notes) -> list[tuple[str, str]]:
    """What is said of a run before its first step, as (name, text)."""
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
        *notes,
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
    return lines
