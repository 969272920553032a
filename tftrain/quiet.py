"""Keeps TensorFlow's notices off the terminal, and lets its warnings through.

TensorFlow's C++ logging writes to file descriptor 2, before its log level can be set and without a way to choose by
message, so the descriptor itself is held back for the moments in which notices are known to come.
"""

import contextlib
import logging
import os
import re
import sys
import tempfile

_NOTICES = [
    r"^I\d{4} ",  # severity INFO
    r"^To enable the following instructions: ",  # the second line of an INFO message
    r"All log messages before absl::InitializeLog\(\) is called",
    # Wheels that hold the CUDA plug-ins register them twice: https://github.com/tensorflow/tensorflow/issues/62075
    r"Unable to register cu\w+ factory",
    r"computation placer already registered",
    # Each replica's iterator reads from a generator, which is as it should be.
    r"Input of GeneratorDatasetOp::Dataset will not be optimized",
]
if not os.path.exists("/dev/nvidia0"):
    # With an NVIDIA card in the machine, this line says why the card is not used.
    _NOTICES.append(r"failed call to cuInit")
_NOTICE = re.compile("|".join(_NOTICES))


@contextlib.contextmanager
def notices():
    """Hold standard error back inside the block, then write out what is not a known notice."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # INFO messages once TensorFlow has started
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            for line in held:
                if not _NOTICE.search(line):
                    sys.stderr.write(line)
            sys.stderr.flush()


@contextlib.contextmanager
def warnings():
    """Drop warnings of Python's loggers inside the block."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
