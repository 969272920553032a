"""Follows a training: its pace, its progress, its curves, its evaluation after each epoch."""

import contextlib
import math
import time

import tensorflow as tf
import tf_keras as keras

from tftrain import console, quiet, signals, training_state
from tftrain.data.batching import Batches
from tftrain.display import Display
from tftrain.plan import Plan

# Keras runs so many seconds of steps between two callbacks: progress stays live and the callbacks cost nothing.
EXECUTION_SECONDS = 1.0
MAX_STEPS_PER_EXECUTION = 100
# Points of a curve: at most so many in an epoch, and none closer together than this.
POINTS_PER_EPOCH = 20
MIN_STEPS_PER_POINT = 20

# Keras warns of callbacks that take longer than a step; this one waits for the steps themselves.
tf.get_logger().addFilter(lambda record: "is slow compared to the batch time" not in record.getMessage())


class Monitor(keras.callbacks.Callback):
    """The first callback of a run.

    Scalars are written at steps that depend on the data and the recipe alone, so curves of runs on different hardware
    have their points at the same steps.

    Args:
      train, test: the batches trained on and evaluated.
      strategy: what to evaluate under.
      display: where curves go; closed by `close`.
      plan: the run's steps.
      log_every: steps between two points of a curve; None: at least MIN_STEPS_PER_POINT, at most POINTS_PER_EPOCH in an
        epoch.
      stop_every: no execution runs past a multiple of so many steps; None: past a point of the curve alone.

    Attributes:
      step: steps done.
      last: the results of the last epoch that was evaluated: {"train": {...}, "test": {...}}.
      seconds_to_first_step: from `started` to the end of the run's first execution; None before it.
    """

    _supports_tf_logs = True  # Keras need not wait for the device after each execution

    def __init__(
        self,
        train: Batches,
        test: Batches,
        strategy,
        display: Display,
        plan: Plan,
        *,
        stop_every: int | None = None,
        log_every: int | None = None,
        started: float | None = None,
    ):
        super().__init__()
        self._train, self._test, self._display = train, test, display
        self._test_batches = test.distribute(strategy)
        self._plan = plan
        self._log_every = log_every or max(MIN_STEPS_PER_POINT, math.ceil(train.steps_per_epoch / POINTS_PER_EPOCH))
        self._stops = [self._log_every] + [stop_every] * (stop_every is not None)
        self._started = time.monotonic() if started is None else started
        self._seen_lengths = set()
        self._steady_examples, self._steady_seconds = 0, 0.0
        self._epoch = {"seconds": 0.0, "examples": 0, "steady_seconds": 0.0}
        self._point = [0, 0.0]  # steps since the last one that count for speed, and their seconds
        self._epoch_began = time.monotonic()
        self._step_seconds = None
        self._progress = None
        self._epoch_end = None
        self._carried = None
        self._best_accuracy = 0.0
        self._point_text = ""
        self.step = 0
        self.last = {}
        self.seconds_to_first_step = None

    def state(self) -> dict:
        """What a resumed run goes on from, beside the step and the model's metrics, as JSON."""
        return {
            "steady": [self._steady_examples, self._steady_seconds],
            "epoch": self._epoch | {"seconds": self._epoch_seconds()},
            "best_accuracy": self._best_accuracy,
            "seconds_to_first_step": self.seconds_to_first_step,
        }

    def restore(self, step: int, state: dict) -> None:
        """Go on from what `state` returned after `step` steps."""
        self.step = step
        self._steady_examples, self._steady_seconds = state["steady"]
        self._epoch = dict(state["epoch"])
        self._epoch_began = time.monotonic()
        self._best_accuracy = state["best_accuracy"]
        self.seconds_to_first_step = state["seconds_to_first_step"]

    def rewind(self, step: int, evaluated_step: int) -> None:
        """Remove the curves beyond a step, which is gone back to."""
        self._display.rewind(step, evaluated_step)

    def on_train_begin(self, logs=None):
        # Keras empties the metrics at the beginning of what it takes for an epoch, and this may go on within one.
        self._carried = None
        if self._plan.done(self.step):
            metrics = self.model.loss_metric.variables + self.model.accuracy_metric.variables
            self._carried = [(variable, training_state.replica_values(variable)) for variable in metrics]
        self._epoch_end = None
        self._set_pace()

    def on_epoch_begin(self, epoch, logs=None):
        if self._carried is not None:
            for variable, values in self._carried:
                training_state.assign_values(variable, values)
            self._carried = None
        else:
            self._epoch = {
                "seconds": 0.0,
                "examples": self._steady_examples,
                "steady_seconds": self._steady_seconds,
            }
            self._epoch_began = time.monotonic()
        self._epoch_end = self._plan.epoch_end(self.step)
        self._epoch_steps = self._epoch_end - self.step + self._plan.done(self.step)
        self._progress = console.Progress(f"epoch {epoch + 1}/{self._plan.epochs}", self._epoch_steps)
        self._set_pace()

    def on_train_batch_begin(self, batch, logs=None):
        self._execution_started = time.monotonic()
        self._execution_first = batch

    def on_train_batch_end(self, batch, logs=None):
        steps = batch + 1 - self._execution_first
        first = self._plan.position(self.step)
        self.step += steps
        self.model.optimizer.iterations.numpy()  # waits for the device, once in EXECUTION_SECONDS
        seconds = time.monotonic() - self._execution_started
        if self.seconds_to_first_step is None:
            self.seconds_to_first_step = time.monotonic() - self._started
        # The first step of each shape compiles or allocates; the steady state leaves it out.
        lengths = self._train.lengths_at(first, steps) - self._seen_lengths
        if lengths:
            self._seen_lengths |= lengths
        else:
            self._steady_examples += self._train.examples_at(first, steps)
            self._steady_seconds += seconds
            self._step_seconds = seconds / steps
            self._point[0] += steps
            self._point[1] += seconds
        self._display.shares.add("waiting", float(logs["waited"]))
        self._display.profile.after(self.step)
        if self.step % self._log_every == 0 or self.step == self._epoch_end:
            self._write_point()
        self._progress.update(self._epoch_steps - (self._epoch_end - self.step), self._point_text)
        self._set_pace()

    def on_epoch_end(self, epoch, logs=None):
        self._progress.close()
        if self._plan.ends_epoch(self.step):  # else what Keras takes for an epoch is a part of one
            self.end_epoch()

    def end_epoch(self) -> None:
        """Evaluate, and tell the results of the epoch that ends with this step."""
        seconds = self._epoch_seconds()
        train = self._read(self.model.loss_metric, self.model.accuracy_metric)
        began = time.monotonic()
        test = self._evaluate()
        self._display.shares.add("evaluation", time.monotonic() - began)
        self._best_accuracy = max(self._best_accuracy, test["accuracy"])
        self._display.evaluated(self.step, {name: test[name] for name in ("loss", "accuracy")})
        self.last = {"train": train, "test": test}
        pace = _pace(
            self._steady_examples - self._epoch["examples"], self._steady_seconds - self._epoch["steady_seconds"]
        )
        scale = "" if self._loss_scale is None else f", loss scale {self._loss_scale:g}"
        console.say(
            f"epoch {self._plan.epoch(self.step - 1) + 1}/{self._plan.epochs}: step {self.step:,}, "
            f"train loss {train['loss']:.4f} accuracy {train['accuracy']:.4f}, "
            f"test loss {test['loss']:.4f} accuracy {test['accuracy']:.4f}{pace}, {console.duration(seconds)}{scale}"
        )

    def saved(self, seconds: float) -> None:
        """Count what a checkpoint has held up the training."""
        self._display.shares.add("saving", seconds)

    def check_data(self) -> None:
        """Raise UserError if examples could not be read, which examples that are read by threads tell when asked."""
        for batches in (self._train, self._test):
            check = getattr(batches.examples, "check", None)
            if check is not None:
                check()

    def _epoch_seconds(self) -> float:
        """Seconds of the epoch so far, those before a resume included."""
        return self._epoch["seconds"] + time.monotonic() - self._epoch_began

    def _set_pace(self) -> None:
        """Tell Keras how many steps to run before the next callback: never past a point of the curve."""
        if self._step_seconds is None:
            steps = 1
        else:
            steps = max(1, min(int(EXECUTION_SECONDS / self._step_seconds), MAX_STEPS_PER_EXECUTION))
            steps = min(steps, *(every - self.step % every for every in self._stops))
        if self._epoch_end is not None:
            steps = max(1, min(steps, self._epoch_end - self.step))
        steps = self._display.profile.limit(self.step, steps)
        self.model._steps_per_execution.assign(steps)

    def _write_point(self) -> None:
        """Write the curves' values over the steps since the last point."""
        values = self._read(*self.model.interval_metrics)
        values["gradient_norm"] = float(self.model.watch.norm.result().numpy())
        for metric in (*self.model.interval_metrics, self.model.watch.norm):
            metric.reset_state()
        self._point_text = f"loss {values['loss']:.4f}{self.pace}"
        values["learning_rate"] = float(self.model.optimizer.learning_rate.numpy())
        if self._loss_scale is not None:
            values["loss_scale"] = self._loss_scale
        if not math.isnan(self.examples_per_second):
            values["examples_per_second"] = self.examples_per_second
        self._display.point(self.step, values, *self._point)
        self._point = [0, 0.0]

    def _evaluate(self) -> dict:
        """Score the test data; every example counts once."""
        self.model.synchronise_statistics()
        steps = self._test.steps_per_epoch
        progress = console.Progress("evaluation", steps)
        # Above 1 for the reason given where the model is compiled; Keras cuts what is beyond the end.
        self.model._steps_per_execution.assign(max(2, min(steps, 10)))
        with contextlib.ExitStack() as held:
            held.enter_context(quiet.notices())
            report = keras.callbacks.LambdaCallback(
                on_test_batch_begin=lambda batch, logs: held.close(),
                on_test_batch_end=lambda batch, logs: (progress.update(batch + 1), signals.check()),
            )
            self.model.evaluate(self._test_batches, steps=steps, callbacks=[report], verbose=0)
        progress.close()
        self.check_data()
        values = self._read(self.model.loss_metric, self.model.accuracy_metric)
        values["examples"] = round(float(self.model.accuracy_metric.count.numpy()))
        return values

    @staticmethod
    def _read(loss, accuracy) -> dict[str, float]:
        return {"loss": float(loss.result().numpy()), "accuracy": float(accuracy.result().numpy())}

    @property
    def _loss_scale(self) -> float | None:
        """The scale that float16 gradients are computed with; None without one."""
        optimizer = self.model.optimizer
        if isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer):
            return float(optimizer.loss_scale.numpy())
        return None

    @property
    def examples_per_second(self) -> float:
        """Real examples a second in training, compilation, evaluation and saving left out; NaN before a steady step."""
        return self._steady_examples / self._steady_seconds if self._steady_seconds else math.nan

    @property
    def pace(self) -> str:
        """The end of a console line: ", 1,234 examples/s" over the run so far, or nothing before a steady step."""
        return _pace(self._steady_examples, self._steady_seconds)

    def results(self) -> dict:
        """The part of results.json that this callback knows."""
        train, test = self.last["train"], self.last["test"]
        return {
            "train_loss": train["loss"],
            "test_examples": test["examples"],
            "test_loss": test["loss"],
            "test_accuracy": test["accuracy"],
            "best_test_accuracy": self._best_accuracy,
            "examples_per_second": self.examples_per_second,
            "seconds_to_first_step": self.seconds_to_first_step,
        }

    def flush(self) -> None:
        """Bring the curves to disk."""
        self._display.flush()

    def close(self) -> None:
        """Close TensorBoard's files, and remove a progress bar that stands."""
        if self._progress is not None:
            self._progress.close()
        self._display.close()


def _pace(examples: int, seconds: float) -> str:
    return f", {examples / seconds:,.0f} examples/s" if seconds else ""
