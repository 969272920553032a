"""Optimizers and learning-rate schedules."""

import math

import tensorflow as tf
import tf_keras as keras

from tftrain.configuration import Recipe

ADAMW_WEIGHT_DECAY = 0.01  # PyTorch's and transformers' default
SGD_MOMENTUM = 0.9


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0 to the peak, then constant, or down to 0 at the last step.

    Step k (from 0) trains with the rate at k + 1 of the warm-up, so that the first step is not wasted, and at
    k of the decay; the rate after the last step would be 0.

    Args:
      kind: "constant", "linear" or "cosine" (half a period; Loshchilov and Hutter, 2017).
      peak: the learning rate at the end of the warm-up.
      warmup_steps: steps of the warm-up.
      total_steps: all steps, warm-up included.
    """

    def __init__(self, kind: str, peak: float, warmup_steps: int, total_steps: int):
        self.kind, self.peak, self.warmup_steps, self.total_steps = kind, peak, warmup_steps, total_steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rate = tf.constant(self.peak, tf.float32)
        if self.kind != "constant":
            done = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
            done = tf.clip_by_value(done, 0.0, 1.0)
            rate *= 1 - done if self.kind == "linear" else 0.5 * (1 + tf.cos(math.pi * done))
        if self.warmup_steps:
            rate = tf.where(step < self.warmup_steps, self.peak * (step + 1) / self.warmup_steps, rate)
        return rate

    def get_config(self) -> dict:
        return dict(kind=self.kind, peak=self.peak, warmup_steps=self.warmup_steps, total_steps=self.total_steps)


class FusedAdam(keras.optimizers.Adam):
    """Keras' Adam, updating each variable with TensorFlow's one Adam kernel in place of a dozen elementwise ones.

    The formulas are the same (Kingma and Ba, 2015, the efficient form at the end of section 2). It reads and writes
    the variable and its moments once, which is most of an update's time. Gradients have to be dense.
    """

    def update_step(self, gradient, variable):
        index = self._index_dict[self._var_key(variable)]
        step = tf.cast(self.iterations + 1, variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].handle,
            v=self._velocities[index].handle,
            beta1_power=tf.pow(tf.cast(self.beta_1, variable.dtype), step),
            beta2_power=tf.pow(tf.cast(self.beta_2, variable.dtype), step),
            lr=tf.cast(self.learning_rate, variable.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )


def make_schedule(recipe: Recipe, total_steps: int) -> Schedule:
    """The recipe's schedule over `total_steps` steps."""
    warmup = recipe.warmup if recipe.warmup >= 1 else recipe.warmup * total_steps
    return Schedule(recipe.schedule, recipe.learning_rate, min(round(warmup), total_steps), total_steps)


def make_optimizer(recipe: Recipe, total_steps: int, variables: list) -> keras.optimizers.Optimizer:
    """The recipe's optimizer, with loss scaling where the precision policy in force needs it.

    Args:
      recipe: what is asked for.
      total_steps: all steps of the run, for the schedule.
      variables: the trainable variables; weight decay leaves those of rank 0 and 1 alone: biases, and the scales and
        offsets of normalisations, as in BERT's own training (Devlin et al., 2019).
    """
    schedule = make_schedule(recipe, total_steps)
    decay = recipe.weight_decay
    if decay is None and recipe.optimizer == "adamw":
        decay = ADAMW_WEIGHT_DECAY
    if recipe.optimizer == "sgd":
        optimizer = keras.optimizers.SGD(schedule, momentum=SGD_MOMENTUM, weight_decay=decay or None)
    else:
        optimizer = FusedAdam(schedule, weight_decay=decay or None)
    if decay:
        optimizer.exclude_from_weight_decay(var_list=[v for v in variables if v.shape.rank <= 1])
    if keras.mixed_precision.global_policy().name == "mixed_float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    return optimizer
