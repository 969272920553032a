"""Starts TensorFlow once for the whole session, with four logical CPU devices."""

import os

# The networks here are so small that XLA's optimisation of machine code is most of a test's time. What XLA decides
# (what it can compile, fusion, precision) is the same without it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import tftrain  # noqa: I001  it chooses tf-keras, so it has to come before TensorFlow
import pytest
import tf_keras as keras

from tftrain import runtime
from tftrain.configuration import Hardware

assert tftrain
# Logical devices can be made only before TensorFlow uses one; a test then takes the first few.
runtime.start(Hardware(gpus=0, virtual_devices=4, precision="float32"))


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, default=2, help="how often test_kills.py kills each training")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """What is remembered between runs stays among the tests."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def float32_policy():
    """Each test starts under float32, whatever the one before it chose."""
    keras.mixed_precision.set_global_policy("float32")
    yield
    keras.mixed_precision.set_global_policy("float32")
