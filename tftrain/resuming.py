"""Whether a run may go on, and from where: what stands in its folder against what is asked for now."""

import json
import os
import pathlib

from tftrain import checkpoints, console, dashboards, durable, run_directory
from tftrain.checkpoints import Checkpoint
from tftrain.configuration import Recipe, Saving
from tftrain.errors import UserError
from tftrain.plan import Plan
from tftrain.run_directory import RunDirectory

_MAX_RESULTS_BYTES = 1 << 20
# What may change when a run goes on: where and how long it computes, and how it is kept.
FREE = dashboards.BOOKKEEPING | frozenset(
    "epochs steps gpus virtual_devices precision xla eval_batch_size accumulate_steps "
    "patience on_nan max_rollbacks".split()
)
# What may change too, and makes the run another one than either would have been from its beginning.
NOTICED = frozenset("batch_size learning_rate schedule warmup weight_decay label_smoothing clip_norm".split())


def open_run(path: str | os.PathLike | None, experiment: str, saving: Saving, flags: dict) -> RunDirectory:
    """The run directory of a command: the one it names, or that of the last run of the same flags, if it is unfinished.

    Args:
      path: the folder; None: below runs/EXPERIMENT.
      experiment: the experiment's name.
      saving: whether a run may go on.
      flags: every flag as resolved; all but --resume have to be those of the unfinished run.

    Raises:
      UserError: as RunDirectory.
    """
    if path is None and saving.resume == "auto" and (last := _last_of(experiment, flags)) is not None:
        if run_directory.state(last) == "resumable" and checkpoints.exist(last):
            try:
                run = RunDirectory(last, experiment, "auto")
                console.say(
                    f"note         the last run of these flags is not finished, and goes on: {last}; "
                    "--resume=never begins another"
                )
                return run
            except UserError:  # another process trains there
                pass
    return RunDirectory(path, experiment, saving.resume)


def check_changes(before: dict, now: dict, run: pathlib.Path) -> list[str]:
    """Compare two contents of config.json.

    Returns:
      lines that say what has changed.

    Raises:
      UserError: something has changed that may not.
    """
    old, new = ({**config["flags"], **config["recipe"]} for config in (before, now))
    changed = [name for name in new if name in old and _plain(new[name]) != _plain(old[name])]
    refused = [name for name in changed if name not in FREE | NOTICED]
    if refused:
        raise UserError(
            f"{_list(new, refused)}: the run in {run} was begun with {_list(old, refused)}, which may not change; "
            "give another --run_dir"
        )
    for name in ("label_names", "data", "inputs", "network"):
        if name in before and _plain(before[name]) != _plain(now[name]):
            what = "labels" if name == "label_names" else name
            raise UserError(
                f"--run_dir={run}: the {what} are others than those that the run there was begun with, and they may "
                "not change; give another --run_dir"
            )
    lines = []
    if free := [name for name in changed if name in FREE - {"run_dir", "resume"}]:
        lines.append(f"changed      {_list(new, free)}, in place of {_list(old, free)}")
    if noticed := [name for name in changed if name in NOTICED]:
        lines.append(
            f"changed      {_list(new, noticed)}, in place of {_list(old, noticed)}, for the steps to come: "
            "no run from the beginning would be the same"
        )
    return lines


def make_plan(recipe: Recipe, steps_per_epoch: int, checkpoint: Checkpoint | None) -> Plan:
    """The run's steps; after a change of batch size, from the place in the epoch that as many examples lead to.

    Raises:
      UserError: the checkpoint is beyond the steps that are asked for.
    """
    if checkpoint is None:
        return Plan.of(recipe.epochs, recipe.steps, steps_per_epoch)
    state, step = checkpoint.state, checkpoint.step
    before = Plan(state["steps_per_epoch"], step, state["offset"])
    done = before.done(step) * state["batch_size"] // recipe.batch_size
    position = before.epoch(step) * steps_per_epoch + done
    plan = Plan.of(recipe.epochs, recipe.steps, steps_per_epoch, offset=step - position)
    if plan.total_steps < step:
        asked = f"--steps={recipe.steps}" if recipe.steps else f"--epochs={recipe.epochs}, {plan.total_steps:,} steps"
        raise UserError(f"{asked}: the run has gone {step:,} steps already ({checkpoint.path}); give more")
    return plan


def position(recipe: Recipe, plan: Plan) -> dict:
    """What `make_plan` reads of a checkpoint's state."""
    return {"steps_per_epoch": plan.steps_per_epoch, "offset": plan.offset, "batch_size": recipe.batch_size}


def finished(run: RunDirectory, plan: Plan, saving: Saving) -> dict | None:
    """The results of a run that is finished and has nothing more to do; None: it may go on."""
    if run.state != "finished":
        return None
    try:
        results = json.loads(durable.read(run.path / "results.json", _MAX_RESULTS_BYTES))
        steps, early = results["steps"], results["stopped_early"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{run.path / 'results.json'}: not a run's results: {error!r}; remove it to go on") from None
    if not isinstance(steps, int):
        raise UserError(f"{run.path / 'results.json'}: not a run's results: steps is {steps!r}; remove it to go on")
    kept = run.config.get("saving")
    patience = kept.get("patience") if isinstance(kept, dict) else None
    return results if steps >= plan.total_steps or (early and patience == saving.patience) else None


def _last_of(experiment: str, flags: dict) -> pathlib.Path | None:
    """The folder of the last run that was begun or resumed with these flags."""
    runs = []
    for config in pathlib.Path("runs", experiment).glob("*/config.json"):
        try:
            runs.append((config.stat().st_mtime_ns, config.parent))
        except OSError:  # removed meanwhile
            continue
    wanted = _plain({name: value for name, value in flags.items() if name != "resume"})
    for _, folder in sorted(runs, reverse=True):
        try:
            found = run_directory.read_config(folder)["flags"]
        except UserError:  # not a run's
            continue
        if {name: value for name, value in found.items() if name != "resume"} == wanted:
            return folder
    return None


def _plain(value):
    """A value as JSON gives it back."""
    return json.loads(json.dumps(value))


def _list(values: dict, names: list[str]) -> str:
    """Flags with their values."""

    def written(value) -> str:
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else "" if value is None else str(value)

    return " ".join(f"--{name}={written(values[name])}" for name in names)
