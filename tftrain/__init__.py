"""Train Keras models on one device or many: one command, no training loop.

Importing this package chooses tf-keras (Keras 2), the Keras that transformers' TensorFlow models
are written for. TensorFlow reads that choice once, at its own import, so this package has to come first.
"""

import os
import sys

if "tensorflow" in sys.modules and os.environ.get("TF_USE_LEGACY_KERAS") not in ("1", "true", "True"):
    raise ImportError(
        "tensorflow was imported before tftrain and has chosen Keras 3; "
        "import tftrain first, or set TF_USE_LEGACY_KERAS=1 in the environment"
    )
os.environ["TF_USE_LEGACY_KERAS"] = "1"
# transformers would otherwise import torch wherever it is installed, which costs seconds.
os.environ.setdefault("USE_TF", "1")

__version__ = "0.1.0"
