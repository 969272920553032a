import os
import pathlib

import pytest
import tensorflow as tf
import tf_keras as keras
from tensorflow.core.framework import kernel_def_pb2

from tests import helpers
from tftrain import runtime
from tftrain.configuration import Hardware
from tftrain.errors import UserError

PLAIN_CPU = "processor\t: 0\nflags\t\t: fpu sse2 avx512f avx512_bf16\n"
MATRIX_CPU = "processor\t: 0\nflags\t\t: fpu avx512_bf16 amx_bf16 amx_tile\nprocessor\t: 1\nflags\t\t: fpu amx_bf16\n"


@pytest.fixture
def cpu(monkeypatch, tmp_path):
    """Makes the machine's /proc/cpuinfo say what it is given."""

    def say(text: str | None):
        file = tmp_path / "cpuinfo"
        if text is not None:
            file.write_text(text)
        real = pathlib.Path
        monkeypatch.setattr(
            runtime.pathlib, "Path", lambda *parts: file if parts == ("/proc/cpuinfo",) else real(*parts)
        )

    return say


@pytest.mark.parametrize("wanted", [1, 2, 101])
def test_more_gpus_than_there_are_are_refused_with_the_virtual_form(wanted):
    assert not tf.config.get_visible_devices("GPU")
    present = len(tf.config.list_physical_devices("GPU"))
    with pytest.raises(UserError) as caught:
        runtime.start(Hardware(gpus=present + wanted))
    message = str(caught.value)
    assert message.startswith(f"--gpus={present + wanted}: TensorFlow finds ")
    assert f"--virtual_devices={present + wanted} runs {present + wanted} replicas on the CPU" in message


def test_more_virtual_devices_than_tensorflow_started_with_are_refused():
    with pytest.raises(UserError, match="--virtual_devices=5: TensorFlow has started with 4"):
        runtime.start(Hardware(gpus=0, virtual_devices=5))


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_virtual_devices_are_replicas_with_a_reduction_that_needs_no_nccl(replicas):
    run = helpers.start(replicas)
    assert run.replicas == replicas
    assert isinstance(run.strategy, tf.distribute.MirroredStrategy)
    assert run.devices == f"{replicas} virtual devices on the CPU"
    assert run.reduction == "reduction to one device"
    assert run.notes == ("gradients are added on one device and copied back: NCCL takes one replica a GPU",)
    total = run.strategy.reduce("SUM", run.strategy.run(lambda: tf.constant(1.5)), axis=None)
    assert float(total) == 1.5 * replicas


@pytest.mark.parametrize("virtual", [None, 1])
def test_one_device_needs_no_reduction(virtual):
    run = runtime.start(Hardware(gpus=0, virtual_devices=virtual, precision="float32"))
    assert (run.replicas, run.reduction, run.notes) == (1, "none", ())


def test_a_tensorflow_without_nccl_adds_on_one_device_and_says_so(monkeypatch):
    # What the registry of kernels answers in a build without them.
    monkeypatch.setattr(runtime.kernels, "get_registered_kernels_for_op", lambda name: kernel_def_pb2.KernelList())
    strategy, reduction, notes = runtime._make_strategy(["/cpu:0", "/cpu:1"], virtual=False)
    assert strategy.num_replicas_in_sync == 2
    assert reduction == "reduction to one device"
    assert notes == ["gradients are added on one device and copied back: this TensorFlow has no NCCL"]


@pytest.mark.parametrize(
    "information, expected",
    [(PLAIN_CPU, "float32"), (MATRIX_CPU, "mixed_bfloat16"), ("", "float32"), (None, "float32")],
)
def test_auto_takes_bfloat16_where_the_cpu_has_matrix_units_for_it(cpu, information, expected):
    cpu(information)
    run = runtime.start(Hardware(gpus=0))
    assert run.precision == expected
    assert keras.mixed_precision.global_policy().name == expected


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_a_precision_that_is_asked_for_is_taken(cpu, precision):
    cpu(MATRIX_CPU if precision == "float32" else PLAIN_CPU)
    assert helpers.start(precision=precision).precision == precision
    assert keras.mixed_precision.global_policy().name == precision


def test_float16_on_the_cpu_needs_xla():
    with pytest.raises(UserError, match=r"--precision=mixed_float16 .*: use --xla=on, or --precision=mixed_bfloat16"):
        helpers.start(precision="mixed_float16", xla=False)
    assert helpers.start(precision="mixed_float16", xla=True).precision == "mixed_float16"
    run = runtime.start(Hardware(gpus=0, precision="mixed_float16"))
    assert run.xla
    assert run.notes == ("XLA is on: without it, float16 takes minutes a step on the CPU",)


@pytest.mark.parametrize("asked, expected", [("auto", False), ("off", False), ("on", True)])
def test_xla_is_off_on_the_cpu_unless_asked_for(asked, expected):
    assert runtime.start(Hardware(gpus=0, precision="float32", xla=asked)).xla is expected


def test_nothing_of_the_environment_is_needed():
    assert os.environ["TF_USE_LEGACY_KERAS"] == "1"
    assert keras.__version__.startswith("2.")
    assert tf.keras.Model is keras.Model
