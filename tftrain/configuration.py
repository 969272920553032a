"""What a run is asked to do, as frozen dataclasses that refuse what cannot be.

They are made from flags by `tftrain.flags`, or directly in a notebook. Nothing here imports TensorFlow.
"""

import dataclasses
import math
import re

from tftrain.errors import UserError

PRECISIONS = ("auto", "float32", "mixed_bfloat16", "mixed_float16")
SWITCHES = ("auto", "on", "off")
OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "linear", "cosine")
CACHES = ("auto", "none", "memory", "disk")
RESUMES = ("auto", "never")
METRICS = ("accuracy", "loss")
ON_NAN = ("stop", "rollback")
_SECONDS = {"s": 1, "min": 60, "h": 3600}


def check(name: str, value, condition: bool, expected: str) -> None:
    """Raise UserError that names the field, its value and what is expected, unless the condition holds."""
    if not condition:
        raise UserError(f"--{name}={value}: should be {expected}")


def check_count(name: str, value, minimum: int = 1) -> None:
    """Refuse what is not a whole number of at least `minimum`, or does not fit into 32 bits."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    check(name, value, whole and value >= minimum, f"a whole number of at least {minimum}")
    check(name, value, value < 2**31, "below 2147483648")


def check_number(name: str, value, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    """Refuse what is not a finite number in [low, high), or in (low, high) with `open_low`."""
    finite = isinstance(value, (int, float)) and math.isfinite(value)
    inside = finite and (value > low if open_low else value >= low) and value < high
    bounds = f"above {low:g}" if open_low else f"of at least {low:g}"
    bounds += "" if math.isinf(high) else f" and below {high:g}"
    check(name, value, inside, f"a finite number {bounds}")


def check_choice(name: str, value, choices) -> None:
    """Refuse what is not one of the choices."""
    check(name, value, value in choices, "one of " + ", ".join(choices))


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Where a run computes, and in which arithmetic.

    Attributes:
      gpus: the first so many GPUs; None: all that are visible, else the CPU; 0: the CPU.
      virtual_devices: so many logical devices on the CPU, or on one GPU with `gpus=1`.
      precision: one of PRECISIONS.
      xla: one of SWITCHES.
    """

    gpus: int | None = None
    virtual_devices: int | None = None
    precision: str = "auto"
    xla: str = "auto"

    def __post_init__(self):
        if self.gpus is not None:
            check_count("gpus", self.gpus, minimum=0)
        if self.virtual_devices is not None:
            check_count("virtual_devices", self.virtual_devices)
            if self.gpus is not None and self.gpus > 1:
                raise UserError(
                    f"--gpus={self.gpus} with --virtual_devices={self.virtual_devices}: "
                    "virtual devices divide the CPU (--gpus=0) or one GPU (--gpus=1)"
                )
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("xla", self.xla, SWITCHES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSource:
    """Where examples come from, as a person names it; `tftrain.data` finds and reads them.

    Attributes:
      dataset: the name of a set that ships or that TFDS knows, or a path.
      train_data, test_data: two paths, in place of `dataset`; test_data may be left out where a part is held out.
      train_split, test_split: of a TFDS set, in TFDS' slicing syntax, such as "train[:90%]"; None: "train", and for the
        test what the set has of "test" and "validation".
      tfds_dir: where prepared TFDS sets stand; None: TFDS' own default.
      hold_out: the share of the training data that is held out to test on, stratified by label and drawn with `seed`;
        None: none where test data are there, else 0.1.
      cache: one of CACHES: whether examples are decoded once, and kept in memory or on disk.
    """

    dataset: str | None = None
    train_data: str | None = None
    test_data: str | None = None
    train_split: str | None = None
    test_split: str | None = None
    tfds_dir: str | None = None
    hold_out: float | None = None
    cache: str = "auto"

    def __post_init__(self):
        if (self.dataset is None) == (self.train_data is None):
            raise UserError(
                f"--dataset={self.dataset} and --train_data={self.train_data}: exactly one of the two should be given"
            )
        if self.test_data is not None and self.train_data is None:
            raise UserError(f"--test_data={self.test_data}: needs --train_data; --dataset has test data of its own")
        if self.hold_out is not None:
            check_number("hold_out", self.hold_out, 0, 1, open_low=True)
            if self.test_data is not None or self.test_split is not None:
                raise UserError(f"--hold_out={self.hold_out:g}: is not for data that have a test part of their own")
        check_choice("cache", self.cache, CACHES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How training images are changed at random, anew in every epoch; `tftrain.data.augmentation` does it.

    Attributes:
      flip: mirrored left to right with probability one half.
      shift: moved by up to so many pixels each way; black comes in.
      random_crop: a random part of the image in place of its middle, resized (Szegedy et al., 2015, section 6).
      crop_scale: least and greatest share of the image's area in that part.
      crop_ratio: least and greatest ratio of its width to its height.
      randaugment: (N, M): N of 14 operations, at magnitude M of 10 (Cubuk et al., 2020); None: none.
      colour_jitter: brightness, contrast and saturation are multiplied by 1 - colour_jitter to 1 + colour_jitter.
    """

    flip: bool = False
    shift: int = 0
    random_crop: bool = False
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    randaugment: tuple[int, int] | None = None
    colour_jitter: float = 0.0

    def __post_init__(self):
        check_count("shift", self.shift, minimum=0)
        for name, high in (("crop_scale", 1.0), ("crop_ratio", 100.0)):
            value = getattr(self, name)
            ordered = len(value) == 2 and 0 < value[0] <= value[1] <= high  # NaN is not
            shown = ",".join(f"{number:g}" for number in value)
            check(name, shown, ordered, f"two numbers, least and greatest, above 0 and at most {high:g}")
        if self.randaugment is not None:
            value = self.randaugment
            shown = ",".join(map(str, value))
            fits = len(value) == 2 and 1 <= value[0] <= 14 and 0 <= value[1] <= 10
            check("randaugment", shown, fits, "N,M: 1 to 14 operations, and their magnitude from 0 to 10")
        check_number("colour_jitter", self.colour_jitter, 0, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained.

    Attributes:
      batch_size: examples in a step, over all replicas together (the global batch size).
      eval_batch_size: the same for evaluation; None: batch_size.
      accumulate_steps: micro-batches that a replica's share of a step is computed in.
      epochs, steps: how long; exactly one of the two.
      learning_rate: the peak of the schedule.
      schedule: one of SCHEDULES; linear and cosine end at 0 with the last step.
      warmup: steps of linear warm-up; below 1, a share of all steps.
      optimizer: one of OPTIMIZERS.
      weight_decay: decoupled weight decay (Loshchilov and Hutter, 2019), of kernels and embeddings alone;
        None: 0.01 with adamw, else none.
      label_smoothing: the share of each label's probability that is spread over all classes.
      clip_norm: the gradient of all weights together is scaled down to this norm where it is longer, over all replicas
        (Pascanu et al., 2013); None: never.
      seed: of the initial weights, the order of the examples, dropout and augmentation.
    """

    batch_size: int
    eval_batch_size: int | None = None
    accumulate_steps: int = 1
    epochs: int | None = None
    steps: int | None = None
    learning_rate: float
    schedule: str = "constant"
    warmup: float = 0
    optimizer: str = "adam"
    weight_decay: float | None = None
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    seed: int = 0

    def __post_init__(self):
        for name in ("batch_size", "accumulate_steps"):
            check_count(name, getattr(self, name))
        for name in ("eval_batch_size", "epochs", "steps"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if (self.epochs is None) == (self.steps is None):
            raise UserError(f"--epochs={self.epochs} and --steps={self.steps}: exactly one of the two should be given")
        check_number("learning_rate", self.learning_rate, 0, open_low=True)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_number("warmup", self.warmup, 0)
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise UserError(
                f"--warmup={self.warmup}: should be a share of all steps below 1, or a whole number of steps"
            )
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        if self.weight_decay is not None:
            check_number("weight_decay", self.weight_decay, 0)
        if self.weight_decay and self.optimizer == "adam":
            raise UserError(f"--weight_decay={self.weight_decay:g} with --optimizer=adam: use --optimizer=adamw")
        check_number("label_smoothing", self.label_smoothing, 0, 1)
        if self.clip_norm is not None:
            check_number("clip_norm", self.clip_norm, 0, open_low=True)
        check_count("seed", self.seed, minimum=0)

    @property
    def evaluation_batch_size(self) -> int:
        """Examples in a step of evaluation, over all replicas together."""
        return self.eval_batch_size or self.batch_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saving:
    """How a run is kept, and when it ends before its last step.

    Attributes:
      resume: "auto": a run that stands in the run directory goes on; "never": it is refused.
      checkpoint_every: steps, such as "500", or time, such as "90s", "10min" or "2h"; the end of an epoch is always
        saved.
      keep_checkpoints: so many of the newest stay, beside the best.
      best_metric: one of METRICS, of the test; the weights that are best by it are kept apart.
      patience: training ends when so many epochs in a row were no better than the best; None: never.
      on_nan: what happens when the loss or a gradient is not finite. "stop": the run ends; "rollback": it goes back to
        the last checkpoint and on without the batch that did it.
      max_rollbacks: after so many, the run ends all the same.
    """

    resume: str = "auto"
    checkpoint_every: str = "10min"
    keep_checkpoints: int = 2
    best_metric: str = "accuracy"
    patience: int | None = None
    on_nan: str = "stop"
    max_rollbacks: int = 3

    def __post_init__(self):
        check_choice("resume", self.resume, RESUMES)
        found = re.fullmatch(r"([1-9]\d{0,8})(s|min|h)?", str(self.checkpoint_every))
        expected = "a number of steps, such as 500, or a time, such as 90s, 10min or 2h"
        check("checkpoint_every", self.checkpoint_every, found is not None, expected)
        check_count("keep_checkpoints", self.keep_checkpoints)
        check_choice("best_metric", self.best_metric, METRICS)
        if self.patience is not None:
            check_count("patience", self.patience)
        check_choice("on_nan", self.on_nan, ON_NAN)
        check_count("max_rollbacks", self.max_rollbacks)

    @property
    def every_steps(self) -> int | None:
        """Steps between two checkpoints; None where it is a time."""
        every = str(self.checkpoint_every)
        return int(every) if every.isdigit() else None

    @property
    def every_seconds(self) -> int | None:
        """Seconds between two checkpoints; None where it is a number of steps."""
        if self.every_steps is not None:
            return None
        count, unit = re.fullmatch(r"(\d+)(\D+)", self.checkpoint_every).groups()
        return int(count) * _SECONDS[unit]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Showing:
    """What a run's dashboards show beyond what they always do.

    Attributes:
      log_every: steps between two points of a curve; None: at least 20, at most 20 points in an epoch.
      histograms: whether the distribution of each weight is written after each epoch.
      profile_steps: the first and the last step, from 1 on, of a trace for TensorBoard's profile plugin; None: none.
    """

    log_every: int | None = None
    histograms: bool = False
    profile_steps: tuple[int, int] | None = None

    def __post_init__(self):
        if self.log_every is not None:
            check_count("log_every", self.log_every)
        if self.profile_steps is not None:
            given = ",".join(map(str, self.profile_steps))
            check("profile_steps", given, len(self.profile_steps) == 2, "two step numbers, such as 100,110")
            for step in self.profile_steps:
                check_count("profile_steps", step)
            check("profile_steps", given, self.profile_steps[0] <= self.profile_steps[1], "in ascending order")
