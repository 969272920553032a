"""Runs the steps of a training from any of them on, with Keras' fit."""

import contextlib

import tf_keras as keras

from tftrain import console, quiet, signals, training_state
from tftrain.checkpoints import Checkpoint, Checkpoints
from tftrain.configuration import Saving
from tftrain.data.batching import Batches
from tftrain.errors import UserError
from tftrain.keeper import Keeper
from tftrain.monitor import Monitor
from tftrain.plan import Plan
from tftrain.training_step import TrainingModel
from tftrain.trouble import NotFinite


class TrainingLoop:
    """The steps of a run.

    Args:
      model: compiled; it is trained.
      batches: what to train on.
      strategy: what to train under.
      plan: the steps.
      monitor, keeper: the callbacks.
      checkpoints: where to go back to.
      saving: what to do when the training goes wrong.
    """

    def __init__(
        self,
        model: TrainingModel,
        batches: Batches,
        strategy,
        plan: Plan,
        monitor: Monitor,
        keeper: Keeper,
        checkpoints: Checkpoints,
        saving: Saving,
    ):
        self._model, self._batches, self._strategy, self._plan = model, batches, strategy, plan
        self._monitor, self._keeper, self._checkpoints, self._saving = monitor, keeper, checkpoints, saving
        monitor.set_model(model)
        keeper.set_model(model)

    def restore(self, checkpoint: Checkpoint) -> str | None:
        """Go on from a checkpoint; a line for what of it has no use here.

        Raises:
          UserError: it is of another network or optimizer.
        """
        training_state.assign(self._model, checkpoint.tensors())
        note = training_state.assign_loss_scale(self._model, checkpoint.state["loss_scale"])
        self._model.watch.forget()
        self._monitor.restore(checkpoint.step, checkpoint.state["monitor"])
        self._keeper.restore(checkpoint.step, checkpoint.state)
        return note

    def run(self) -> None:
        """Train to the end of the plan, or until the keeper stops.

        Raises:
          UserError: the training has gone wrong, or cannot be saved.
          signals.Interrupted: it was told to end, and is saved.
        """
        try:
            if self._monitor.step == 0 and self._saving.on_nan == "rollback":
                self._keeper.save()  # something to go back to
            if self._plan.ends_epoch(self._monitor.step):
                self._end_epoch()
            while True:
                try:
                    self._train()
                    break
                except NotFinite as trouble:
                    self._go_back(trouble)
            self._checkpoints.wait()
        except signals.Interrupted:
            self._checkpoints.wait()
            raise
        finally:
            signals.release()

    def _train(self) -> None:
        while (step := self._monitor.step) < self._plan.total_steps and not self._keeper.stopped:
            if step in self._keeper.skipped:
                self._skip()
                continue
            stop = min([s for s in self._keeper.skipped if s > step], default=self._plan.total_steps)
            whole = 0 if self._plan.done(step) else (stop - step) // self._plan.steps_per_epoch
            if whole:
                self._fit(whole, self._plan.steps_per_epoch)
            else:
                self._fit(1, min(stop, self._plan.epoch_end(step)) - step)

    def _fit(self, epochs: int, steps: int) -> None:
        """Train some whole epochs, or a part of one, of `steps` steps each."""
        epoch = self._plan.epoch(self._monitor.step)
        batches = self._batches.distribute(self._strategy, first_step=self._plan.position(self._monitor.step))
        with contextlib.ExitStack() as held:
            held.enter_context(quiet.notices())  # while Keras makes the iterator
            begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: held.close())
            self._model.fit(
                batches,
                initial_epoch=epoch,
                epochs=epoch + epochs,
                steps_per_epoch=steps,
                callbacks=[begin, self._monitor, self._keeper],
                verbose=0,
            )

    def _skip(self) -> None:
        """Pass over the next step's batch; the step counts, so that schedule and positions stay as they are."""
        self._monitor.step += 1
        self._model.optimizer.iterations.assign(self._monitor.step)
        if self._plan.ends_epoch(self._monitor.step):
            self._keeper.save()
            self._end_epoch()

    def _end_epoch(self) -> None:
        self._monitor.end_epoch()
        self._keeper.end_epoch()

    def _go_back(self, trouble: NotFinite) -> None:
        """Restore the last checkpoint, and leave out the batch that did it from then on.

        Raises:
          UserError: --on_nan=stop, there is no checkpoint, or this was tried too often.
        """
        optimizer = getattr(self._model.optimizer, "inner_optimizer", self._model.optimizer)
        rate = float(optimizer._learning_rate(trouble.step))
        what = f"step {trouble.step + 1:,}: {trouble.what}; the learning rate was {rate:g}"
        checkpoint = self._checkpoints.latest()
        last = (
            "no checkpoint was saved before" if checkpoint is None else f"the last good checkpoint is {checkpoint.path}"
        )
        if self._saving.on_nan == "stop":
            raise UserError(f"{what}; {last}. A lower --learning_rate, --clip_norm or --on_nan=rollback may help")
        skipped = [*self._keeper.skipped, trouble.step]
        if len(skipped) > self._saving.max_rollbacks or checkpoint is None:
            raise UserError(f"{what}, after {len(skipped) - 1} rollbacks (--max_rollbacks); {last}")
        console.say(f"rollback     {what}; back to step {checkpoint.step:,}, and on without that batch")
        self._monitor.rewind(checkpoint.step, evaluated_step(self._plan, checkpoint.step))
        self.restore(checkpoint)
        self._keeper.skipped = skipped
        if self._plan.ends_epoch(checkpoint.step):
            self._end_epoch()


def evaluated_step(plan: Plan, step: int) -> int:
    """The last step whose evaluation is done where a run goes on from a step: that of an epoch's end is done anew."""
    return step - 1 if plan.ends_epoch(step) else step
