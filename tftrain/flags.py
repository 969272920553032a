"""The flags that every experiment shares, the configuration that they become, and how a command ends.

An entry module calls `define_shared` and `group` at its top and `run(main)` at its end. Flags are parsed and
checked before TensorFlow is imported, so that --help and a mistake are answered at once.
"""

import dataclasses
import os
import sys
import textwrap

from absl import app, flags, logging

from tftrain import configuration, signals
from tftrain.configuration import DataSource, Hardware, Recipe, Saving, Showing
from tftrain.errors import UserError

FLAGS = flags.FLAGS
_groups: dict[str, list[str]] = {}
_AFTER = "After training"


class _Number(flags.ArgumentParser):
    """Parses what `convert` takes; ranges are checked where the configuration is made."""

    def __init__(self, convert, expected: str):
        self._convert, self._expected = convert, expected

    def parse(self, argument):
        try:
            return self._convert(argument)
        except ValueError:
            raise ValueError(f"should be {self._expected}") from None

    def flag_type(self) -> str:
        return self._expected


def integer(name: str, default: int | None, help: str):
    """Define a flag that takes a whole number."""
    return flags.DEFINE(_Number(int, "a whole number"), name, default, help)


def number(name: str, default: float | None, help: str):
    """Define a flag that takes a number."""
    return flags.DEFINE(_Number(float, "a number"), name, default, help)


def integers(name: str, default: list[int] | None, help: str):
    """Define a flag that takes whole numbers separated by commas."""
    expected = "whole numbers separated by commas"

    def convert(argument):
        return [int(part) for part in argument.split(",")] if isinstance(argument, str) else argument

    return flags.DEFINE(_Number(convert, expected), name, default, help, serializer=flags.CsvListSerializer(","))


def numbers(name: str, default: tuple[float, ...], help: str):
    """Define a flag that takes numbers separated by commas."""

    def convert(argument):
        return tuple(float(part) for part in argument.split(",")) if isinstance(argument, str) else argument

    parser = _Number(convert, "numbers separated by commas")
    return flags.DEFINE(parser, name, default, help, serializer=flags.CsvListSerializer(","))


def group(title: str, *holders) -> None:
    """Show the flags of these holders under `title` in --help."""
    _groups.setdefault(title, []).extend(holder.name for holder in holders)


def define_shared(**recipes: Recipe) -> None:
    """Define the flags that every experiment shares.

    Args:
      **recipes: the experiment's recipes by name; a flag that is not given has the chosen recipe's value.
    """

    def of(name: str, text: str) -> str:
        values = {title.replace("_", " "): getattr(recipe, name) for title, recipe in recipes.items()}
        if len(set(values.values())) == 1:
            return f"{text} (default: {next(iter(values.values()))})"
        return f"{text} (default: {', '.join(f'{value} {title}' for title, value in values.items())})"

    group(
        "Hardware",
        integer("gpus", None, "the first N GPUs; left out: all that are visible, else the CPU; 0: the CPU"),
        integer("virtual_devices", None, "N logical devices on the CPU, or on one GPU with --gpus=1"),
        flags.DEFINE_enum(
            "precision",
            "auto",
            configuration.PRECISIONS,
            "auto: mixed_bfloat16 on GPUs of compute capability 8.0 and up and on CPUs with bfloat16 matrix units, "
            "mixed_float16 on GPUs of 7.x, else float32",
        ),
        flags.DEFINE_enum("xla", "auto", configuration.SWITCHES, "auto: on for GPUs and for mixed_float16, else off"),
    )
    group(
        "Recipe",
        integer("batch_size", None, of("batch_size", "examples in a step, over all replicas together")),
        integer("eval_batch_size", None, "the same for evaluation (default: --batch_size)"),
        integer("accumulate_steps", None, of("accumulate_steps", "micro-batches that a step is computed in")),
        integer("epochs", None, of("epochs", "passes over the training data")),
        integer("steps", None, "training steps, instead of --epochs"),
        number("learning_rate", None, of("learning_rate", "the peak of the schedule")),
        flags.DEFINE_enum("schedule", None, configuration.SCHEDULES, of("schedule", "what follows the warm-up")),
        number("warmup", None, of("warmup", "steps of linear warm-up; below 1, a share of all steps")),
        flags.DEFINE_enum("optimizer", None, configuration.OPTIMIZERS, of("optimizer", "the optimizer")),
        number("weight_decay", None, "decoupled decay of kernels and embeddings (default: 0.01 with adamw, else 0)"),
        number("label_smoothing", None, of("label_smoothing", "share of a label spread over all classes")),
        number("clip_norm", None, "scale the gradient down to this norm where it is longer (default: never)"),
        integer("seed", None, of("seed", "of initial weights, order, dropout and augmentation")),
    )
    default = Saving()
    group(
        "Run",
        flags.DEFINE_string("run_dir", None, "where results go (default: runs/EXPERIMENT/DATE-TIME)"),
        flags.DEFINE_enum(
            "resume", default.resume, configuration.RESUMES, "auto: go on with the run that the same command began"
        ),
        flags.DEFINE_string(
            "checkpoint_every", default.checkpoint_every, "steps, such as 500, or time, such as 90s, 10min or 2h"
        ),
        integer("keep_checkpoints", default.keep_checkpoints, "so many of the newest are kept, beside the best"),
        flags.DEFINE_enum("best_metric", default.best_metric, configuration.METRICS, "of the test: what best/ goes by"),
        integer("patience", None, "stop when so many epochs in a row were no better than the best (default: never)"),
        flags.DEFINE_enum(
            "on_nan",
            default.on_nan,
            configuration.ON_NAN,
            "of a loss or gradient that is not finite; rollback: go back to the last checkpoint, skip the batch",
        ),
        integer("max_rollbacks", default.max_rollbacks, "stop after so many"),
    )
    group(
        "Dashboards",
        integer("log_every", None, "steps between points of the curves (default: at least 20, and 1/20 epoch)"),
        flags.DEFINE_bool("histograms", False, "show the distribution of each weight after each epoch"),
        integers("profile_steps", None, "A,B: trace steps A to B for TensorBoard's profile plugin"),
    )


