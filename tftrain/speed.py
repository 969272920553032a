"""Where a run's time goes, and what it holds in memory."""

import time

import psutil
import tensorflow as tf

# What a run may do instead of training.
ACTIVITIES = ("waiting", "saving", "evaluation")


class Shares:
    """Adds up what was spent on each activity, as shares of the time since they were last taken."""

    def __init__(self, clock=time.monotonic):
        self._clock = clock
        self._since = clock()
        self._seconds = dict.fromkeys(ACTIVITIES, 0.0)

    def add(self, activity: str, seconds: float) -> None:
        """Count seconds that passed with one of ACTIVITIES."""
        self._seconds[activity] += seconds

    def take(self) -> dict[str, float]:
        """The share of each activity since the last call, as `ACTIVITY_share`, in [0, 1]; counting starts anew."""
        now = self._clock()
        elapsed = max(now - self._since, 1e-9)
        found = {f"{name}_share": min(1.0, seconds / elapsed) for name, seconds in self._seconds.items()}
        self._since = now
        self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
        return found


def memory() -> dict[str, float]:
    """What this process holds in MiB: resident, and on the GPU that holds the most, now and at its peak."""
    found = {"memory/resident_mib": psutil.Process().memory_info().rss / 2**20}
    gpus = [tf.config.experimental.get_memory_info(gpu.name[-5:]) for gpu in tf.config.list_logical_devices("GPU")]
    if gpus:
        found["memory/gpu_mib"] = max(gpu["current"] for gpu in gpus) / 2**20
        found["memory/gpu_peak_mib"] = max(gpu["peak"] for gpu in gpus) / 2**20
    return found


@tf.function
def norm(variables: list) -> tf.Tensor:
    """The L2 norm of all variables together, float32 scalar."""
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tf.cast(variable, tf.float32))) for variable in variables]))
