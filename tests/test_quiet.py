import os

import pytest

from tftrain import quiet

NOTICES = [
    "I0000 00:00:1700000000.000000 1 port.cc:153] oneDNN custom operations are on.",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "E0000 00:00:1700000000.000000 1 cuda_dnn.cc:8454] Unable to register cuDNN factory: it is registered already",
    "W0000 00:00:1700000000.000000 1 dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be optimized",
]
WARNINGS = [
    "W0000 00:00:1700000000.000000 1 bfc_allocator.cc:497] Allocator ran out of memory",
    "E0000 00:00:1700000000.000000 1 something.cc:1] CUDA_ERROR_OUT_OF_MEMORY",
    "Traceback (most recent call last):",
    "It is said: I0000",
]


def write(lines):
    """Write lines as C++ code does, past sys.stderr."""
    os.write(2, "".join(line + "\n" for line in lines).encode())


def test_notices_are_dropped_and_the_rest_kept_in_order(capfd):
    mixed = [line for pair in zip(NOTICES, WARNINGS) for line in pair]
    with quiet.notices():
        write(mixed)
    assert capfd.readouterr().err.splitlines() == WARNINGS


def test_outside_of_the_block_nothing_is_held_back(capfd):
    with quiet.notices():
        pass
    write(NOTICES)
    assert capfd.readouterr().err.splitlines() == NOTICES


def test_what_was_held_is_shown_when_the_block_fails(capfd):
    with pytest.raises(ValueError, match="broken"), quiet.notices():
        write(WARNINGS[:1])
        raise ValueError("broken")
    assert capfd.readouterr().err.splitlines() == WARNINGS[:1]
    write(WARNINGS[1:2])
    assert capfd.readouterr().err.splitlines() == WARNINGS[1:2]


def test_bytes_that_are_no_text_pass(capfd):
    with quiet.notices():
        os.write(2, b"\xff\xfe odd\n")
    assert capfd.readouterr().err.endswith(" odd\n")
