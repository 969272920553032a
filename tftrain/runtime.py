"""From the hardware asked for to devices, a tf.distribute strategy, a precision policy and XLA."""

import contextlib
import dataclasses
import pathlib
import re

import tensorflow as tf
import tf_keras as keras
from tensorflow.python.framework import kernels

from tftrain import quiet
from tftrain.configuration import Hardware
from tftrain.errors import UserError


@dataclasses.dataclass(frozen=True)
class Runtime:
    """What was chosen.

    Attributes:
      strategy: the tf.distribute strategy that the network is built and trained under.
      devices: a text such as "2 virtual devices on the CPU".
      precision: the name of the global Keras policy.
      xla: whether the training step is compiled with XLA.
      reduction: how gradients are added over replicas; "none" with one replica.
      notes: lines that explain choices that a person may not expect.
    """

    strategy: tf.distribute.Strategy
    devices: str
    precision: str
    xla: bool
    reduction: str
    notes: tuple[str, ...] = ()

    @property
    def replicas(self) -> int:
        return self.strategy.num_replicas_in_sync


def start(hardware: Hardware) -> Runtime:
    """Choose devices, strategy, precision and XLA, and set the global precision policy.

    Call it once, before TensorFlow has used a device and before any layer is made. A later call works while it
    asks for no more devices than the first.

    Raises:
      UserError: there are fewer GPUs than asked for; the precision cannot run here; TensorFlow has started with
        other devices already.
    """
    tf.get_logger().setLevel("WARNING")  # in a notebook, a line for each reduction otherwise
    gpus = _choose_gpus(hardware)
    if gpus and not hardware.virtual_devices:
        devices = [f"/gpu:{i}" for i in range(len(gpus))]
        text = f"{len(gpus)} GPU" + ("s" if len(gpus) > 1 else "") + f" ({_gpu_name(gpus[0])})"
    elif hardware.virtual_devices:
        kind = "GPU" if gpus else "CPU"
        _make_virtual(gpus, hardware.virtual_devices)
        devices = [f"/{kind.lower()}:{i}" for i in range(hardware.virtual_devices)]
        text = f"{hardware.virtual_devices} virtual device{'s' * (len(devices) > 1)} on the {kind}"
    else:
        devices, text = [], "the CPU"
    strategy, reduction, notes = _make_strategy(devices, virtual=bool(hardware.virtual_devices))

    precision = _choose_precision(hardware.precision, gpus)
    slow_float16 = precision == "mixed_float16" and not gpus
    if slow_float16 and hardware.xla == "off":
        raise UserError(
            "--precision=mixed_float16 with --xla=off takes minutes a step on the CPU, since TensorFlow has no fast "
            "float16 kernels for it: use --xla=on, or --precision=mixed_bfloat16"
        )
    if slow_float16 and hardware.xla == "auto":
        notes.append("XLA is on: without it, float16 takes minutes a step on the CPU")
    xla = hardware.xla == "on" or (hardware.xla == "auto" and (bool(gpus) or slow_float16))
    with quiet.warnings() if slow_float16 else contextlib.nullcontext():  # Keras says what the note above says
        keras.mixed_precision.set_global_policy(precision)
    return Runtime(
        strategy=strategy, devices=text, precision=precision, xla=xla, reduction=reduction, notes=tuple(notes)
    )


def _choose_gpus(hardware: Hardware) -> list:
    """Make the first GPUs that are asked for the only visible ones."""
    present = tf.config.list_physical_devices("GPU")
    wanted = hardware.gpus
    if wanted is None:
        # With --virtual_devices alone, it is the CPU that is divided.
        wanted = 0 if hardware.virtual_devices else len(present)
    if wanted > len(present):
        there = f"{len(present)} GPU{'s' * (len(present) > 1)}" if present else "no GPU"
        raise UserError(
            f"--gpus={wanted}: TensorFlow finds {there} on this machine; "
            f"--virtual_devices={wanted} runs {wanted} replicas on the CPU"
        )
    gpus = present[:wanted]
    with contextlib.suppress(RuntimeError):  # TensorFlow has started; what it started with is checked below
        tf.config.set_visible_devices(gpus, "GPU")
        if not hardware.virtual_devices:
            for gpu in gpus:
                tf.config.experimental.set_memory_growth(gpu, True)
    if tf.config.get_visible_devices("GPU") != gpus:
        raise UserError(f"--gpus={wanted}: TensorFlow has started with other devices in this process already")
    return gpus


def _make_virtual(gpus: list, count: int) -> None:
    """Divide the CPU, or the one GPU, into `count` logical devices."""
    kind = "GPU" if gpus else "CPU"
    limit = _gpu_share(count) if gpus else None
    parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for _ in range(count)]
    with contextlib.suppress(RuntimeError):  # as above
        tf.config.set_logical_device_configuration((gpus or tf.config.list_physical_devices("CPU"))[0], parts)
    there = len(tf.config.list_logical_devices(kind))
    if there < count:
        raise UserError(f"--virtual_devices={count}: TensorFlow has started with {there} in this process already")


def _gpu_share(count: int) -> float:
    """An equal share of the first GPU's memory in MiB, an eighth of it left for TensorFlow's own libraries."""
    try:
        import pynvml
    except ImportError:
        raise UserError(
            "--virtual_devices on a GPU needs NVIDIA's management library: pip install nvidia-ml-py"
        ) from None
    pynvml.nvmlInit()
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
    return memory.total / 2**20 * 7 / 8 / count


def _make_strategy(devices: list[str], virtual: bool) -> tuple[tf.distribute.Strategy, str, list[str]]:
    """The strategy over these devices, the name of its reduction, and a note on it."""
    if not devices:
        return tf.distribute.get_strategy(), "none", []
    if len(devices) == 1:
        return tf.distribute.OneDeviceStrategy(devices[0]), "none", []
    if not virtual and kernels.get_registered_kernels_for_op("NcclAllReduce").kernel:
        return tf.distribute.MirroredStrategy(devices, tf.distribute.NcclAllReduce()), "NCCL all-reduce", []
    why = "NCCL takes one replica a GPU" if virtual else "this TensorFlow has no NCCL"
    strategy = tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    return strategy, "reduction to one device", [f"gradients are added on one device and copied back: {why}"]


def _choose_precision(asked: str, gpus: list) -> str:
    """The name of the Keras policy."""
    if asked == "auto":
        if not gpus:
            return "mixed_bfloat16" if _cpu_has_bfloat16_matrix_units() else "float32"
        capabilities = [tf.config.experimental.get_device_details(g).get("compute_capability") for g in gpus]
        if None in capabilities:  # not an NVIDIA card
            return "float32"
        least = min(capabilities)
        return "mixed_bfloat16" if least >= (8, 0) else "mixed_float16" if least >= (7, 0) else "float32"
    return asked


def _cpu_has_bfloat16_matrix_units() -> bool:
    """Whether the CPU multiplies bfloat16 matrices in hardware (Intel AMX); Linux alone tells."""
    information = pathlib.Path("/proc/cpuinfo")
    return information.exists() and bool(re.search(r"^flags\s*:.*\bamx_bf16\b", information.read_text(), re.MULTILINE))


def _gpu_name(gpu) -> str:
    return tf.config.experimental.get_device_details(gpu).get("device_name", "unknown model")