def define_modes(*modes: str) -> None:
    """Define --mode and the flags of what comes after training.

    Args:
      *modes: what the experiment can do; the first is the default.
    """
    group(
        _AFTER,
        flags.DEFINE_enum("mode", modes[0], modes, "train, or use the run in --run_dir: evaluate it, or predict"),
        flags.DEFINE_enum("checkpoint", "best", ("best", "last"), "whose weights are used after training"),
        flags.DEFINE_string("input", None, "to predict: a file, a folder, or - for paths on standard input"),
        flags.DEFINE_string("output", None, "the file for predictions (default: standard output)"),
        flags.DEFINE_enum("format", "jsonl", ("jsonl", "csv"), "of predictions"),
    )


def saved_run_dir() -> str:
    """--run_dir, which every mode but train needs.

    Raises:
      UserError: it was not given.
    """
    if FLAGS.run_dir is None:
        raise UserError(
            f"--mode={FLAGS.mode}: needs --run_dir=FOLDER, that of a trained run, such as runs/.../DATE-TIME"
        )
    return FLAGS.run_dir


def define_data(default: str, ships: str, own: str) -> None:
    """Define the flags that say where examples come from, which every experiment shares.

    Args:
      default: the data set that is taken when no other is named.
      ships: the names of the sets that ship or can be installed.
      own: what a person's own files may be, such as "a folder of class folders".
    """
    flags.DEFINE_string("dataset", default, f"{ships}; a TFDS name, or {own}")
    flags.DEFINE_string("train_data", None, f"in place of --dataset: {own}, to train on")
    flags.DEFINE_string("test_data", None, "the same, to test on")
    flags.DEFINE_string(
        "train_split", None, "of a TFDS set, in TFDS' slicing syntax, such as train[:90%] (default: train)"
    )
    flags.DEFINE_string(
        "test_split", None, "the same, to test on (default: test, or validation where test has no labels)"
    )
    flags.DEFINE_string("tfds_dir", None, "where prepared TFDS sets stand (default: TFDS' own)")
    number(
        "hold_out", None, "share of the training data held out to test on, where there are no test data (default: 0.1)"
    )
    flags.DEFINE_enum("cache", "auto", configuration.CACHES, "keep decoded examples in memory or on disk")
    _groups.setdefault("Data", []).extend(field.name for field in dataclasses.fields(DataSource))


def data() -> DataSource:
    """Where the flags say that examples come from.

    Raises:
      UserError: flags that do not go together.
    """
    given = {field.name: FLAGS[field.name].value for field in dataclasses.fields(DataSource)}
    if given["train_data"] is not None and not FLAGS["dataset"].present:
        given["dataset"] = None  # the default's
    return DataSource(**given)


def data_of(given: dict, run_dir: str) -> DataSource:
    """Where the flags say that examples come from, or else where those of a trained run came from.

    Args:
      given: the flags of the run, from its config.json.
      run_dir: its folder, for messages.

    Raises:
      UserError: neither says it.
    """
    if FLAGS["dataset"].present or FLAGS["train_data"].present:
        return data()
    found = {field.name: given[field.name] for field in dataclasses.fields(DataSource) if field.name in given}
    kinds = {name: (int, float) if name == "hold_out" else str for name in found}
    if not found or any(value is not None and not isinstance(value, kinds[name]) for name, value in found.items()):
        raise UserError(f"--run_dir={run_dir}: does not say what it was trained on; give --dataset")
    return DataSource(**found)


