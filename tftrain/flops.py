"""How much a network computes, and how much its device could: what model FLOPs utilisation (MFU) is made of."""

import functools
import math
import time
from collections.abc import Callable

import tensorflow as tf

# The backward pass takes two products for each of the forward pass (Chowdhery et al., 2022, appendix B).
BACKWARD_AND_FORWARD = 3
# Dense peaks in FLOP/s with 16-bit and with float32 inputs (TF32 where the card has it, which TensorFlow uses), from
# NVIDIA's data sheets. The first name that the device's contains counts.
GPU_PEAKS = {
    "B200": (2250e12, 1125e12),
    "H200": (989e12, 494e12),
    "H100 PCIe": (756e12, 378e12),
    "H100": (989e12, 494e12),
    "A100": (312e12, 156e12),
    "L40S": (362e12, 183e12),
    "L4": (121e12, 60e12),
    "A10": (125e12, 62e12),
    "T4": (65e12, 8.1e12),
    "V100": (125e12, 15.7e12),
}
MEASURING_SECONDS = 0.3


def forward(call: Callable, signature) -> int | None:
    """The floating-point operations of matrix products and convolutions in a call, two for each multiply-add.

    Args:
      call: takes what `signature` describes.
      signature: a nest of tf.TensorSpec of static shape.

    Returns:
      how many; None where a shape is known only when it runs.
    """
    graph = tf.function(call).get_concrete_function(signature).graph
    operations = graph.get_operations()
    for function in graph._functions.values():
        operations += function.graph.get_operations()
    counts = [_count(operation) for operation in operations]
    return None if None in counts else sum(counts)


def known_peak(device_name: str, precision: str) -> float | None:
    """The peak of a GPU in FLOP/s by its name, such as "NVIDIA A100-SXM4-80GB", and the precision policy's name."""
    for name, (half, single) in GPU_PEAKS.items():
        if name in device_name:
            return single if precision == "float32" else half
    return None


@functools.cache
def measured_peak(precision: str, size: int = 1024) -> float:
    """What the device reaches in FLOP/s, at best, on square matrix products of the precision policy's type."""
    dtype = {"float32": tf.float32, "mixed_bfloat16": tf.bfloat16, "mixed_float16": tf.float16}[precision]
    matrix = tf.cast(tf.random.stateless_uniform([size, size], [0, 0]), dtype)
    multiply = tf.function(lambda a: tf.reduce_max(tf.matmul(a, a)))
    multiply(matrix).numpy()
    best, end = math.inf, time.perf_counter() + MEASURING_SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        multiply(matrix).numpy()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def text(count: float) -> str:
    """A number of operations with its unit: "1.23 GFLOP"."""
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}FLOP"
    return f"{count:.3g} FLOP"


def _count(operation: tf.Operation) -> int | None:
    """The operations of one node; 0 for all but products and convolutions, None where its shapes are not known."""
    kind = operation.type
    if kind in ("MatMul", "BatchMatMulV2", "BatchMatMulV3"):
        transposed = operation.get_attr("transpose_a" if kind == "MatMul" else "adj_x")
        factors = [*operation.outputs[0].shape, operation.inputs[0].shape[-2 if transposed else -1]]
    elif kind in ("Conv2D", "Conv3D"):
        factors = [*operation.outputs[0].shape, *operation.inputs[1].shape[:-1]]
    elif kind == "DepthwiseConv2dNative":
        factors = [*operation.outputs[0].shape, *operation.inputs[1].shape[:2]]
    elif kind == "Einsum" and len(operation.inputs) == 2:
        factors = _einsum_sizes(operation)
    else:
        return 0
    return None if None in factors else 2 * math.prod(factors)


def _einsum_sizes(operation: tf.Operation) -> list[int | None]:
    """The size of each index of an einsum over two tensors, each once."""
    operands = operation.get_attr("equation").decode().partition("->")[0].split(",")
    sizes = {}
    for operand, tensor in zip(operands, operation.inputs):
        shape = list(tensor.shape)
        before, _, after = operand.partition("...")
        batch = len(shape) - len(before) - len(after)
        # Those of an ellipsis are aligned at its end, as in broadcasting.
        indices = [*before, *range(-batch, 0), *after]
        for index, size in zip(indices, shape):
            sizes[index] = size if sizes.get(index, 1) == 1 else sizes[index]
    return list(sizes.values())
