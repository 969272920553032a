"""Keeps a run: saves it, keeps its best, ends it early, and notices trouble."""

import time

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tftrain import console, saved_state, signals, training_state
from tftrain.checkpoints import Checkpoints
from tftrain.configuration import Saving
from tftrain.monitor import Monitor
from tftrain.plan import Plan
from tftrain.trouble import FLOOR_OVERFLOWS, NotFinite


class Keeper(keras.callbacks.Callback):
    """The callback after the monitor.

    A checkpoint is taken where it is due, at each epoch's end before the evaluation, and when a signal asks for it. It
    is copied in memory, and written beside the training. A run that is resumed at an epoch's end begins with the
    evaluation.

    Args:
      checkpoints: where to save.
      saving: when.
      monitor: knows the step.
      plan: the run's steps.
      position: what else belongs into a checkpoint's state, as JSON.
      started: time.monotonic() at the run's beginning, that of earlier processes moved back by the time between.

    Attributes:
      skipped: steps whose batches are left out, since they went wrong.
      best: of the best evaluation so far: its score, its step, and how many have followed it; None before the first.
      stopped: whether no evaluation got better for too long.
    """

    _supports_tf_logs = True

    def __init__(
        self, checkpoints: Checkpoints, saving: Saving, monitor: Monitor, plan: Plan, position: dict, started: float
    ):
        super().__init__()
        self._checkpoints, self._saving, self._monitor, self._plan = checkpoints, saving, monitor, plan
        self._position, self._started = position, started
        self._saved_step, self._saved_at = None, time.monotonic()
        self._kept_score = None
        self.skipped: list[int] = []
        self.best: dict | None = None
        self.stopped = False

    def restore(self, step: int, state: dict) -> None:
        """Go on from the state of a checkpoint."""
        self._saved_step, self._saved_at = step, time.monotonic()
        self.skipped, self.best = list(state["skipped"]), state["best"]
        kept = self._checkpoints.load_best()
        if kept is not None:
            saved_state.check_best(kept)
        self._kept_score = kept and kept.state["score"]

    def on_train_batch_end(self, batch, logs=None):
        self.check_finite()
        self._monitor.check_data()
        self._checkpoints.check()
        signals.defer()
        number, asked = signals.requested(), signals.take_save_request()
        if asked or number is not None or self._is_due():
            self.save()
        if asked:
            console.say(f"saved        at step {self._monitor.step:,}, as SIGUSR1 asked")
        signals.check()

    def on_epoch_end(self, epoch, logs=None):
        if self._plan.ends_epoch(self._monitor.step):
            self.end_epoch()

    def end_epoch(self) -> None:
        """Keep the weights that were just evaluated if they are the best, and end the run if none were for too long."""
        score = self._monitor.last["test"][self._saving.best_metric]
        if self.best is None or self._is_better(score, self.best["score"]):
            self.best = {"score": score, "step": self._monitor.step, "epochs_since": 0}
        else:
            self.best["epochs_since"] += 1
        # An earlier process may have gone further than the checkpoint that this one began with.
        if self.best["epochs_since"] == 0 and (self._kept_score is None or self._is_better(score, self._kept_score)):
            state = {"metric": self._saving.best_metric, "score": score}
            self._checkpoints.save_best(self._monitor.step, training_state.weights(self.model.network), state)
            self._kept_score = score
        patience = self._saving.patience
        if (
            patience is not None
            and self.best["epochs_since"] >= patience
            and self._monitor.step < self._plan.total_steps
        ):
            self.stopped = self.model.stop_training = True
            console.say(
                f"stopped      {patience} epochs without a better test {self._saving.best_metric} than "
                f"{self.best['score']:.4f} of step {self.best['step']:,}"
            )

    def save(self) -> None:
        """Save a checkpoint of this step, unless there is one."""
        step = self._monitor.step
        if self._saved_step == step:
            return
        began = time.monotonic()
        weights = [weight.read_value() for weight in self.model.network.weights]
        if not np.isfinite(float(tf.linalg.global_norm(weights))):
            raise NotFinite(max(0, step - 1), "a weight is not finite")
        self._monitor.flush()
        state = {
            **self._position,
            "seconds": began - self._started,
            "skipped": self.skipped,
            "best": self.best,
            "loss_scale": training_state.read_loss_scale(self.model),
            "monitor": self._monitor.state(),
        }
        self._checkpoints.save(step, training_state.read(self.model), state)
        self._saved_step, self._saved_at = step, time.monotonic()
        self._monitor.saved(self._saved_at - began)

    def check_finite(self) -> None:
        """Raise NotFinite if a step since the last look went wrong."""
        first = self.model.watch.first
        if first is None:
            return
        what = "the loss or a gradient is not finite"
        if isinstance(self.model.optimizer, keras.mixed_precision.LossScaleOptimizer):
            what = f"gradients have overflowed float16 {FLOOR_OVERFLOWS} times with the least loss scale, 1"
        raise NotFinite(self._plan.step(first), what)

    def _is_due(self) -> bool:
        step = self._monitor.step
        if self._plan.ends_epoch(step):
            return True
        if self._saving.every_steps is not None:
            return step % self._saving.every_steps == 0
        return time.monotonic() - self._saved_at >= self._saving.every_seconds

    def _is_better(self, score: float, than: float) -> bool:
        return score > than if self._saving.best_metric == "accuracy" else score < than
