"""Which steps a run has, and where its epochs end."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Plan:
    """The steps of a run. Steps and positions are counts of what is done: 0 before the first.

    A position counts batches of the data from the first epoch's beginning. It is the step less `offset`, which is 0
    unless the batch size was changed on the way.

    Attributes:
      steps_per_epoch: batches that hold every example once.
      total_steps: the step at which the run ends.
      offset: steps less positions.
    """

    steps_per_epoch: int
    total_steps: int
    offset: int = 0

    @classmethod
    def of(cls, epochs: int | None, steps: int | None, steps_per_epoch: int, offset: int = 0) -> "Plan":
        """The plan of a number of epochs or of steps, whichever is given."""
        return cls(steps_per_epoch, steps or epochs * steps_per_epoch + offset, offset)

    @property
    def epochs(self) -> int:
        """Epochs in all, a last one that is not whole included."""
        return math.ceil(self.position(self.total_steps) / self.steps_per_epoch)

    def position(self, step: int) -> int:
        """Batches of the data that were passed after `step` steps."""
        return step - self.offset

    def step(self, position: int) -> int:
        """The step at a position."""
        return position + self.offset

    def epoch(self, step: int) -> int:
        """The epoch, from 0, that goes on after `step` steps."""
        return self.position(step) // self.steps_per_epoch

    def done(self, step: int) -> int:
        """Steps of that epoch which are done."""
        return self.position(step) % self.steps_per_epoch

    def epoch_end(self, step: int) -> int:
        """The step at which that epoch ends; the last one ends with the run."""
        return min(self.step((self.epoch(step) + 1) * self.steps_per_epoch), self.total_steps)

    def ends_epoch(self, step: int) -> bool:
        """Whether an epoch, or the run, ends with this step."""
        return step > 0 and (self.done(step) == 0 or step == self.total_steps)