def set_defaults(**values) -> None:
    """Change flags' defaults, as an experiment's recipe does; the command line still has the last word.

    A name or value that is wrong ends the command, as it does on the command line.
    """
    try:
        for name, value in values.items():
            FLAGS.set_default(name, value)
    except flags.Error as error:
        _refuse(f"set_defaults: {error}")


def hardware() -> Hardware:
    """The hardware that the flags ask for."""
    return Hardware(gpus=FLAGS.gpus, virtual_devices=FLAGS.virtual_devices, precision=FLAGS.precision, xla=FLAGS.xla)


def recipe(base: Recipe) -> Recipe:
    """The recipe `base` with the flags' values in place of its own.

    Of --epochs and --steps, the one on the command line stands against the other's default.

    Raises:
      UserError: a value is out of range, or both --epochs and --steps are on the command line.
    """
    given = {
        field.name: FLAGS[field.name].value
        for field in dataclasses.fields(Recipe)
        if FLAGS[field.name].value is not None
    }
    if not (FLAGS["epochs"].present and FLAGS["steps"].present):
        if FLAGS["steps"].present or ("steps" in given and not FLAGS["epochs"].present):
            given["epochs"] = None
        elif "epochs" in given:
            given["steps"] = None
    if given.get("optimizer", base.optimizer) != base.optimizer:
        given.setdefault("weight_decay", None)  # the base's belongs to its own optimizer
    return dataclasses.replace(base, **given)


def saving() -> Saving:
    """How the flags say that the run is kept.

    Raises:
      UserError: a value is out of range.
    """
    return Saving(**{field.name: FLAGS[field.name].value for field in dataclasses.fields(Saving)})


def showing() -> Showing:
    """What the flags say that dashboards show.

    Raises:
      UserError: a value is out of range.
    """
    steps = FLAGS.profile_steps
    return Showing(
        log_every=FLAGS.log_every, histograms=FLAGS.histograms, profile_steps=None if steps is None else tuple(steps)
    )


def resolved(recipe: Recipe, **values) -> dict:
    """Every flag of the training by name, for config.json.

    Args:
      recipe: gives the values of the flags that were left out.
      **values: those of others that were left out.
    """
    # Those of "After training" say nothing about a training.
    names = [name for title, group in _groups.items() if title != _AFTER for name in group]
    return {name: FLAGS[name].value for name in names} | dataclasses.asdict(recipe) | values


def _print_help(program: str, purpose: str) -> None:
    print(f"{purpose.strip()}\n\nusage: {program} [--flag=value ...]")
    for title, names in _groups.items():
        print(f"\n{title}:")
        for name in names:
            flag = FLAGS[name]
            choices = "{" + "|".join(flag.parser.enum_values) + "}" if hasattr(flag.parser, "enum_values") else "..."
            print(f"  --[no]{name}" if flag.boolean else f"  --{name}={choices}")
            text = flag.help.removeprefix(f"<{choices[1:-1]}>: ")
            if flag.default is not None:
                text = f"{text.partition(' (default: ')[0]} (default: {flag.default_as_str.strip(chr(39))})"
            print(textwrap.fill(text, 100, initial_indent="      ", subsequent_indent="      "))


def run(main) -> None:
    """Parse the command line and call `main()`; this is the end of every entry module.

    `main` takes no arguments. --help prints the flags by group. A mistake (UserError, a wrong flag) gets one line
    and exit status 2, one that SIGINT or SIGTERM ended 130 or 143.
    """

    def parse(arguments):
        if any(argument in ("--help", "-help", "-h", "--helpshort", "-?") for argument in arguments[1:]):
            module = sys.modules["__main__"]
            name = module.__spec__.name if module.__spec__ else arguments[0]
            try:
                _print_help(f"python -m {name}", module.__doc__ or "")
                sys.stdout.flush()
            except BrokenPipeError:  # the reader, head say, has seen enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end
            sys.exit(0)
        try:
            rest = FLAGS(arguments)
        except (flags.Error, ValueError) as error:  # absl lets some of its parsers' own errors through
            _refuse(f"{error}; --help lists the flags" if isinstance(error, flags.UnrecognizedFlagError) else error)
        if len(rest) > 1:
            _refuse(f"unexpected argument {rest[1]!r}; flags are written --flag=value")
        return rest

    def guarded(_):
        logging.set_verbosity(logging.WARNING)
        signals.install()
        try:
            main()
        except UserError as error:
            _refuse(error)
        except signals.Interrupted as interruption:
            sys.exit(interruption.status)

    app.run(guarded, flags_parser=parse)


def _refuse(error) -> None:
    print("error: " + " ".join(str(error).split()), file=sys.stderr)
    sys.exit(2)
