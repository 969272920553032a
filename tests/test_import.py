import subprocess
import sys

import pytest

from tests import helpers


def python(code: str, **environment) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code]
    env = {"PYTHONPATH": str(helpers.ROOT), "PATH": "", "TF_CPP_MIN_LOG_LEVEL": "2"} | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_tensorflow_before_tftrain_is_refused_with_the_remedy():
    found = python("import tensorflow\nimport tftrain")
    assert found.returncode == 1
    (message,) = [line for line in found.stderr.splitlines() if line.startswith("ImportError: ")]
    assert "tensorflow was imported before tftrain" in message
    assert "import tftrain first, or set TF_USE_LEGACY_KERAS=1" in message


@pytest.mark.parametrize(
    "code, environment",
    [
        ("import tftrain, tensorflow as tf", {}),
        ("import tensorflow as tf, tftrain", {"TF_USE_LEGACY_KERAS": "1"}),
        ("import tftrain, tensorflow as tf", {"TF_USE_LEGACY_KERAS": "0"}),
    ],
)
def test_tensorflow_gets_keras_2(code, environment):
    found = python(f"{code}\nprint(tf.keras.Model.__module__)", **environment)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("tf_keras.")


@pytest.mark.parametrize("entry", ["cnn", "bert"])
def test_an_entry_module_starts_no_tensorflow(entry):
    modules = f"errors flags configuration quiet console data.sets data.model_folder data.corpus {entry}"
    code = "".join(f"import tftrain.{name}\n" for name in modules.split())
    heavy = "{'tensorflow', 'tf_keras', 'transformers', 'torch'}"
    found = python(f"import sys\n{code}print(sorted({heavy} & set(sys.modules)))")
    assert (found.stdout.strip(), found.returncode) == ("[]", 0), found.stderr
