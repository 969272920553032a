"""Follows a training: its pace, its progress, its curves, its evaluation after each epoch."""

import contextlib
import math
import time

import tensorflow as tf
import tf_keras as keras

from tftrain import console, quiet
from tftrain.dashboards import Dashboards
from tftrain.data.batching import Batches

# Keras runs so many seconds of steps between two callbacks: progress stays live and the callbacks cost nothing.
EXECUTION_SECONDS = 1.0
MAX_STEPS_PER_EXECUTION = 100
# Points of a curve: at most so many in an epoch, and none closer together than this.
POINTS_PER_EPOCH = 20
MIN_STEPS_PER_POINT = 20

# Keras warns of callbacks that take longer than a step; this one waits for the steps themselves.
tf.get_logger().addFilter(lambda record: "is slow compared to the batch time" not in record.getMessage())


class Monitor(keras.callbacks.Callback):
    """The one callback of a run.

    Scalars are written at steps that depend on the data and the recipe alone, so curves of runs on different hardware
    have their points at the same steps.

    Args:
      train, test: the batches trained on and evaluated.
      strategy: what to evaluate under.
      dashboards: where curves go; closed by `close`.
      total_steps: all steps of the run.
    """

    _supports_tf_logs = True  # Keras need not wait for the device after each execution

    def __init__(self, train: Batches, test: Batches, strategy, dashboards: Dashboards, total_steps: int):
        super().__init__()
        self._train, self._test, self._dashboards = train, test, dashboards
        self._test_batches = test.distribute(strategy)
        self._epochs = math.ceil(total_steps / train.steps_per_epoch)
        self._total_steps = total_steps
        self._log_every = max(MIN_STEPS_PER_POINT, math.ceil(train.steps_per_epoch / POINTS_PER_EPOCH))
        self._seen_lengths = set()
        self._steady_examples, self._steady_seconds = 0, 0.0
        self._step_seconds = None
        self._progress = None
        self._step = 0
        self._epoch_end = None
        self._best_accuracy = 0.0
        self._last = {}
        self._point_text = ""
        self.first_step_ended = None

    def on_train_begin(self, logs=None):
        self._epoch_end = None
        self._set_pace()

    def on_epoch_begin(self, epoch, logs=None):
        self._step = epoch * self._train.steps_per_epoch
        self._epoch_steps = min(self._train.steps_per_epoch, self._total_steps - self._step)
        self._epoch_end = self._step + self._epoch_steps
        self._epoch_started = time.monotonic()
        self._epoch_counts = self._steady_examples, self._steady_seconds
        self._progress = console.Progress(f"epoch {epoch + 1}/{self._epochs}", self._epoch_steps)
        self._set_pace()

    def on_train_batch_begin(self, batch, logs=None):
        self._execution_started = time.monotonic()
        self._execution_first = batch

    def on_train_batch_end(self, batch, logs=None):
        steps = batch + 1 - self._execution_first
        first_step = self._step
        self._step += steps
        self.model.optimizer.iterations.numpy()  # waits for the device, once in EXECUTION_SECONDS
        seconds = time.monotonic() - self._execution_started
        if self.first_step_ended is None:
            self.first_step_ended = time.monotonic()
        # The first step of each shape compiles or allocates; the steady state leaves it out.
        lengths = self._train.lengths_at(first_step, steps) - self._seen_lengths
        if lengths:
            self._seen_lengths |= lengths
        else:
            self._steady_examples += self._train.examples_at(first_step, steps)
            self._steady_seconds += seconds
            self._step_seconds = seconds / steps
        if self._step % self._log_every == 0 or batch + 1 == self._epoch_steps:
            self._write_point()
        self._progress.update(batch + 1, self._point_text)
        self._set_pace()

    def on_epoch_end(self, epoch, logs=None):
        self._progress.close()
        train = self._read(self.model.loss_metric, self.model.accuracy_metric)
        seconds = time.monotonic() - self._epoch_started
        test = self._evaluate()
        self._best_accuracy = max(self._best_accuracy, test["accuracy"])
        self._dashboards.scalars("test", self._step, {name: test[name] for name in ("loss", "accuracy")})
        self._dashboards.flush()
        self._last = {"train": train, "test": test}
        examples, steady = self._epoch_counts
        pace = _pace(self._steady_examples - examples, self._steady_seconds - steady)
        scale = "" if self._loss_scale is None else f", loss scale {self._loss_scale:g}"
        console.say(
            f"epoch {epoch + 1}/{self._epochs}: step {self._step:,}, train loss {train['loss']:.4f} accuracy "
            f"{train['accuracy']:.4f}, test loss {test['loss']:.4f} accuracy {test['accuracy']:.4f}"
            f"{pace}, {console.duration(seconds)}{scale}"
        )

    def _set_pace(self) -> None:
        """Tell Keras how many steps to run before the next callback: never past a point of the curve."""
        if self._step_seconds is None:
            steps = 1
        else:
            steps = max(1, min(int(EXECUTION_SECONDS / self._step_seconds), MAX_STEPS_PER_EXECUTION))
            steps = min(steps, self._log_every - self._step % self._log_every)
        if self._epoch_end is not None:
            steps = max(1, min(steps, self._epoch_end - self._step))
        self.model._steps_per_execution.assign(steps)

    def _write_point(self) -> None:
        """Write the curves' values over the steps since the last point."""
        values = self._read(*self.model.interval_metrics)
        for metric in self.model.interval_metrics:
            metric.reset_state()
        self._point_text = f"loss {values['loss']:.4f}{self.pace}"
        values["learning_rate"] = float(self.model.optimizer.learning_rate.numpy())
        if self._loss_scale is not None:
            values["loss_scale"] = self._loss_scale
        if not math.isnan(self.examples_per_second):
            values["examples_per_second"] = self.examples_per_second
        self._dashboards.scalars("train", self._step, values)

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
                on_test_batch_end=lambda batch, logs: progress.update(batch + 1),
            )
            self.model.evaluate(self._test_batches, steps=steps, callbacks=[report], verbose=0)
        progress.close()
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
        train, test = self._last["train"], self._last["test"]
        return {
            "train_loss": train["loss"],
            "test_examples": test["examples"],
            "test_loss": test["loss"],
            "test_accuracy": test["accuracy"],
            "best_test_accuracy": self._best_accuracy,
            "examples_per_second": self.examples_per_second,
        }

    def close(self) -> None:
        """Close TensorBoard's files."""
        self._dashboards.close()


def _pace(examples: int, seconds: float) -> str:
    return f", {examples / seconds:,.0f} examples/s" if seconds else ""
