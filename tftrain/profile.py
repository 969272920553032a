"""A trace of some steps for TensorBoard's profile plugin."""

import importlib.metadata
import pathlib

import tensorflow as tf

from tftrain import console

PLUGIN = "tensorboard-plugin-profile"


class Profile:
    """Traces the steps from `first` to `last`, both included, of a run; does nothing where they are None.

    Keras marks each step in the trace, and tf.data its stages. Between `start` and `stop`, steps have to run one at a
    time for that: see `limit`.

    Args:
      steps: the first and the last step, from 1 on, or None.
      folder: TensorBoard's, which gets plugins/profile/.
      total_steps: all steps of the run.
      first_step: the steps that are done already.
    """

    def __init__(self, steps: tuple[int, int] | None, folder: pathlib.Path, total_steps: int, first_step: int = 0):
        self._folder, self._running = folder, False
        self._steps = None
        if steps is None:
            return
        first, last = steps
        if first > total_steps:
            console.say(
                f"profile      none: --profile_steps begins at {first:,}, and the run has {total_steps:,} steps"
            )
            return
        if first <= first_step:
            console.say(f"profile      none: --profile_steps begins at {first:,}, and {first_step:,} steps are done")
            return
        if last > total_steps:
            console.say(f"profile      steps {first:,} to {total_steps:,}: the run has no more than that")
        self._steps = first, min(last, total_steps)
        try:
            importlib.metadata.version(PLUGIN)
        except importlib.metadata.PackageNotFoundError:
            console.say(f"profile      TensorBoard shows it with a plugin that is not installed: pip install {PLUGIN}")

    def limit(self, step: int, steps: int) -> int:
        """How many of `steps` steps may run at once after step `step`."""
        if self._steps is None or step >= self._steps[1]:
            return steps
        first, _ = self._steps
        return 1 if step >= first - 1 else min(steps, first - 1 - step)

    def after(self, step: int) -> None:
        """Start or stop the trace, as is due once `step` steps are done; call it at least after each `limit`."""
        if self._steps is None:
            return
        first, last = self._steps
        if step == first - 1:
            tf.profiler.experimental.start(str(self._folder))
            self._running = True
        elif step >= last:
            self.stop()

    def stop(self) -> None:
        """End the trace, if one is under way, and write it."""
        if self._running:
            self._running = False
            tf.profiler.experimental.stop()
            console.say(f"profile      steps {self._steps[0]:,} to {self._steps[1]:,}: {self._folder}/plugins/profile")
